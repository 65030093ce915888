"""One rank of a small gloo job, for `test_power_limit_ranks.py`: its monitor says numbers that depend on the rank.

    python power_limit_rank.py RANK WORLD_SIZE STORE SCENARIOS

`SCENARIOS` is a JSON object: by name, the optimizer's options; `env` has environment variables by rank, `dies_at` is
the step at which rank 1 ends, `diverges_at` the one at which an epoch ends for rank 1 alone. Prints one JSON object by
scenario: state, measurements, what went wrong.
"""

import json
import os
import sys
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from logged import warnings_of
from power_limit_fakes import FakeMonitor

from pfo_fs.errors import PfoError
from pfo_fs.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint, ranks


def run(name: str, rank: int, options: dict[str, Any]) -> dict[str, Any]:
    dies_at = options.pop("dies_at", None)
    diverges_at = options.pop("diverges_at", None)
    destroys_at = options.pop("destroys_at", None)
    if "factor" in options:
        options["optimum_selector"] = MaxSlowdownConstraint(options.pop("factor"))
    measured: list[int] = []

    def numbers() -> tuple[float, float]:
        level = getattr(optimizer.state, "current_power_limit", 500)
        measured.append(level)
        below = (500 - level) / 100
        return 10.0 + below + rank, 10_000.0 * (rank + 1) - 2_000 * below

    warnings = warnings_of()
    result: dict[str, Any] = {}
    environment = options.pop("env", {}).get(str(rank), {})
    ranks._WAIT_S = options.pop("wait_s", 60.0)
    try:
        with patch.dict(os.environ, {"PFO_FS_GPU": f"simulated:{name}{rank}", **environment}):
            optimizer = GlobalPowerLimitOptimizer(FakeMonitor(numbers), **options)
        result["selector"] = repr(optimizer.optimum_selector)
        for step in range(60):
            if step == dies_at and rank == 1:
                os._exit(9)
            if step == destroys_at:
                dist.destroy_process_group()
            if diverges_at is not None:
                dist.barrier()  # as gradients would
                if step == diverges_at and rank == 1:
                    optimizer.on_epoch_end()
            optimizer.on_step_begin()
            if step == 5:
                optimizer.on_epoch_end()
        result["state"] = repr(optimizer.state)
        result["measurements"] = [m.model_dump() for m in optimizer.measurements]
        result["measured"] = len(measured)
        optimizer.close()
    except PfoError as error:
        result["error"] = f"{type(error).__name__}: {error}"
    return {**result, "warnings": warnings[:]}


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size)
    print(json.dumps({name: run(name, rank, options) for name, options in json.loads(sys.argv[4]).items()}), flush=True)
    os._exit(0)  # no goodbye to a rank that has died


if __name__ == "__main__":
    main()
