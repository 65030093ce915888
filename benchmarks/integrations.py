"""What `pfo_fs.attach` costs a small model's step on CPU: steps with it and without it, in pairs.

    python benchmarks/integrations.py
    python benchmarks/integrations.py --pairs 400 --width 256

Two ranks run 1F1B over gloo. In each pair one step runs with the schedule followed and one without, in random order,
each after a barrier; the figure is the mean difference with its standard error, of the rank that ends last. GPUs are
absent: what is measured is the Python of the callbacks.
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
from typing import Any


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

    def run(step: Any) -> float:
        dist.barrier()
        began = time.perf_counter()
        if rank == 0:
            step(x)
        else:
            step(target=x)
        took = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        module.zero_grad()
        return float(took)

    methods = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
    with pfo_fs.attach(schedule, args.shared_dir):
        wraps = [(stage, name, vars(stage)[name]) for name in methods] + [(schedule, "step", vars(schedule)["step"])]

        def follow(followed: bool) -> None:
            for thing, name, wrap in wraps:
                if followed:
                    setattr(thing, name, wrap)
                else:
                    vars(thing).pop(name, None)

        chance, followed_s, bare_s = random.Random(1), [], []
        for number in range(args.pairs + 20):
            order = [True, False] if chance.random() < 0.5 else [False, True]
            took = {}
            for followed in order:
                follow(followed)
                took[followed] = run(schedule.step)
            if number >= 20:
                followed_s.append(took[True])
                bare_s.append(took[False])
        follow(True)
    if rank == 0:
        differences = [1e3 * (a - b) for a, b in zip(followed_s, bare_s, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        calls = 2 * args.microbatches
        print(
            f"step without: {1e3 * statistics.median(bare_s):.2f} ms (median); with: "
            f"{statistics.fmean(differences):+.3f} +- {error:.3f} ms, {calls} instructions, {len(differences)} pairs; "
            f"median difference {statistics.median(differences):+.3f} ms"
        )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--shared-dir", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2"}
        environment |= {"PFO_FS_RUN_DIR": folder, "PFO_FS_COORDINATION": "local"}
        command = [sys.executable, __file__, *sys.argv[1:], "--shared-dir", f"{folder}/pfo"]
        ranks = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in (0, 1)
        ]
        codes = [rank.wait(timeout=600) for rank in ranks]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
