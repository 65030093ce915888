"""Durations from traces of torch.profiler: of a real pipeline, and of files that hold what GPUs and others record."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import pfo_fs
from torchrun import torchrun

from pfo_fs.errors import PlanError
from pfo_fs.simulator import torch_traces
from pfo_fs.simulator.torch_traces import read_torch_traces

PROGRAM = """
import sys, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleavedZeroBubble
from torch.profiler import ProfilerActivity, profile, schedule

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
loss = lambda output, target: ((output - target) ** 2).mean()
stage = lambda index, count: PipelineStage(torch.nn.Linear(8, 8), index, count, torch.device("cpu"))
for name, steps in (
    ("gpipe", ScheduleGPipe(stage(rank, ranks), 4, loss_fn=loss)),
    ("zero bubble", ScheduleInterleavedZeroBubble([stage(rank, 4), stage(rank + 2, 4)], 4, loss_fn=loss)),
):
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=0, active=2)) as profiled:
        for _ in range(3):
            given = (torch.ones(8, 8),) if rank == 0 else ()
            steps.step(*given, **({"target": torch.zeros(8, 8)} if rank == ranks - 1 else {}))
            profiled.step()
    profiled.export_chrome_trace(f"{sys.argv[1]}/{name}/rank{rank}.json.gz")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_real_pipelines_are_read_with_their_stages_orders_and_steps(tmp_path: Path) -> None:
    for name in ("gpipe", "zero bubble"):
        (tmp_path / name).mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    torchrun(tmp_path, 2, tmp_path / "program.py", tmp_path, OMP_NUM_THREADS="1")
    plain, gpu = read_torch_traces(tmp_path / "gpipe")
    assert gpu == ""
    assert plain.full_s.shape == (2, 16, 1)
    assert [[i.name[0] for i in order] for order in plain.pipeline.orders] == [["f"] * 4 + ["b"] * 4] * 2
    split, _ = read_torch_traces(tmp_path / "zero bubble")
    assert split.pipeline.num_stages == 4
    assert [{i.stage for i in order} for order in split.pipeline.orders] == [{0, 2}, {1, 3}]
    assert {i.name for i in split.pipeline.instructions} == {"forward", "backward_input", "backward_weight"}
    told = pfo_fs("advise", tmp_path / "zero bubble")
    assert told.returncode == 0, told.stderr
    assert "2 steps of 1 pipeline" in told.stdout
    assert "timed on the host" in told.stderr


def event(cat: str, name: str, begin_us: float, took_us: float, stream: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin_us, "dur": took_us, "pid": 0, "tid": stream, "args": {}}


def recorded(rank: int, *names: str, on_gpu: bool = True, steps: int = 2, world: int = 4) -> dict[str, Any]:
    """What a rank writes: on a GPU, ranges are launched in 10 us, run for 1 ms each, and wait in a stream of NCCL."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": "Trace", "tid": 0}]
    for number, name in enumerate(names * steps):
        events.append(event("user_annotation", name, 1000.0 * number, 10.0, 99))
        if on_gpu:
            events.append(event("kernel", "gemm", 1000.0 * number, 900.0))
            events.append(event("kernel", "ncclDevKernel_SendRecv", 1000.0 * number, 9000.0, 20))
            events.append(event("gpu_user_annotation", name, 1000.0 * number, 1000.0))
            events.append(event("gpu_user_annotation", name, 1000.0 * number, 9000.0, 20))
    world_info = {"backend": "nccl", "rank": rank, "world_size": world}
    devices = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}] if on_gpu else []
    return {"schemaVersion": 1, "deviceProperties": devices, "distributedInfo": world_info, "traceEvents": events}


PLAIN = ("Forward 0", "Forward 1", "Backward 0", "Backward 1")


def written(folder: Path, *documents: dict[str, Any]) -> Path:
    for number, document in enumerate(documents):
        text = json.dumps(document).encode()
        path = folder / f"{number}.pt.trace.json"
        path.with_suffix(".json.gz").write_bytes(gzip.compress(text)) if number % 2 else path.write_bytes(text)
    return folder


def test_ranges_on_the_gpus_stream_of_work_count_and_ranks_of_a_stage_have_neighbouring_numbers(tmp_path: Path) -> None:
    """Two pipelines of two ranks whose ranges tell no stage; the files are not in the order of ranks."""
    trace, gpu = read_torch_traces(written(tmp_path, *(recorded(rank, *PLAIN) for rank in (3, 1, 0, 2))), 2)
    assert gpu == "NVIDIA A100-SXM4-80GB"
    assert trace.full_s.shape == (2, 8, 2)
    assert trace.full_s == pytest.approx(1e-3)


def test_what_ran_before_the_first_whole_step_is_left_out(tmp_path: Path) -> None:
    late = ("Backward 0", "Backward 1", *PLAIN, *PLAIN, "Forward 0")
    trace, _ = read_torch_traces(written(tmp_path, recorded(0, *late, steps=1, world=1)))
    assert len(trace.steps) == 2


@pytest.mark.parametrize(
    ("documents", "ranks", "words"),
    [
        ([], None, "holds 0 files"),
        ([{"events": []}], None, "is not a trace of torch.profiler"),
        ([{"traceEvents": [{"name": 7}]}], None, "is not a trace of torch.profiler"),
        ([{"traceEvents": [event("user_annotation", "Forward 0", 0.0, -1.0)]}], None, "lasts -1e-06 s"),
        ([recorded(0, "Optimizer.step")], None, 'record_function."Forward 0"'),
        ([{**recorded(0, *PLAIN, on_gpu=False), "deviceProperties": [{}]}], None, "add ProfilerActivity.CUDA"),
        ([recorded(0, *PLAIN)], None, "1 traces are not those of whole pipelines of 4 stages"),
        ([recorded(rank, *PLAIN) for rank in range(3)], 2, "3 traces are not those of whole pipelines of 2 stages"),
        ([recorded(0, "PP:0F0", "PP:0SEND_F0", "PP:0B0")], None, "whole pipelines of 2 stages"),
        ([recorded(0, "PP:1F0", "PP:1B0")], None, "whole pipelines of 2 stages"),
        ([recorded(0, *PLAIN), recorded(1, *PLAIN, on_gpu=False)], None, "recorded in different ways"),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, documents: list[dict[str, Any]], ranks: int | None, words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        read_torch_traces(written(tmp_path, *documents), ranks)


def test_lists_in_lists_without_end_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"traceEvents": [{"args": ' + "[" * 100_000 + "]" * 100_000 + "}]}")
    with pytest.raises(PlanError, match="is not a trace"):
        read_torch_traces(path)


def test_a_file_is_read_up_to_its_limit_also_if_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_traces, "_MOST_BYTES", 10_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_000))
    with pytest.raises(PlanError, match="larger than 10,000 bytes"):
        read_torch_traces(path)
