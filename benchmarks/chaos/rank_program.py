"""One rank of a slow episode: `PFOFileOptimizer` around steps of a few milliseconds, without torch.

    python -m benchmarks.chaos.rank_program JSON

The ranks exchange values and meet at each step over a socket to rank 0, in place of `torch.distributed`. Each step is a
line in the rank's log: the step, the number of the schedule in force, and that of the schedule that is measured (-1:
the clocks are at their default). If the other rank is gone, this rank ends with status 1, as after an error of NCCL.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, TextIO

from pfo_fs import LoadClocks, PFOFileOptimizer
from pfo_fs.ipc.collectives import Collectives


class BothRanks(Collectives):
    """The collectives of two ranks, or of one, over a socket."""

    def __init__(self, rank: int, world_size: int, path: str) -> None:
        super().__init__(rank, world_size, None)
        self._other: Any = None
        if world_size == 2 and rank == 0:
            with Listener(path) as listener:
                self._other = listener.accept()
        elif world_size == 2:
            while self._other is None:
                try:
                    self._other = Client(path)
                except (FileNotFoundError, ConnectionRefusedError):
                    time.sleep(0.02)

    def all_gather(self, value: Any) -> list[Any]:
        """See `Collectives`; the other calls are made of this one."""
        if self._other is None:
            return [value]
        self._other.send(value)
        theirs = self._other.recv()
        return [value, theirs] if self.rank == 0 else [theirs, value]

    def from_rank_0(self, value: Any) -> Any:
        return self.all_gather(value)[0]

    def gather_to_rank_0(self, value: Any) -> list[Any]:
        found = self.all_gather(value)
        return found if self.rank == 0 else []


def main() -> None:
    """Trains until the file `stop` is there, on both ranks up to the same step."""
    given = json.loads(sys.argv[1])
    rank, size = given["rank"], given["world_size"]
    folder = Path(given["folder"])
    ranks = BothRanks(rank, size, str(folder / "ranks.socket"))
    Collectives.of_job = classmethod(lambda cls, rank, world_size: ranks)  # type: ignore[assignment,method-assign]
    with (folder / f"rank{rank}.log").open("w", buffering=1) as log:
        if given["loads"]:
            clocks = LoadClocks(
                folder / "disk" / "pfo",
                rank=rank,
                world_size=size,
                dp_rank=rank,
                dp_degree=size,
                coordination=given["coordination"],
            )
            train_by_loads(clocks, ranks, folder, log)
            return
        opt = PFOFileOptimizer(
            folder / "disk" / "pfo",
            rank=rank,
            world_size=size,
            pp_degree=size,
            coordination=given["coordination"],
            profile_steps=2,
        )
        log.write(json.dumps({"job_id": opt.job_id, "coordination": opt.coordination}) + "\n")
        with opt:
            while True:
                opt.on_step_begin()
                for name in ("forward", "backward"):
                    opt.on_instruction_begin(name)
                    time.sleep(0.01)
                    opt.on_instruction_end(name)
                opt.on_step_end()
                log.write(json.dumps([opt.step, opt.schedule_number, opt._switcher.measured_number]) + "\n")
                if any(ranks.all_gather(os.path.exists(folder / "stop"))):
                    break


def train_by_loads(clocks: LoadClocks, ranks: BothRanks, folder: Path, log: TextIO) -> None:
    """Trains in steps in which the ranks in turn have more work."""
    opt = clocks.optimizer
    log.write(json.dumps({"job_id": opt.job_id, "coordination": opt.coordination}) + "\n")
    with clocks:
        step = 0
        while True:
            work = 1 + 3 * ((step + ranks.rank) % 2)
            clocks.step(loads=[work])
            time.sleep(0.05 * work)
            clocks.work_ended()
            log.write(json.dumps([step, -1, -1]) + "\n")
            step += 1
            if any(ranks.all_gather(os.path.exists(folder / "stop"))):
                break


if __name__ == "__main__":
    main()
