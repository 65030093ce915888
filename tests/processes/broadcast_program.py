"""What each rank of a broadcaster's test runs under torchrun: steps of 20 ms, and one JSON line per event.

The test gives one JSON object: `steps`; `offers`: {step: text} of rank 0; `fails`: the rank and step of a failure of
one exchange, if any.
"""

import json
import sys
import time
from typing import Any

import torch.distributed as dist

from pfo_fs.training.schedule_broadcaster import ScheduleBroadcaster


class FailedWork:
    """A collective that has ended with an error."""

    def wait(self, timeout: Any) -> bool:
        raise RuntimeError("as asked")

    def is_completed(self) -> bool:
        return True


def main() -> None:
    given = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def say(**fields: Any) -> None:
        # A file of its own: long lines that several processes write to one pipe mix.
        with open(f"{given['results']}/{rank}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"rank": rank, **fields}) + "\n")

    broadcaster = ScheduleBroadcaster(rank)
    broadcaster.send_first(b"first" if rank == 0 else None)
    say(first=(broadcaster.step_begin(0, None) or b"").decode())
    lost = False
    for step in range(given["steps"]):
        if rank == 0 and str(step) in given["offers"]:
            broadcaster.offer(given["offers"][str(step)].encode())
        if given.get("fails") == [rank, step]:
            broadcaster._phase, broadcaster._at_step, broadcaster._work = "header", step, FailedWork()
        packet = broadcaster.step_begin(step, 0.3)
        if packet is not None:
            say(step=step, packet=packet.decode())
        if broadcaster.lost and not lost:
            lost = True
            say(step=step, lost=True)
        time.sleep(0.02)
        dist.barrier()
    broadcaster.close()
    dist.destroy_process_group()
    say(done=True)


main()
