"""The power-limit optimizer in training loops of one's own: plain PyTorch, and accelerate."""

from pathlib import Path
from typing import Any

import pytest
import torch
from framework_pages import run_block
from power_limit_fakes import limits_set

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.torch_loop import power_limit_loop
from pfo_fs.power_limit import Done, EnergyMonitor, MaxSlowdownConstraint

pytestmark = pytest.mark.usefixtures("sim_dir")

OPTIONS: dict[str, Any] = {"warmup_steps": 1, "profile_steps": 2, "pl_step": 200}


def test_steps_are_those_of_the_torch_optimizer_and_an_exception_restores_the_limit(sim_dir: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    sgd = torch.optim.SGD([weight], lr=0.1)
    monitor = EnergyMonitor(specs=["simulated:a"])
    kernels = monitor.simulated_kernels(time_scale=50)

    def train() -> None:
        with power_limit_loop(sgd, monitor=monitor, optimum_selector=MaxSlowdownConstraint(1.3), **OPTIONS) as plo:
            for batch in range(40):
                kernels.run("forward")
                weight.square().sum().backward()
                if batch % 2:  # gradients of two batches
                    sgd.step()
                    sgd.zero_grad()
            assert isinstance(plo.state, Done)
            assert [m.power_limit for m in plo.measurements] == [500, 300, 100]
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    monitor.close()
    sgd.step()  # nothing is left on it


def test_accelerates_optimizer_counts_once_per_accumulated_step(sim_dir: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # what a test before has left there
    accelerate.state.GradientState._reset_state()
    model = torch.nn.Linear(2, 1)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=3, cpu=True)
    model, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with power_limit_loop(prepared, monitor=EnergyMonitor(specs=["simulated:a"]), wait_steps=100) as plo:
        before = plo.state.steps
        for _ in range(12):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 2)).sum())
                prepared.step()
                prepared.zero_grad()
        assert before - plo.state.steps == 4
        plo.monitor.close()


def test_the_block_of_the_page_runs_and_leaves_the_evaluation_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    weight, evaluated = torch.nn.Parameter(torch.ones(1)), []
    names = {"optimizer": torch.optim.SGD([weight]), "loader": range(1000), "evaluate": evaluated.append}
    section = "A loop of your own: plain PyTorch, DDP, FSDP, accelerate"
    opt = run_block("power-limit", section, 0, model=weight, **names)["opt"]
    assert evaluated == [weight]
    opt.monitor.close()


def test_what_is_no_optimizer_is_an_error() -> None:
    with (
        pytest.raises(ConfigError, match=r"needs a torch.optim.Optimizer, and got a list"),
        power_limit_loop([], strict=True),
    ):
        pass
