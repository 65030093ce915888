"""Every change of state, beside Zeus's own class that is fed the same numbers."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from power_limit_fakes import FakeGpu, FakeMonitor, make_optimizer, make_zeus, state_of
from running import wait_for

from pfo_fs import power_limit as ours
from pfo_fs.errors import DeviceError, NotOffered
from pfo_fs.power_limit import Done, Energy, GlobalPowerLimitOptimizer, Off
from pfo_fs.power_limit.rank_gpus import RankGpus

Make = Callable[..., tuple[GlobalPowerLimitOptimizer, FakeGpu]]
NUMBERS = [(10.0, 3000.0), (10.5, 2700.0), (11.5, 2500.0), (14.0, 2450.0), (20.0, 2900.0)]


def zeus_selector(selector: ours.OptimumSelector) -> Any:
    zeus = pytest.importorskip("zeus.optimizer.power_limit", reason="needs Zeus, with which it compares")
    return getattr(zeus, type(selector).__name__)(**vars(selector))


SELECTORS = st.one_of(
    st.sampled_from([ours.Energy(), ours.Time()]),
    st.builds(ours.ZeusCost, eta_knob=st.floats(0, 1), world_size=st.integers(1, 8)),
    st.builds(ours.MaxSlowdownConstraint, factor=st.floats(1, 3)),
)


@given(
    events=st.lists(st.sampled_from(["step"] * 12 + ["epoch"]), min_size=1, max_size=150),
    wait_steps=st.integers(0, 3),
    warmup_steps=st.integers(1, 3),
    profile_steps=st.integers(1, 4),
    pl_step=st.integers(20, 150),
    numbers=st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 1e5)), min_size=12, max_size=12),
    selector=SELECTORS,
    is_zeuss=st.booleans(),  # a script in which only the optimizer's import was changed
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_states_limits_and_choice_are_zeuss_after_every_event(
    monkeypatch: pytest.MonkeyPatch,
    events: list[str],
    numbers: list[tuple[float, float]],
    selector: ours.OptimumSelector,
    is_zeuss: bool,
    **options: int,
) -> None:
    monitor, zeus_monitor, theirs = FakeMonitor(numbers), FakeMonitor(numbers), zeus_selector(selector)
    chosen_by: Any = theirs if is_zeuss else selector
    optimizer, gpu = make_optimizer(monkeypatch, monitor, optimum_selector=chosen_by, **options)
    zeus, zeus_gpus = make_zeus(monkeypatch, zeus_monitor, gpu, optimum_selector=theirs, **options)
    assert state_of(optimizer) == state_of(zeus)
    for event in events:
        for each in (optimizer, zeus):
            each.on_epoch_end() if event == "epoch" else each.on_step_begin()
        assert state_of(optimizer) == state_of(zeus)
        assert gpu.levels == zeus_gpus.levels
        assert (len(monitor.open), monitor.cancelled) == (len(zeus_monitor.open), zeus_monitor.cancelled)
    assert [m.model_dump() for m in optimizer.measurements] == [m.dict() for m in zeus.measurements]
    assert optimizer.power_limits == [limit_mw // 1000 for limit_mw in zeus.power_limits]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    return partial(make_optimizer, monkeypatch)


def run(optimizer: Any, count: int = 60) -> None:
    for _ in range(count):
        optimizer.on_step_begin()


OPTIONS: dict[str, Any] = {"wait_steps": 1, "warmup_steps": 2, "profile_steps": 3, "pl_step": 50}


def test_a_profile_is_zeuss_byte_by_byte_and_saves_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, of_zeus = tmp_path / "profile.json", tmp_path / "zeus.json"
    first, gpu = make_optimizer(monkeypatch, FakeMonitor(NUMBERS), profile_path=path, **OPTIONS)
    zeus, _ = make_zeus(monkeypatch, FakeMonitor(NUMBERS), gpu, profile_path=of_zeus, **OPTIONS)
    for each in (first, zeus):
        run(each)
    first.close()
    wait_for(path.exists, what="the profile")
    assert path.read_bytes() == of_zeus.read_bytes()
    assert state_of(first) == state_of(zeus) == ("Done", 250, None)
    for selector in (ours.Energy(), ours.Time(), ours.ZeusCost(0.2), ours.MaxSlowdownConstraint(1.1)):
        options = {"profile_path": path, **OPTIONS}
        optimizer, gpu = make_optimizer(monkeypatch, FakeMonitor([]), optimum_selector=selector, **options)
        theirs = zeus_selector(selector)
        zeus, zeus_gpus = make_zeus(monkeypatch, FakeMonitor([]), gpu, optimum_selector=theirs, **options)
        assert state_of(optimizer) == state_of(zeus)
        assert gpu.levels == zeus_gpus.levels
        run(optimizer)
        optimizer.close()
    assert path.read_bytes() == of_zeus.read_bytes()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(("steps", "said"), [(1, ""), (9, "1 of 5 levels were measured"), (60, "")])
def test_an_unfinished_sweep_says_so(make: Make, caplog: pytest.LogCaptureFixture, steps: int, said: str) -> None:
    optimizer, _ = make(FakeMonitor(NUMBERS), **OPTIONS)
    run(optimizer, steps)
    optimizer.close()
    warnings = warnings_of(caplog)
    assert len(warnings) == bool(said)
    assert all(said in text and "train longer" in text for text in warnings)


def train(optimizer: Any, steps: int = 12) -> None:
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


BROKEN = SimpleNamespace(select=lambda measurements: {}["oops"])
ELSEWHERE = SimpleNamespace(select=lambda measurements: 117)


def steady() -> FakeMonitor:
    return FakeMonitor(lambda: (1.0, 100.0))


def failing(at: str, error: Exception | None = None) -> FakeMonitor:
    def fail(*_: object, **__: object) -> None:
        raise error or ZeroDivisionError("division by zero")

    monitor = FakeMonitor([(0.0, 0.0)] * 9)
    if at:
        setattr(monitor, f"{at}_window", fail)
    return monitor


@pytest.mark.parametrize(
    ("monitor", "options", "said"),
    [
        (steady(), {"optimum_selector": BROKEN}, "oops"),
        (steady(), {"optimum_selector": ELSEWHERE}, "117 W"),
        (steady(), {"optimum_selector": ELSEWHERE, "search": "coarse-to-fine"}, "117 is not one"),
        (failing("begin"), {}, "division by zero"),
        (failing("end"), {}, "division by zero"),
        (failing("end", NotOffered("this GPU does not support it")), {}, "does not support it"),
        (failing(""), {}, "not both positive"),
        (failing(""), {"knob": "voltage"}, "it can be 'power_limit'"),
        (failing(""), {"profile_path": 5}, "os.PathLike"),
        (failing(""), {"pl_step": "wide"}, "'wide'"),
        (failing(""), {"search": None}, "search is None"),
        (failing(""), {"optimum_selector": Energy}, "give a selector"),
        (failing(""), {"device_id": 0}, "device_id"),
    ],
)
def test_a_selector_or_a_monitor_that_fails_and_what_cannot_be_given_is_one_warning_and_training_goes_on(
    make: Make, caplog: pytest.LogCaptureFixture, monitor: FakeMonitor, options: dict[str, Any], said: str
) -> None:
    optimizer, gpu = make(monitor, **{**OPTIONS, **options})
    train(optimizer, steps=60)
    assert isinstance(optimizer.state, ours.Off)
    assert said in optimizer.state.reason
    assert gpu.given_back or not gpu.levels
    assert ["training goes on" in record.getMessage() for record in caplog.records] == [True]


def epochs(optimizer: Any, *lengths: int, end: str = "on_epoch_end") -> None:
    for steps in lengths:
        run(optimizer, steps)
        getattr(optimizer, end)()


@pytest.mark.parametrize("lengths", [[5] * 9, [6] * 7, [7, 3], [30]])
def test_too_short_epochs_are_one_warning(make: Make, caplog: pytest.LogCaptureFixture, lengths: list[int]) -> None:
    optimizer, _ = make(FakeMonitor(NUMBERS), **OPTIONS)
    epochs(optimizer, *lengths)
    too_short = max(lengths) < 6
    assert bool(optimizer.measurements) != too_short
    assert [("an epoch of 5 steps" in text, "takes 6 steps" in text) for text in warnings_of(caplog)] == [
        (True, True)
    ] * too_short


def test_a_window_goes_on_over_epochs_whose_end_only_pauses_the_measurement(make: Make) -> None:
    numbers = [part for time_s, energy_j in NUMBERS for part in [*[(time_s / 3, energy_j / 3)] * 3, (0, 0)]]
    optimizer, gpu = make(FakeMonitor(numbers), **{**OPTIONS, "warmup_steps": 3})
    epochs(optimizer, *[1] * 60, end="pause_measurement")
    assert state_of(optimizer) == ("Done", 250, None)
    optimizer.pause()
    assert gpu.given_back == 1
    run(optimizer, 1)
    assert gpu.levels[-2:] == [250, 250], "with the next step the choice is in force again"
    assert [m.time for m in optimizer.measurements] == pytest.approx([time_s for time_s, _ in NUMBERS])


def test_a_window_without_energy_is_measured_again_ever_later(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    errors = [DeviceError("the driver did not answer in time")] * 3

    def numbers() -> tuple[float, float]:
        if errors:
            raise errors.pop()
        return 1.0, 100.0

    optimizer, _ = make(FakeMonitor(numbers), warmup_steps=0, profile_steps=1, wait_steps=0)
    run(optimizer, 300)
    assert isinstance(optimizer.state, Done)
    told = warnings_of(caplog)
    assert [text.split("next try in ")[1].split(" ")[0] for text in told] == ["10", "20", "40"]
    assert all("did not answer in time" in text for text in told)
    optimizer.close()


def test_a_level_that_could_not_be_set_is_set_again_and_not_measured_meanwhile(make: Make) -> None:
    gpu = FakeGpu()
    optimizer, _ = make(steady(), gpu, warmup_steps=0, profile_steps=1, wait_steps=0)
    optimizer.on_step_begin()
    tried = gpu.levels[-1]
    gpu.trouble = "the driver is not ready"
    run(optimizer, 100)
    assert isinstance(optimizer.state, Done)
    assert gpu.levels.count(tried) >= 2
    assert len(optimizer.measurements) == len(optimizer.power_limits)
    optimizer.close()


@pytest.mark.parametrize(
    "error", [OSError("no"), AttributeError("memfd"), MemoryError(), UnicodeError("text")], ids=repr
)
@pytest.mark.parametrize("method", ["__init__", "ranges", "set_level", "begin_window", "end_window", "check", "pause"])
def test_an_error_on_the_way_is_one_warning_and_the_levels_are_restored(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(RankGpus, method, fail)
    optimizer, _ = make(steady(), wait_steps=0, warmup_steps=1, profile_steps=2)
    train(optimizer, steps=40)
    assert len(warnings_of(caplog)) == 1
    assert isinstance(optimizer.state, Off)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_of_an_optimizer_that_runs_does_nothing(make: Make, copied: Any) -> None:
    optimizer, gpu = make(steady(), wait_steps=0, warmup_steps=0)
    optimizer.on_step_begin()
    before = list(gpu.levels)
    other = copied(optimizer)
    train(other)
    assert type(other) is GlobalPowerLimitOptimizer
    assert gpu.levels == before
    optimizer.close()
