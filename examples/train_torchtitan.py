"""Train with torchtitan's trainer, at the clocks of a frequency plan: torchtitan's own `train.py` with two more lines.

    torchrun --nproc-per-node 8 examples/train_torchtitan.py --module llama3 --config llama3_8b \\
        --parallelism.pipeline_parallel_degree 8

torchtitan needs GPUs and the version of torch that it was made for. The lines that concern pfo-fs are marked.
"""

from __future__ import annotations

import os

import torch
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger

import pfo_fs  # pfo-fs


def main() -> None:
    init_logger()
    trainer = ConfigManager().parse_args().build()
    try:
        with pfo_fs.attach(trainer, os.environ.get("PFO_FS_SHARED_DIR", "./pfo")):  # pfo-fs
            trainer.train()
    finally:
        trainer.close()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
