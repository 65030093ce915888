"""One rank of a small DistributedDataParallel job with clocks from loads, for `test_load_clocks.py`.

    torchrun ... load_clocks_rank.py SHARED_DIR OPTIONS

`OPTIONS` is a JSON object: `steps`; `ahead`: how many steps' loads are given ahead; `dies_at`, `closes_at`: the step at
which rank 1 ends (in the first attempt), or closes; `none_at`: the step in which rank 1 gives no load; `too_few`: one
load too few; `without`: no `LoadClocks` at all; `unmarked`: nothing marks the end of a rank's work; `compiled`: the
watched module is compiled inside, and exported in the middle of a step; `reduces`: gradients are reduced in each
backward; `uneven`: rank 0 has most work in each step.
Leaves one JSON object in SHARED_DIR.RANK.json.
"""

import json
import os
import random
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from logged import warnings_of
from torch.nn.parallel import DistributedDataParallel

from pfo_fs import LoadClocks

WORK = 3
"""A micro-batch of load 1 takes so many times as long as a forward and a backward of the simulated GPU: long enough for
loads to explain the time of steps on a busy machine too."""


def loads_of(step: int, rank: int, count: int) -> list[float]:
    drawn = random.Random(f"{step} {rank}")
    return [drawn.uniform(0.4, 1.6) for _ in range(count)]


def main(rank: int, shared_dir: str, options: dict[str, Any]) -> dict[str, Any]:
    warnings = warnings_of()
    os.environ["PFO_FS_GPU"] = f"simulated:g{rank}"  # that of its earlier attempts
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    if "compiled" in options:
        inner.compile(backend="aot_eager", fullgraph=True)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count, ahead = 2, options.get("ahead", 0)
    watched = None if "unmarked" in options else inner if "compiled" in options else model
    clocks: Any = MagicMock(status_text="", **{"metrics.return_value": {}})  # does nothing
    if "without" not in options:
        clocks = LoadClocks(shared_dir, model=watched, **options.get("options", {}))
    kernels = clocks.simulated_kernels()
    for step in range(options["steps"]):
        if rank == 1 and step == options.get("dies_at") and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and step == options.get("closes_at"):
            clocks.close()
        work = [0.6 if rank else 1.6] * count if "uneven" in options else loads_of(step, rank, count)
        told = [work] if "uneven" in options else [loads_of(k, rank, count) for k in range(step, step + ahead + 1)]
        if "too_few" in options:
            told = [each[1:] for each in told]
        nothing = rank == 1 and step == options.get("none_at")
        clocks.step(loads=None if nothing else told[0], ahead=told[1:])
        optimizer.zero_grad()
        for place, amount in enumerate(work):
            torch.manual_seed(1000 * step + 10 * rank + place)
            is_last = place == count - 1 or "reduces" in options
            with nullcontext() if is_last else model.no_sync():
                kernels.stream.launch("forward", work=WORK * amount)
                loss = model(torch.randn(4, 16)).square().mean()
                kernels.stream.launch("backward", work=WORK * amount)
                loss.backward()
            if "compiled" in options and step == place == 1:
                torch.export.export(inner, (torch.randn(4, 16),))
        kernels.stream.synchronize()  # as the all-reduce of a GPU waits for the gradients
        dist.barrier()
        optimizer.step()
    result = {
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "warnings": warnings,
        "status": clocks.status_text,
        "metrics": clocks.metrics(),
    }
    clocks.close()
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    number = int(os.environ["RANK"])
    told = main(number, sys.argv[1], json.loads(sys.argv[2]))
    Path(f"{sys.argv[1]}.{number}.json").write_text(json.dumps(told))
