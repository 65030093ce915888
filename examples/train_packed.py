"""Train a small model on packed sequences of unequal lengths with DistributedDataParallel; clocks follow the lengths.

    PFO_FS_GPU=simulated torchrun --nproc-per-node 4 examples/train_packed.py --shared-dir /tmp/pfo
    torchrun --nproc-per-node 8 examples/train_packed.py --shared-dir /shared/pfo    # on GPUs: one process each

Each rank packs documents until a micro-batch is full, as loaders for long contexts do. All micro-batches have the same
number of tokens, but attention takes time by the squares of the documents' lengths: so ranks get unequal work in each
step, and wait for the one that has most. On simulated GPUs, a step takes as long as its work at the clock in force.
The lines that concern pfo-fs are marked.
"""

import argparse
import logging
import os
import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import pfo_fs  # pfo-fs

WIDTH, HEADS, WORDS, TOKENS, MICRO_BATCHES = 32, 2, 128, 512, 2


class Model(torch.nn.Module):
    """One layer over packed documents, each of which attends to itself only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        found = []
        for part in self.qkv(self.embed(tokens)).split(lengths):
            q, k, v = part.view(1, len(part), 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            found.append(
                scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(len(part), WIDTH)
            )
        return self.out(torch.cat(found))


def pack(drawn: random.Random) -> list[int]:
    """Returns the lengths of documents that fill a micro-batch."""
    left, lengths = TOKENS, []
    while left:
        lengths.append(min(left, max(8, round(drawn.lognormvariate(4.0, 1.2)))))
        left -= lengths[-1]
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", required=True)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    logging.basicConfig(format="%(message)s")
    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, drawn = dist.get_rank(), random.Random(dist.get_rank())
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = "cuda" if on_gpu else "cpu"
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [pack(drawn) for _ in range(MICRO_BATCHES)]

    with pfo_fs.LoadClocks(args.shared_dir, model=model) as clocks:  # pfo-fs
        kernels = clocks.simulated_kernels()
        for step in range(args.steps):
            coming = [pack(drawn) for _ in range(MICRO_BATCHES)]  # a loader has the next batches already
            loads = [[pfo_fs.loads.from_lengths(lengths) for lengths in each] for each in (batches, coming)]  # pfo-fs
            clocks.step(loads=loads[0], ahead=loads[1:])  # pfo-fs
            optimizer.zero_grad()
            for place, lengths in enumerate(batches):
                if kernels is not None:
                    kernels.stream.launch("forward_backward", work=0.5 + sum(n * n for n in lengths) / TOKENS**2)
                tokens = torch.randint(WORDS, (TOKENS,), device=device)
                # Gradients are reduced once in a step, so that ranks wait for each other once.
                with model.no_sync() if place < MICRO_BATCHES - 1 else nullcontext():
                    cross_entropy(model(tokens, lengths), tokens.roll(-1)).backward()
            if kernels is not None:
                kernels.stream.synchronize()  # as a GPU's gradients are there only then
                dist.barrier()
            optimizer.step()
            batches = coming
            if rank == 0 and step % 20 == 19:
                print(f"step {step + 1}: {clocks.status_text}", flush=True)  # pfo-fs
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
