"""Levels are compared at the same load, where training tells the loads of its steps."""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from power_limit_fakes import FakeGpu, FakeMonitor, make_optimizer

from pfo_fs import power_limit as pl
from pfo_fs.power_limit.rank_gpus import WindowReport
from pfo_fs.power_limit.same_load import SameLoad, StepsReport

LIMITS_W = (300, 250, 200, 150, 100)
SLOWER = dict(zip(LIMITS_W, (1.0, 1.01, 1.03, 1.06, 1.3), strict=True))
"""With at most 4 % more time, 200 W is the best limit by 1 %; 150 W is too slow by 2 %."""
SEEDS = range(5)


class UnevenTraining:
    """Training in virtual time whose steps take (0.2 + 0.8 load) s at the highest limit, and 100 W.

    `tell` makes of a step's load what training tells; with `evaluates`, evaluations follow long steps.
    """

    def __init__(self, seed: int, tell: Callable[[float, int], Any], *, evaluates: bool = False) -> None:
        self.now_s = 0.0
        self._evaluates = evaluates
        self.gpu = FakeGpu(100, 300)
        self._dice, self._tell = random.Random(seed), tell
        self._from_s = 0.0

    def monitor(self) -> FakeMonitor:
        training = self

        class Monitor(FakeMonitor):
            def begin_window(self, key: str) -> None:
                super().begin_window(key)
                training._from_s = training.now_s

        return Monitor(lambda: (self.now_s - self._from_s, 100 * (self.now_s - self._from_s)))

    def choose(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> pl.GlobalPowerLimitOptimizer:
        """Trains until a limit is chosen."""
        monkeypatch.setattr("pfo_fs.power_limit.same_load.time", SimpleNamespace(monotonic=lambda: self.now_s))
        options = {"optimum_selector": pl.MaxSlowdownConstraint(1.04), "pl_step": 50, "profile_steps": 20, **options}
        optimizer, _ = make_optimizer(monkeypatch, self.monitor(), self.gpu, warmup_steps=2, **options)
        step = 0
        while not isinstance(optimizer.state, pl.Done):
            load = self._dice.uniform(0.4, 1.6)
            optimizer.on_step_begin(loads=self._tell(load, step))
            self.now_s += SLOWER[self.gpu.levels[-1]] * (0.2 + 0.8 * load) * (1 + self._dice.gauss(0, 0.005))
            step += 1
            if self._evaluates and load > 1 and step % 2:
                optimizer.pause_measurement()
                self.now_s += 0.4
        return optimizer


def told(load: float, _step: int) -> list[float]:
    return [load]


def untold(_load: float, _step: int) -> None:
    return None


def limit(optimizer: pl.GlobalPowerLimitOptimizer) -> int:
    assert isinstance(optimizer.state, pl.Done)
    return optimizer.state.optimal_power_limit


def test_with_loads_the_search_finds_the_best_limit_where_windows_as_measured_find_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_load = [limit(UnevenTraining(seed, told).choose(monkeypatch)) for seed in SEEDS]
    as_measured = [limit(UnevenTraining(seed, untold).choose(monkeypatch)) for seed in SEEDS]
    assert by_load == [200] * len(SEEDS)
    assert as_measured.count(200) < len(SEEDS)


def test_measurements_say_what_levels_take_at_the_same_load_and_how_sure_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = UnevenTraining(1, told).choose(monkeypatch)
    by_limit = {m.level: m for m in optimizer.measurements}
    for level in LIMITS_W:
        assert by_limit[level].time / by_limit[300].time == pytest.approx(SLOWER[level], rel=0.01)
        assert by_limit[level].energy / by_limit[300].energy == pytest.approx(SLOWER[level], rel=0.01)
        time_error, energy_error = optimizer.errors[level]
        assert 0 < time_error < 0.005
        assert 0 <= energy_error < 0.005


@pytest.mark.parametrize(
    "tell",
    [
        lambda load, step: None if step == 30 else [load],
        lambda load, step: ["long"] if step == 30 else [load],
        lambda load, step: [(load, 1.0, 1.0)] if step == 30 else [load],
        lambda load, step: [],
    ],
    ids=["missing", "no number", "another form", "no micro-batch"],
)
def test_where_a_load_cannot_be_used_windows_count_as_measured_and_one_warning_says_so(
    tell: Callable[[float, int], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pfo_fs"):
        optimizer = UnevenTraining(1, tell).choose(monkeypatch)
        plain = UnevenTraining(1, untold).choose(monkeypatch)
    assert optimizer.measurements == plain.measurements
    assert not optimizer.errors
    assert len(caplog.messages) == 1
    assert "a step of a rank has no load that can be used" in caplog.text


def test_loads_that_say_nothing_leave_windows_nearly_as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    other = random.Random(7)
    optimizer = UnevenTraining(1, lambda *_: [other.random()]).choose(monkeypatch)
    plain = UnevenTraining(1, untold).choose(monkeypatch)
    for found, raw in zip(optimizer.measurements, plain.measurements, strict=True):
        time_error, _ = optimizer.errors[found.level]
        assert found.time == pytest.approx(raw.time, rel=2 * time_error)


def test_evaluations_within_windows_do_not_change_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = UnevenTraining(1, told, evaluates=True).choose(monkeypatch)
    by_limit = {m.level: m.time for m in optimizer.measurements}
    assert {x: by_limit[x] / by_limit[300] for x in LIMITS_W} == pytest.approx(SLOWER, rel=0.01)


def test_measuring_again_forgets_earlier_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    training = UnevenTraining(1, told)
    optimizer = training.choose(monkeypatch)
    optimizer.measure_again()
    assert not optimizer.errors
    for _ in range(30):
        optimizer.on_step_begin(loads=[(1.0, 2.0, 3.0)])  # loads of another form, which old ones would contradict
        training.now_s += 1.0
    assert len(optimizer.measurements) == 1


# ---- several ranks, of which the one with most work decides


def windows_of(loads: Any, times_s: Any, energies_j: Sequence[float]) -> list[WindowReport]:
    """The window of each rank; `loads` is (steps, ranks, features), `times_s` (steps,)."""
    found = []
    for rank, energy_j in enumerate(energies_j):
        of_rank = array("d", loads[:, rank].ravel())
        steps = StepsReport(loads.shape[2], of_rank, array("d", times_s), given=True)
        found.append(WindowReport(float(sum(times_s)), energy_j, "", "", steps))
    return found


class Ranks:
    """Windows of ranks that wait for the one with most work, and draw 400 W at work and 80 W while they wait.

    By the share `lag` of a step, launches are ahead of the device; `noise` is relative, of a step's time.
    """

    def __init__(self, seed: int, count: int = 6, lag: float = 0.0, noise: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.windows = SameLoad()
        self.raw_s: dict[int, float] = {}
        self.raw_j: dict[int, float] = {}
        for level, slower in SLOWER.items():
            lengths = rng.lognormal(0.0, 0.4, (30, count, 4))
            loads = np.stack([lengths.sum(axis=2), (lengths**2).sum(axis=2)], axis=2)
            work_s = slower * (0.1 + loads @ np.array([0.1, 0.1]))
            device_s = work_s.max(axis=1) * (1 + noise * rng.standard_normal(30))
            seen_s = device_s.copy()
            seen_s[1:] = (1 - lag) * device_s[1:] + lag * device_s[:-1]
            energies_j = 80 * device_s.sum() + 320 * work_s.sum(axis=0)
            one = np.ones((30, count, 1))
            self.windows.add(level, windows_of(np.concatenate([one, loads], axis=2), seen_s, energies_j.tolist()))
            self.raw_s[level], self.raw_j[level] = float(device_s.sum()), float(energies_j.sum())

    def times(self) -> dict[int, float]:
        """Time of each level at the same load, beside the highest one."""
        found = self.windows.find()
        return {x: self.raw_s[x] * found[x].time / (self.raw_s[300] * found[300].time) for x in LIMITS_W}

    def energies(self) -> dict[int, float]:
        """The same for energy."""
        found = self.windows.find()
        return {x: self.raw_j[x] * found[x].energy / (self.raw_j[300] * found[300].energy) for x in LIMITS_W}


@pytest.mark.parametrize("lag", [0.0, 0.5])
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_follow_the_rank_with_most_work_and_energy_the_work_and_the_waiting_of_all(seed: int, lag: float) -> None:
    """Launches may be ahead of the device."""
    ranks = Ranks(seed, lag=lag)
    assert ranks.times() == pytest.approx(SLOWER, rel=0.005)
    assert ranks.energies() == pytest.approx(SLOWER, rel=0.005)


@pytest.mark.parametrize("lag", [0.0, 0.4])
def test_errors_are_as_large_as_times_are_off(lag: float) -> None:
    off = []
    for seed in range(30):
        ranks = Ranks(seed, lag=lag, noise=0.03)
        times, found = ranks.times(), ranks.windows.find()
        for level in LIMITS_W[1:]:
            error = float(np.hypot(found[level].time_error, found[300].time_error))
            off.append((times[level] / SLOWER[level] - 1) / error)
    assert 0.7 < float(np.std(off)) < 1.3


def test_a_step_with_a_checkpoint_in_it_does_not_change_what_is_learned() -> None:
    rng = np.random.default_rng(0)
    loads = rng.lognormal(0.0, 0.4, (30, 6, 1))
    times_s = loads.max(axis=1)[:, 0]
    windows = SameLoad()
    windows.add(1, windows_of(loads, times_s, [1.0] * 6))
    spoiled_s = times_s.copy()
    spoiled_s[11] *= 30
    windows.add(2, windows_of(loads, spoiled_s, [1.0] * 6))
    found = windows.find()
    assert found[1].time == pytest.approx(found[2].time)
    assert found[1].time_error < 0.001


def test_of_thousands_of_ranks_only_those_with_much_work_are_kept_and_the_result_is_the_same() -> None:
    assert Ranks(1, count=300).times() == pytest.approx(SLOWER, rel=0.005)
