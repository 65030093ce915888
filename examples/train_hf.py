"""Train a small GPT-2 with the Hugging Face Trainer, which finds the best power limit on the way.

    PFO_FS_GPU=simulated python examples/train_hf.py
    torchrun --nproc-per-node 2 examples/train_hf.py        # on GPUs: one process for each

On simulated GPUs, each step also takes as long, and as much power, as a forward and a backward of a large model would
at the power limit in force. The lines that concern pfo-fs are marked.
"""

import argparse
import logging
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer  # pfo-fs
from pfo_fs.power_limit import EnergyMonitor, MaxSlowdownConstraint  # pfo-fs

LENGTH, BATCH = 64, 4


class SimulatedWork(TrainerCallback):
    """Does on the simulated GPU what a real one would have done during the step."""

    def __init__(self, kernels: Any) -> None:
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
    parser.add_argument("--profile-path", type=Path, help="power limits measured before, or to be written")
    args = parser.parse_args()

    logging.basicConfig(format="%(message)s")
    logging.getLogger("pfo_fs").setLevel(logging.INFO)  # says at which limit it is
    torch.set_num_threads(1)  # a model this small gains nothing from more
    text = torch.frombuffer(bytearray("".join(topics.values()).encode()), dtype=torch.uint8).long()
    samples = [{"input_ids": row, "labels": row} for row in text[: BATCH * args.steps * LENGTH].view(-1, LENGTH)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(  # sets up torch.distributed, so it comes first
            output_dir=folder, max_steps=args.steps, per_device_train_batch_size=BATCH, learning_rate=3e-3,
            logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        trainer = Trainer(model=model, args=arguments, train_dataset=samples)
        monitor = EnergyMonitor()  # pfo-fs
        callback = HFGlobalPowerLimitOptimizer(  # pfo-fs
            monitor,
            MaxSlowdownConstraint(args.factor),
            warmup_steps=args.warmup_steps,
            profile_steps=args.profile_steps,
            pl_step=args.pl_step,
            profile_path=args.profile_path,
        ).attach(trainer)
        kernels = monitor.simulated_kernels(time_scale=10)
        if kernels is not None:
            trainer.add_callback(SimulatedWork(kernels))
        trainer.train()
    for m in sorted(callback.optimizer.measurements, key=lambda m: -m.power_limit):
        print(f"{m.power_limit:4d} W  {m.time / args.profile_steps:7.4f} s  {m.energy / args.profile_steps:8.2f} J")
    print(callback.optimizer.state)


if __name__ == "__main__":
    main()
