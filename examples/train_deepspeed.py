"""Train a small GPT with DeepSpeed's pipeline engine, at the clocks of a frequency plan.

    PFO_FS_GPU=simulated torchrun --nproc-per-node 2 examples/train_deepspeed.py --shared-dir ./pfo

Without `PFO_FS_GPU=simulated`, the program uses the GPUs that it finds; without any, it trains and no clock is touched.
The lines that concern pfo-fs are marked.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from torch import nn

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule

import pfo_fs  # pfo-fs

WIDTH, LENGTH, MICROBATCHES, BATCH = 64, 32, 8, 2


class Block(nn.TransformerEncoderLayer):
    """A block that sees earlier bytes only."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return super().forward(x, mask, is_causal=True)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, 256), targets.reshape(-1))


def microbatches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    text = torch.frombuffer(bytearray("\n\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    while True:
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=generator).tolist()
        rows = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        yield rows[:, :-1], rows[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared-dir", default=os.environ.get("PFO_FS_SHARED_DIR", "./pfo"))
    parser.add_argument("--iterations", type=int, default=20)
    args = parser.parse_args()

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at the start otherwise, for a minute
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    layers = [
        LayerSpec(nn.Embedding, 256, WIDTH),
        *[LayerSpec(Block) for _ in range(4)],
        LayerSpec(nn.Linear, WIDTH, 256),
    ]
    module = PipelineModule(layers, num_stages=int(os.environ["WORLD_SIZE"]), loss_fn=loss_of)
    settings = {"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": MICROBATCHES}
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    engine, *_ = deepspeed.initialize(model=module, config=settings, optimizer=optimizer)
    with pfo_fs.attach(engine, args.shared_dir, job_metadata="deepspeed-example"):  # pfo-fs
        data = microbatches()
        for _ in range(args.iterations):
            engine.train_batch(data)


if __name__ == "__main__":
    main()
