"""Train a small GPT over a pipeline with torch.distributed.pipelining (1F1B), at the clocks of a frequency plan.

    torchrun --nproc-per-node 8 examples/train_pipeline.py --shared-dir /shared/pfo

One rank per stage; gloo on CPU, NCCL on CUDA. The text is the reference documentation that comes with every CPython.
With `PFO_FS_GPU=simulated` each rank has a simulated A100 whose time and energy follow its clock; without a GPU at
all the training runs just the same and no clock is touched.

The line that makes the training follow frequency schedules is marked.
"""

from __future__ import annotations

import argparse
import os
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

import pfo_fs  # pfo-fs

VOCABULARY = 256  # bytes


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Embedding(nn.Module):
    """Bytes and their places."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))


def make_stage(stage: int, stages: int, args: argparse.Namespace) -> nn.Module:
    """The layers of one stage: its share of the blocks, the embedding on the first, the head on the last."""
    torch.manual_seed(stage)
    layers: list[nn.Module] = [Block(args.width, 4) for _ in range(args.layers_per_stage)]
    if stage == 0:
        layers.insert(0, Embedding(args.width, args.length))
    if stage == stages - 1:
        layers += [nn.LayerNorm(args.width), nn.Linear(args.width, VOCABULARY)]
    return nn.Sequential(*layers)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", default=os.environ.get("PFO_FS_SHARED_DIR", "./pfo"))
    parser.add_argument("--coordination", default="auto", choices=["auto", "daemon", "local"])
    parser.add_argument("--plan", help="a plan (lowtime's .py, or YAML) for this job's own scheduler to follow")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--stop-file", help="end when this file is there, all ranks after the same iteration")
    parser.add_argument("--profile-steps", type=int, default=5)
    parser.add_argument("--num-microbatches", type=int, default=12)
    parser.add_argument("--microbatch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=32, help="bytes in a sample")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers-per-stage", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (stages,), mesh_dim_names=("pp",))

    module = make_stage(rank, stages, args).to(device)
    stage = PipelineStage(module, rank, stages, device, group=mesh.get_group("pp"))
    pipeline = Schedule1F1B(stage, args.num_microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)

    text = torch.frombuffer(bytearray("\n\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    samples = args.num_microbatches * args.microbatch_size
    generator = torch.Generator().manual_seed(1)

    scheduler = {"scheduler": "PointSolution3D", "scheduler_args": {"solution_path": args.plan}} if args.plan else {}
    with pfo_fs.attach(  # pfo-fs
        pipeline,
        args.shared_dir,
        coordination=args.coordination,
        profile_steps=args.profile_steps,
        job_metadata="gpt-example",
        **scheduler,
    ) as pfo:
        opt = pfo.optimizer
        if rank == 0:
            print(f"pfo-fs: job {opt.job_id} in {args.shared_dir}, scheduled by: {opt.coordination}", flush=True)
        for iteration in range(args.iterations):
            starts = torch.randint(len(text) - args.length - 1, (samples,), generator=generator)
            batch = torch.stack([text[start : start + args.length + 1] for start in starts.tolist()]).to(device)
            began = time.perf_counter()
            losses: list[torch.Tensor] = []
            if rank == 0:
                pipeline.step(batch[:, :-1])
            elif rank == stages - 1:
                pipeline.step(target=batch[:, 1:], losses=losses)
            else:
                pipeline.step()
            stop = torch.tensor(bool(args.stop_file) and os.path.exists(args.stop_file), device=device)
            dist.all_reduce(stop, dist.ReduceOp.MAX)  # in place of the gradients' all-reduce: ranks go on together
            optimizer.step()
            optimizer.zero_grad()
            if rank == stages - 1:
                loss = torch.stack(losses).mean().item()
                took = time.perf_counter() - began
                print(
                    f"iteration {iteration:4d}  loss {loss:.3f}  {took:.3f} s  schedule {opt.schedule_number}",
                    flush=True,
                )
            if stop.item():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
