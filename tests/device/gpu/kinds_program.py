"""One of two ranks that use all there is on GPUs of one kind after the other, for `test_kinds.py`.

    torchrun ... kinds_program.py FOLDER KIND ...

A kind that ends with `-` may not be set. Rank 0 leaves FOLDER/said.json, a JSON object: of each kind its warnings in
each part, and what `pfo-fs doctor` has found.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from fake_nvml import UUIDS
from logged import warnings_of
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import pfo_fs
from pfo_fs.doctor.checks import check_node
from pfo_fs.power_limit import GlobalPowerLimitOptimizer

STEPS = 40


def pipeline(folder: str) -> None:
    rank = dist.get_rank()
    stage = PipelineStage(torch.nn.Linear(8, 8), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    with pfo_fs.attach(schedule, folder):
        for _ in range(STEPS):
            schedule.step(*(torch.ones(4, 8),) * (rank == 0), **{"target": torch.ones(4, 8)} if rank else {})
            time.sleep(0.01)


def power_limits(_: str) -> None:
    with GlobalPowerLimitOptimizer(warmup_steps=1, profile_steps=10, pl_step=400) as optimizer:
        for _ in range(STEPS):
            optimizer.on_step_begin()
            time.sleep(0.03)
            optimizer.on_step_end()


def loads(folder: str) -> None:
    with pfo_fs.LoadClocks(folder, clock_backend="power-cap") as clocks:
        for step in range(STEPS):
            clocks.step(loads=[1.0 + step % 3])
            time.sleep(0.01)
            clocks.work_ended()
            dist.barrier()  # ranks of a training wait for each other in each step


def main(folder: Path, kinds: list[str]) -> None:
    dist.init_process_group("gloo")
    os.environ["PFO_FS_GPU"] = f"nvml:{UUIDS[dist.get_rank()]}"
    library, said, told = ctypes.CDLL("libnvidia-ml.so.1"), {}, warnings_of()
    for kind in kinds:
        os.environ["MOCK_NVML_MAY_SET"] = str(int(not kind.endswith("-")))
        if dist.get_rank() == 0:
            library.mock_host(kind.rstrip("-").encode())
            (folder / kind).mkdir()
        dist.barrier()
        of_kind: dict[str, object] = {}
        for part in (pipeline, power_limits, loads):
            told.clear()
            part(str(folder / kind / part.__name__))
            of_kind[part.__name__] = told[:]
        if dist.get_rank() == 0:
            of_kind["doctor"] = {check.name.strip(): (check.ok, check.found) for check in check_node(1)}
        said[kind] = of_kind
        dist.barrier()
    if dist.get_rank() == 0:
        (folder / "said.json").write_text(json.dumps(said))
    dist.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2:])
