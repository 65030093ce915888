"""One rank of a small gloo job, for `test_power_limit_ranks.py`: its monitor says numbers that depend on the rank.

    python power_limit_rank.py RANK WORLD_SIZE STORE OPTIONS

Prints one JSON object: state, measurements, and what went wrong.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist
from power_limit_fakes import FakeMonitor

from pfo_fs.errors import PfoError
from pfo_fs.power_limit import Done, GlobalPowerLimitOptimizer, MaxSlowdownConstraint, Off

warnings: list[str] = []


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warnings.append(record.getMessage())


def main() -> None:
    rank, size, store, options = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    logging.getLogger("pfo_fs").addHandler(Keep(logging.WARNING))
    os.environ["PFO_FS_GPU"] = f"simulated:gpu{rank}"
    os.environ.update(options.pop("env", {}).get(str(rank), {}))
    dies_at = options.pop("dies_at", None)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(0, 60))
    if "selector_factor" in options:
        options["optimum_selector"] = MaxSlowdownConstraint(options.pop("selector_factor"))
    windows = iter(range(100))

    def numbers() -> tuple[float, float]:
        window = next(windows)  # 500, 400, ... W
        return 10.0 + window + rank, 100.0 * (rank + 1) + 10 * window

    result: dict[str, object] = {"rank": rank}
    try:
        optimizer = GlobalPowerLimitOptimizer(FakeMonitor(numbers), **options)
        result["selector"] = repr(optimizer.optimum_selector)
        for step in range(40):
            if step == dies_at and rank == 1:
                os._exit(9)
            optimizer.on_step_begin()
            if step == 5:
                optimizer.on_epoch_end()
        result["state"] = repr(optimizer.state)
        assert isinstance(optimizer.state, Done | Off)
        result["measurements"] = [m.model_dump() for m in optimizer.measurements]
        result["measured"] = next(windows)
        optimizer.close()
    except PfoError as error:
        result["error"] = f"{type(error).__name__}: {error}"
    result["warnings"] = warnings
    print(json.dumps(result), flush=True)
    if dies_at is None:
        dist.barrier()
        dist.destroy_process_group()
    else:
        time.sleep(0.1)
        os._exit(0)


if __name__ == "__main__":
    main()
