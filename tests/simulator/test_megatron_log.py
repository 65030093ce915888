"""Durations from the output of a training with Megatron-LM, in the form that it prints."""

from pathlib import Path

import pytest
from commands import pfo_fs

from pfo_fs.errors import PlanError
from pfo_fs.simulator.advice import advise
from pfo_fs.simulator.megatron_log import read_megatron_log

ARGUMENTS = {
    "data_parallel_size": 2,
    "global_batch_size": 32,
    "micro_batch_size": 2,
    "pipeline_model_parallel_size": 4,
    "tensor_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None,
    "world_size": 16,
}


def output(steps: int = 3, long: float = 1.3, prefix: str = "", **given: object) -> str:
    """Forwards of 20 ms and backwards of 40 ms of 8 micro-batches; the last stage takes `long` times as long."""
    arguments = {**ARGUMENTS, **given}
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    ranks = range(int(str(arguments["world_size"])))
    for step in range(steps):
        lines.append(f" iteration {step:8d}/ 100 | elapsed time per iteration (ms): 815.4 | lm loss: 1.05E+01 |")
        lines.append("times across ranks (ms):")
        for name, of_one_ms in ("forward-backward", 90), ("forward-compute", 20), ("backward-compute", 40):
            times_ms = (8 * of_one_ms * (long if rank >= 12 else 1) * (1 if step else 9) for rank in ranks)
            lines += [f"  {name}:", *(f"     rank {rank:2d}: {ms:.2f}" for rank, ms in enumerate(times_ms))]
    return "\n".join(["------ arguments ------", *(prefix + line for line in lines)]) + "\n"


def written(folder: Path, text: str) -> Path:
    (folder / "train.log").write_text(text)
    return folder / "train.log"


@pytest.mark.parametrize("prefix", ["", "[default7]:", "7: "], ids=["plain", "torchrun", "srun"])
def test_stages_micro_batches_and_durations_are_those_of_its_arguments_and_timers(tmp_path: Path, prefix: str) -> None:
    pipeline, full_s = read_megatron_log(written(tmp_path, output(prefix=prefix)))
    assert (pipeline.num_stages, pipeline.num_microbatches, full_s.shape) == (4, 8, (2, 64, 4))
    by_name = {
        (one.stage, one.name): time_s for one, time_s in zip(pipeline.instructions, full_s[0, :, 0], strict=True)
    }
    assert by_name[0, "forward"] == pytest.approx(0.02)
    assert by_name[3, "backward"] == pytest.approx(0.052)


def test_advice_from_a_log_names_unequal_stages_and_that_timers_tell_means(tmp_path: Path) -> None:
    told = pfo_fs("advise", written(tmp_path, output(global_batch_size=16)), "--gpu", "A100")
    assert "unequal stages" in told.stdout, told.stderr
    assert "timers tell means" in told.stderr


@pytest.mark.slow
def test_there_is_little_to_save_in_a_balanced_job_with_many_micro_batches_and_virtual_stages(tmp_path: Path) -> None:
    shape = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 8, "global_batch_size": 768}
    text = output(long=1.0, world_size=4, tensor_model_parallel_size=1, **shape)
    pipeline, full_s = read_megatron_log(written(tmp_path, text))
    assert (pipeline.num_stages, len(pipeline.orders), len(pipeline.instructions)) == (16, 2, 6144)
    assert advise(pipeline, full_s, "A100").most <= 0.02


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  backward-compute:\n     rank  0: 1.00\n",
        output(world_size=0),
        output(steps=0),
        output().replace("rank 15", "rank 99"),
        output().replace(": 160.00", ": 0.00"),
        output(pipeline_model_parallel_size=3),
        output(micro_batch_size=0),
        output(global_batch_size=999_999_999),
        output().replace("world_size", "size"),
    ],
)
def test_a_log_that_lacks_something_is_refused_in_plain_words(tmp_path: Path, text: str) -> None:
    with pytest.raises(PlanError, match=r"--timing-log-level 2|no pipelines of at most"):
        read_megatron_log(written(tmp_path, text))
