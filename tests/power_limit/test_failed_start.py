"""An error of the power-limit optimizer, of any kind and at any time, is one warning, and training goes on."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from power_limit_fakes import FakeMonitor, make_optimizer

from pfo_fs.power_limit import Energy, GlobalPowerLimitOptimizer, Off
from pfo_fs.power_limit.rank_gpus import RankGpus


def train(optimizer: Any, steps: int = 12) -> None:
    """Calls all that a training loop may call."""
    optimizer.on_train_begin()
    for step in range(steps):
        if step % 6 == 0:
            optimizer.on_epoch_begin()
        optimizer.on_step_begin()
        optimizer.on_step_end()
        with optimizer.evaluation():
            optimizer.on_evaluate(0.5)
        optimizer.metrics()
        if step % 6 == 5:
            optimizer.on_epoch_end()
    optimizer.measure_again()
    optimizer.on_train_end()
    optimizer.close()


@pytest.mark.parametrize(
    "options",
    [
        {"knob": "voltage"},
        {"profile_path": 5},
        {"pl_step": "wide"},
        {"search": None},
        {"optimum_selector": Energy},
        {"device_id": 0},
    ],
    ids=repr,
)
def test_what_cannot_be_is_one_warning_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    optimizer, _ = make_optimizer(monkeypatch, FakeMonitor([]), **options)
    train(optimizer)
    assert isinstance(optimizer.state, Off)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "training goes on" in caplog.text


@pytest.mark.parametrize(
    "error", [OSError("no"), AttributeError("memfd"), MemoryError(), UnicodeError("text")], ids=repr
)
@pytest.mark.parametrize("method", ["__init__", "ranges", "set_level", "begin_window", "end_window", "check", "pause"])
def test_an_error_on_the_way_is_one_warning_and_the_levels_are_restored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(RankGpus, method, fail)
    options = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 2}
    monitor = FakeMonitor(lambda: (1.0, 1.0))
    optimizer, _ = make_optimizer(monkeypatch, monitor, optimum_selector=Energy(), **options)
    train(optimizer, steps=40)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert isinstance(optimizer.state, Off)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_of_an_optimizer_that_runs_does_nothing(monkeypatch: pytest.MonkeyPatch, copied: Any) -> None:
    optimizer, gpu = make_optimizer(monkeypatch, FakeMonitor(lambda: (1.0, 1.0)), wait_steps=0, warmup_steps=0)
    optimizer.on_step_begin()
    before = list(gpu.levels)
    other = copied(optimizer)
    train(other)
    assert type(other) is GlobalPowerLimitOptimizer
    assert gpu.levels == before
    optimizer.close()
