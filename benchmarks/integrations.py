"""What `pfo_fs.attach` costs a small model's step on CPU: steps with it and without it, in alternating blocks.

    python benchmarks/integrations.py
    python benchmarks/integrations.py --blocks 400 --width 256

Two ranks run 1F1B over gloo. In each pair, a block of steps runs with the schedule followed and one without, in random
order; a block counts with its fastest step, since other work on the machine only makes steps slower. A figure is the
median of the pairs' differences, and its 95 % interval comes from their ranks (as in the sign test), so that single
disturbances do not move it. Besides the time of a step there is the CPU time of the training thread, which hardly
depends on what else runs. GPUs are absent: what is measured is the Python of the callbacks.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence


def rank_main(args: argparse.Namespace) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    import pfo_fs

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    module = nn.Sequential(*[nn.Linear(args.width, args.width) for _ in range(4)])
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, args.microbatches, loss_fn=nn.functional.mse_loss)
    x = torch.randn(args.microbatches * 4, args.width)

    def step_s() -> tuple[float, float]:
        """The time of a step, of the rank that ends last, and this thread's CPU time, in s."""
        dist.barrier()
        began, cpu = time.perf_counter(), time.thread_time()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        cpu = time.thread_time() - cpu
        took = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        module.zero_grad()
        return float(took), cpu

    with pfo_fs.attach(schedule, args.shared_dir, coordination="local"):
        methods = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
        wraps = [(stage, name, vars(stage)[name]) for name in methods] + [(schedule, "step", vars(schedule)["step"])]
        loss_fn = schedule._loss_fn

        def block_s(followed: bool) -> list[float]:
            """The least of each figure over the steps of a block."""
            schedule._loss_fn = loss_fn if followed else nn.functional.mse_loss
            for thing, name, wrap in wraps:
                if followed:
                    setattr(thing, name, wrap)
                else:
                    vars(thing).pop(name, None)
            return list(map(min, zip(*(step_s() for _ in range(args.steps)), strict=True)))

        block_s(True)
        chance, followed, bare = random.Random(1), [], []
        for _ in range(args.blocks):
            for kind in chance.sample((followed, bare), 2):
                kind.append(block_s(kind is followed))
        block_s(True)
    if rank == 0:
        load = os.getloadavg()[0]
        print(f"{2 * args.microbatches} instructions, {args.blocks} pairs of {args.steps} steps, load {load:.1f}")
        for name, figure in (("step", 0), ("CPU time of the training thread", 1)):
            print(name, report([each[figure] for each in followed], [each[figure] for each in bare]))
    dist.destroy_process_group()


def report(followed_s: Sequence[float], bare_s: Sequence[float]) -> str:
    """The median of the paired differences, and its 95 % interval by their ranks."""
    differences_s = sorted(a - b for a, b in zip(followed_s, bare_s, strict=True))
    count = len(differences_s)
    outside = max(0, int((count - 1.96 * count**0.5) / 2))  # the binomial distribution as a normal one
    middle, low, high = statistics.median(differences_s), differences_s[outside], differences_s[-1 - outside]
    usual_s = statistics.median(bare_s)
    return (
        f"without: {1e3 * usual_s:.2f} ms; with: {1e6 * middle:+.0f} us [{1e6 * low:+.0f}, {1e6 * high:+.0f}], "
        f"{middle / usual_s:+.2%} [{low / usual_s:+.2%}, {high / usual_s:+.2%}]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=5, help="in a block")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--shared-dir", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2"}
        environment |= {"PFO_FS_RUN_DIR": folder, "PFO_FS_SCHEDULER": "Manual"}
        command = [sys.executable, __file__, *sys.argv[1:], "--shared-dir", f"{folder}/pfo"]
        ranks = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in (0, 1)
        ]
        codes = [rank.wait(timeout=600) for rank in ranks]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
