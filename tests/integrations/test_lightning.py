"""The callback in real runs of Lightning's Trainer; skips where Lightning is not installed."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
from framework_pages import run_block
from power_limit_fakes import limits_set

from pfo_fs.integrations.lightning import LightningPowerLimitOptimizer
from pfo_fs.power_limit import Done, EnergyMonitor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning: Any = pytest.importorskip("lightning", reason="needs Lightning; .ci/frameworks installs it")

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.usefixtures("sim_dir"), pytest.mark.filterwarnings("ignore")]

OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 3, "pl_step": 200}


class Line(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.fails_at, self.batches, self.kernels = fails_at, 0, None

    def training_step(self, batch: Any, _index: int) -> Any:
        self.batches += 1
        self.kernels.run("forward")
        if self.batches == self.fails_at:
            raise RuntimeError("training has failed")
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, _index: int) -> None:
        self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kept(lightning.pytorch.loggers.logger.DummyLogger):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)


def test_the_line_of_the_page_makes_a_trainer_with_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    trainer = run_block("power-limit", "Lightning", 0)["trainer"]
    (callback,) = [each for each in trainer.callbacks if isinstance(each, LightningPowerLimitOptimizer)]
    callback.close()


def fit(module: Line, callback: Any, batches: int, **options: Any) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(batches, 2)), batch_size=1)
    few = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)), batch_size=1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        **{"max_epochs": 1, **options},
        accumulate_grad_batches=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        log_every_n_steps=1,
    )
    trainer.fit(module, data, few)


@pytest.mark.slow
def test_a_trainer_finds_the_limit_though_it_validates_within_each_window(sim_dir: Path) -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    callback = LightningPowerLimitOptimizer(monitor=monitor, **OPTIONS)
    module, logger = Line(), Kept()
    module.kernels = monitor.simulated_kernels(time_scale=20)
    fit(module, callback, batches=30, logger=logger, val_check_interval=4)
    assert callback.optimizer is not None
    assert isinstance(callback.optimizer.state, Done)
    assert [m.power_limit for m in callback.optimizer.measurements] == [500, 300, 100]
    assert limits_set(sim_dir)[:3] == [500, 300, 100]
    assert limits_set(sim_dir)[-1] == 500
    assert {"pfo_fs/step_time_s", "pfo_fs/saving"} <= set(logger.metrics[-1])
    callback.close()
    monitor.close()


@pytest.mark.slow
def test_after_an_exception_the_limit_is_back_at_once(sim_dir: Path) -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    callback = LightningPowerLimitOptimizer(monitor=monitor, **OPTIONS)
    module = Line(fails_at=11)
    module.kernels = monitor.simulated_kernels(time_scale=20)
    with pytest.raises(RuntimeError, match="training has failed"):
        fit(module, callback, batches=30, logger=False, num_sanity_val_steps=0)
    assert limits_set(sim_dir)[:2] == [500, 300]
    assert limits_set(sim_dir)[-1] == 500
    callback.close()
    monitor.close()
