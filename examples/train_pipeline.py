"""Train a small GPT with torch.distributed.pipelining (1F1B), one rank per stage, at the clocks of a frequency plan.

    PFO_FS_GPU=simulated torchrun --nproc-per-node 4 examples/train_pipeline.py

It ends when pfo-fs has measured a plan that stays, or after `--iterations`, and says what the plan saves. Without
`PFO_FS_GPU=simulated`, it uses the GPUs that it finds; without any, it trains, and no clock is touched.
"""

import argparse
import os
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import pfo_fs
from pfo_fs.store import Files, SharedDirectory, bodies

WIDTH, LENGTH, BATCH = 64, 32, 2


class Block(nn.TransformerEncoderLayer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return super().forward(x, mask, is_causal=True)  # a byte sees earlier ones only


def verdict(shared_dir: str, job_id: str | None) -> str:
    """What `pfo-fs status` says of a plan that stays. For this example only: training need not read the directory."""
    current = SharedDirectory(Files(shared_dir)).job(job_id).read(bodies.CurrentBody) if job_id else None
    return current.status_text if current is not None and current.converged else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", default=os.environ.get("PFO_FS_SHARED_DIR", "./pfo"))
    parser.add_argument("--iterations", type=int, help="train for so many, whatever is measured meanwhile")
    parser.add_argument("--num-microbatches", type=int, default=8)
    parser.add_argument("--stop-file", default="", help="end when this file is there")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    block = Block(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    first, head = [nn.Embedding(256, WIDTH)] * (rank == 0), [nn.Linear(WIDTH, 256)] * (rank == last)
    module = nn.Sequential(*first, block, *head).to(device)
    stage = PipelineStage(module, rank, last + 1, device)
    schedule = Schedule1F1B(stage, args.num_microbatches, loss_fn=lambda y, t: nn.functional.cross_entropy(y.mT, t))
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray("".join(topics.values()).encode()), dtype=torch.uint8).long().to(device)
    places = torch.arange(args.num_microbatches * BATCH)[:, None] * 997 + torch.arange(LENGTH + 1)
    with pfo_fs.attach(schedule, args.shared_dir, profile_steps=3) as pfo:  # pfo-fs
        opt, found, stop, iteration = pfo.optimizer, "", torch.zeros(1, device=device), 0
        while not stop:
            began, losses, batch = time.perf_counter(), [], text[(places + iteration * LENGTH) % len(text)]
            schedule.step(*[batch[:, :-1]] * (rank == 0), target=batch[:, 1:], losses=losses)
            optimizer.step()
            optimizer.zero_grad()
            if losses:
                loss, took_s = torch.stack(losses).mean(), time.perf_counter() - began
                print(f"iteration {iteration:4d}  loss {loss:.3f}  {took_s:.3f} s  schedule {opt.schedule_number}")
            iteration += 1
            if rank == 0:
                found = "" if args.iterations else verdict(args.shared_dir, opt.job_id)
                stop.fill_(bool(found) or iteration == args.iterations or os.path.exists(args.stop_file))
            dist.broadcast(stop, 0)  # all ranks end after the same iteration
    if found:
        print(f"pfo-fs: {found}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
