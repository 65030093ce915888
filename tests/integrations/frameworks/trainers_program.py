"""One rank that trains without a pipeline and finds a power limit with the others; tells what its GPU was set to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recording import run_cases

from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer
from pfo_fs.integrations.torch_loop import power_limit_loop
from pfo_fs.power_limit import EnergyMonitor, MaxSlowdownConstraint

OPTIONS: dict[str, Any] = {"warmup_steps": 1, "profile_steps": 3, "pl_step": 200}


class Line(torch.nn.Module):
    """A model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


def train_with_accelerate(monitor: EnergyMonitor, work: Any) -> Any:
    """60 batches, three for each optimizer step."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model = Line()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with power_limit_loop(optimizer, monitor=monitor, optimum_selector=MaxSlowdownConstraint(1.3), **OPTIONS) as opt:
        for _ in range(60):
            with accelerator.accumulate(model):
                work()
                accelerator.backward(model(torch.ones(1, 2), torch.ones(1, 1))["loss"])
                optimizer.step()
                optimizer.zero_grad()
    return opt


def train_with_the_trainer(monitor: EnergyMonitor, work: Any) -> Any:
    """20 steps of the Hugging Face Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Work(TrainerCallback):
        def on_step_end(self, *_args: Any, **_options: Any) -> None:
            work()

    arguments = TrainingArguments(
        output_dir=os.environ["PFO_FS_SHARED_DIR"], per_device_train_batch_size=1, num_train_epochs=1, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 20 * dist.get_world_size()
    trainer = Trainer(model=Line(), args=arguments, train_dataset=data, callbacks=[Work()])
    with HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.3), **OPTIONS).attach(trainer) as callback:
        trainer.train()
    return callback.optimizer


def run_case(trainer: str) -> dict[str, Any]:
    """Trains; returns the limits that this rank's GPU was given, and the choice."""
    monitor = EnergyMonitor()
    kernels = monitor.simulated_kernels(time_scale=20)
    assert kernels is not None
    rank = dist.get_rank()
    train = {"accelerate": train_with_accelerate, "transformers": train_with_the_trainer}[trainer]
    opt = train(monitor, lambda: kernels.run("forward" if rank else "backward"))  # the GPUs have unequal work
    monitor.close()
    name = monitor.gpus[0].spec.partition(":")[2]
    lines = Path(os.environ["PFO_FS_SIM_DIR"], f"{name}.log").read_text().splitlines()
    return {
        "gpu": name,
        "measured": [m.power_limit for m in opt.measurements],
        "state": repr(opt.state),
        "set": [line["watts"] for line in map(json.loads, lines) if line["action"] == "limit"],
    }


torch.set_num_threads(1)
dist.init_process_group("gloo")
run_cases(run_case)
