"""Scripts that were written for Zeus, with another import, and with a directory in place of the server."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from power_limit_fakes import FakeMonitor, make_optimizer, make_zeus, state_of

from pfo_fs import GlobalPowerLimitOptimizer, HFGlobalPowerLimitOptimizer, PFOFileOptimizer
from pfo_fs.errors import ConfigError
from pfo_fs.integrations.lightning import LightningPowerLimitOptimizer
from pfo_fs.power_limit import Done, MaxSlowdownConstraint
from pfo_fs.training.job_request import in_our_order

pytestmark = pytest.mark.usefixtures("sim_dir")

PLACE = {"rank": 0, "dp_rank": 0, "pp_rank": 0, "tp_rank": 0, "device_id": 0}
DEGREES = {"dp_degree": 1, "pp_degree": 1, "tp_degree": 1, "world_size": 1}
ZEUS: dict[str, Any] = {**PLACE, **DEGREES, "server_url": "http://head:7787", "job_metadata": "llama"}


def train(optimizer: Any, epochs: int = 2, steps: int = 4) -> None:
    """Calls all that Zeus's `Callback` has, as its examples do."""
    optimizer.on_train_begin()
    for _ in range(epochs):
        optimizer.on_epoch_begin()
        for _ in range(steps):
            optimizer.on_step_begin()
            for name in ("forward", "backward"):
                optimizer.on_instruction_begin(name)
                optimizer.on_instruction_end(name)
            optimizer.on_step_end()
        optimizer.on_epoch_end()
        optimizer.on_evaluate(0.5)
    optimizer.on_train_end()


# ---- pipelines


@pytest.mark.parametrize("form", ["by name", "by position", "after the directory", "directory in place of the server"])
def test_the_constructor_takes_what_zeuss_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("PFO_FS_GPU", "simulated:zeus")
    folder = str(tmp_path / "pfo")
    arguments: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "by name": ((folder,), ZEUS),
        "by position": (tuple(ZEUS.values()), {"shared_dir": folder}),
        "after the directory": ((folder, *ZEUS.values()), {}),
        "directory in place of the server": (tuple({**ZEUS, "server_url": folder}.values()), {}),
    }
    positional, named = arguments[form]
    with PFOFileOptimizer(*positional, **named, strict=True) as optimizer:
        assert optimizer.follows
        assert (optimizer.job_id or "").endswith("+llama")
        train(optimizer)
        assert optimizer.step == 7


def test_positions_are_those_of_zeuss_constructor() -> None:
    assert list(inspect.signature(PFOFileOptimizer).parameters)[: len(ZEUS) + 1] == ["shared_dir", *ZEUS]
    assert in_our_order((3, 1), {"shared_dir": "/pfo"}) == ("/pfo", 3, 1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"shared_dir": None}, "there is no server"),
        ({"shared_dir": None, "server_url": None}, "give the path of a directory"),
        ({"device": 1}, "device is 1, but device_id is 0"),
        ({"devices": 1}, "'devices'; it takes shared_dir, rank"),
        ({"world_size": 3}, "world_size 3 is not"),
    ],
)
def test_a_wrong_argument_is_one_warning_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], reason: str
) -> None:
    given = {"shared_dir": tmp_path, **ZEUS, **arguments}
    optimizer = PFOFileOptimizer(**given)
    train(optimizer)
    optimizer.close()
    (record,) = caplog.records
    assert reason in record.getMessage()
    with pytest.raises(ConfigError, match=re.escape(reason)):
        PFOFileOptimizer(**given, strict=True)


def test_an_argument_that_is_given_twice_or_has_no_place_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    PFOFileOptimizer(*ZEUS.values(), rank=0)
    PFOFileOptimizer(*ZEUS.values(), 5)
    assert ["multiple values" in record.getMessage() for record in caplog.records] == [True, False]
    assert len(caplog.records) == 2


# ---- one power limit

OPTIONS: dict[str, Any] = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 1, "pl_step": 100}


def test_both_optimizers_run_in_zeuss_set_of_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    callback = pytest.importorskip("zeus.callback", reason="needs Zeus")
    limits, _ = make_optimizer(monkeypatch, FakeMonitor(lambda: (1.0, 100.0)), **OPTIONS)
    train(callback.CallbackSet([PFOFileOptimizer.nothing(), limits]), epochs=1, steps=20)
    assert isinstance(limits.state, Done)


@pytest.mark.parametrize(
    "wrong", [{"wait_steps": -1}, {"warmup_steps": -1}, {"profile_steps": 0}, {"pl_step": 0}, {"pl_step": -5}], ids=repr
)
@pytest.mark.parametrize("kind", ["zeus", "optimizer", "huggingface", "lightning"])
def test_a_number_that_zeus_refuses_is_a_value_error_before_training(
    monkeypatch: pytest.MonkeyPatch, kind: str, wrong: dict[str, int]
) -> None:
    monitor = FakeMonitor([])
    _, gpu = make_optimizer(monkeypatch, monitor)
    monkeypatch.setattr(LightningPowerLimitOptimizer, "load_base", lambda: type("Callback", (), {}))
    monkeypatch.setattr(HFGlobalPowerLimitOptimizer, "load_base", lambda: type("TrainerCallback", (), {}))
    make: dict[str, Any] = {
        "zeus": lambda **options: make_zeus(monkeypatch, monitor, gpu, **options),
        "optimizer": lambda **options: GlobalPowerLimitOptimizer(monitor, **options),
        "huggingface": lambda **options: HFGlobalPowerLimitOptimizer(monitor, **options),
        "lightning": lambda **options: LightningPowerLimitOptimizer(monitor, **options),
    }
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make[kind](**wrong)


@pytest.mark.parametrize("kind", [HFGlobalPowerLimitOptimizer, LightningPowerLimitOptimizer])
def test_callbacks_take_positions_and_a_wrong_name_is_one_warning_when_training_begins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    monkeypatch.setattr(kind, "load_base", lambda: type("Callback", (), {}))
    make_optimizer(monkeypatch, FakeMonitor([]))
    right = kind(FakeMonitor([]), MaxSlowdownConstraint(1.2), 3)
    right.start()
    assert right.optimizer.optimum_selector == MaxSlowdownConstraint(1.2)
    assert state_of(right.optimizer) == ("Ready", 300, 4)
    for wrong in (kind(FakeMonitor([]), None, 1, 1, 1, 1, None, None, 5), kind(devices=[0])):
        wrong.start()
        assert type(wrong.optimizer.state).__name__ == "Off"
    assert ["it takes monitor" in record.getMessage() for record in caplog.records] == [True, True]
