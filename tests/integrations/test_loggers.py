"""The lines of docs/reports.md, run with the real loggers; each skips where its package is not installed."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from framework_pages import run_block

from pfo_fs.integrations.lightning import LightningCallback
from pfo_fs.power_limit import EnergyMonitor, GlobalPowerLimitOptimizer

pytestmark = [pytest.mark.usefixtures("sim_dir"), pytest.mark.filterwarnings("ignore")]


def test_lightnings_loggers_get_no_metrics_where_no_step_is_logged() -> None:
    trainer = Mock(loggers=[Mock()], log_every_n_steps=0, global_step=6)
    LightningCallback._log_metrics(Mock(), trainer)
    assert not trainer.loggers[0].log_metrics.called


@pytest.fixture
def training() -> Any:
    monitor = EnergyMonitor(specs=["simulated:a"])
    optimizer = GlobalPowerLimitOptimizer(monitor, wait_steps=100)
    for _ in range(3):
        optimizer.on_step_begin()
    yield {"opt": optimizer, "steps": range(3)}
    optimizer.close()
    monitor.close()


def test_tensorboard(training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard; .ci/frameworks installs it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    names = run_block("reports", "Charts", 0, **training)
    names["writer"].close()
    (folder,) = (tmp_path / "runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert "pfo_fs/step_time_s" in events.Tags()["scalars"]


def test_weights_and_biases(training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs W&B; .ci/frameworks installs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_block("reports", "Charts", 1, **training)
    assert math.isfinite(wandb.run.summary["pfo_fs/step_time_s"])
    wandb.finish()


def test_mlflow(training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs MLflow; .ci/frameworks installs it")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    run_block("reports", "Charts", 2, **training)
    run = mlflow.get_run(mlflow.last_active_run().info.run_id)
    assert "pfo_fs/step_time_s" in run.data.metrics
