"""Trains a small language model with the Hugging Face Trainer, which finds the best power limit on the way.

    PFO_FS_GPU=simulated python examples/train_hf.py
    torchrun --nproc-per-node 2 examples/train_hf.py        # on GPUs: one process for each

What belongs to pfo-fs are the lines marked `# pfo-fs`. The model really trains, on a few kilobytes of text that Python
brings along. On simulated GPUs, each step also takes as long, and as much power, as a forward and a backward of a large
model would at the power limit in force.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer  # pfo-fs
from pfo_fs.power_limit import (  # pfo-fs
    EnergyMonitor,
    MaxSlowdownConstraint,
)


class Text(torch.utils.data.Dataset):
    """Bytes of text in samples of equal length."""

    def __init__(self, length: int, samples: int) -> None:
        text = "\n\n".join(topics.values()).encode()
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.length, self.samples = length, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin = index * 997 % (len(self.tokens) - self.length)
        tokens = self.tokens[begin : begin + self.length]
        return {"input_ids": tokens, "labels": tokens}


class SimulatedWork(TrainerCallback):
    """Does on the simulated GPU what a real one would have done during the step."""

    def __init__(self, kernels) -> None:  # type: ignore[no-untyped-def]
        self.kernels = kernels

    def on_step_end(self, *_args: object, **_kwargs: object) -> None:
        self.kernels.run("forward")
        self.kernels.run("backward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--factor", type=float, default=1.05, help="how much longer a step may take then")
    parser.add_argument("--pl-step", type=int, default=50, help="watts between two limits")
    parser.add_argument("--warmup-steps", type=int, default=2, help="10 on real GPUs")
    parser.add_argument("--profile-steps", type=int, default=10, help="40 on real GPUs")
    parser.add_argument("--search", choices=["full", "coarse-to-fine"], default="full")
    parser.add_argument("--time-scale", type=float, default=10, help="how many times faster simulated GPUs are")
    parser.add_argument("--profile-path", type=Path, help="power limits measured before, or to be written")
    args = parser.parse_args()

    logging.basicConfig(format="%(message)s")
    logging.getLogger("pfo_fs").setLevel(logging.INFO)  # says at which limit it is
    torch.set_num_threads(1)  # a model this small gains nothing from more
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(  # sets up torch.distributed, so it comes first
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=4,
            learning_rate=3e-3,
            logging_steps=50,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        monitor = EnergyMonitor()  # pfo-fs
        callback = HFGlobalPowerLimitOptimizer(  # pfo-fs
            monitor,
            MaxSlowdownConstraint(args.factor),
            warmup_steps=args.warmup_steps,
            profile_steps=args.profile_steps,
            pl_step=args.pl_step,
            profile_path=args.profile_path,
            search=args.search,
        )
        kernels = monitor.simulated_kernels(time_scale=args.time_scale)
        callbacks = [callback, SimulatedWork(kernels)] if kernels else [callback]
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
        )
        samples = Text(length=64, samples=4 * args.steps)
        Trainer(model=model, args=arguments, train_dataset=samples, callbacks=callbacks).train()
        for m in sorted(callback.optimizer.measurements, key=lambda m: -m.power_limit):
            print(f"{m.power_limit:4d} W  {m.time / args.profile_steps:7.4f} s  {m.energy / args.profile_steps:8.2f} J")
        print(callback.optimizer.state)


if __name__ == "__main__":
    main()
