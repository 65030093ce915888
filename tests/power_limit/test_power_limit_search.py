"""The coarse-to-fine search against the full sweep, over all models of simulated GPUs and many seeds of noise."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_limit_fakes import FakeGpu, FakeMonitor, at_limit, make_optimizer

from pfo_fs import power_limit as pl
from pfo_fs.device.simulated.physics import MODELS, TRAINING, GpuModel
from pfo_fs.power_limit.selectors import Search

SELECTORS: list[pl.OptimumSelector] = [
    pl.Energy(),
    pl.Time(),
    *(pl.ZeusCost(eta) for eta in (0, 0.25, 0.5, 0.75, 1)),
    *(pl.MaxSlowdownConstraint(factor) for factor in (1, 1.02, 1.05, 1.1, 1.2, 1.5)),
]
WARMUP_STEPS, PROFILE_STEPS = 10, 40
SEEDS = range(25)


def limits_of(model: GpuModel, pl_step: int) -> list[int]:
    lowest, highest = map(int, model.power_limits_w)
    return list(range(highest, lowest - 1, -pl_step))


def cost(selector: pl.OptimumSelector, truth: dict[int, pl.PowerLimitMeasurement], level: int) -> float:
    """What a limit costs in truth: seconds for `Time`, else joules."""
    found = truth[level]
    if isinstance(selector, pl.Time):
        return found.time
    return selector.cost_j(found, max(truth)) if isinstance(selector, pl.ZeusCost) else found.energy


def noisy(truth: dict[int, pl.PowerLimitMeasurement], noise: float, seed: int) -> dict[int, pl.PowerLimitMeasurement]:
    """Windows whose times and powers are off by a normal error of standard deviation `noise`."""
    dice = random.Random(seed)
    return {
        level: pl.PowerLimitMeasurement(
            power_limit=level,
            time=m.time * (factor := 1 + dice.gauss(0, noise)),
            energy=m.energy * factor * (1 + dice.gauss(0, noise)),
        )
        for level, m in truth.items()
    }


def search(
    levels: list[int], table: dict[int, pl.PowerLimitMeasurement], selector: pl.OptimumSelector
) -> tuple[int, int]:
    """Returns the choice, and the steps it took."""
    looking = Search("coarse-to-fine", WARMUP_STEPS, PROFILE_STEPS)
    measured: list[pl.PowerLimitMeasurement] = []
    while (level := looking.next_level(levels, measured, selector)) is not None:
        assert level not in {m.power_limit for m in measured}
        measured.append(table[level])
    return selector.select(measured), len(measured) * (WARMUP_STEPS + looking.window_steps)


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.003])
@pytest.mark.parametrize("pl_step", [10, 25, 50])
@pytest.mark.parametrize("name", MODELS)
def test_the_choice_is_that_of_the_full_sweep_or_costs_little_more_in_half_the_steps(
    name: str, pl_step: int, noise: float
) -> None:
    levels = limits_of(MODELS[name], pl_step)
    truth = {level: at_limit(MODELS[name], level) for level in levels}
    for selector in SELECTORS:
        for seed in SEEDS if noise else range(1):
            table = noisy(truth, noise, seed)
            full_w = selector.select(list(table.values()))
            chosen, steps = search(levels, table, selector)
            assert 2 * steps <= len(levels) * (WARMUP_STEPS + PROFILE_STEPS)
            where = f"{selector}, seed {seed}: {chosen} W, the full sweep {full_w} W"
            most = 1.01 if name in TRAINING else 1.04  # not good yet where a GPU draws less than many of its limits
            assert cost(selector, truth, chosen) <= most * cost(selector, truth, full_w), where
            if isinstance(selector, pl.MaxSlowdownConstraint):
                allowed_s = max(selector.factor * table[levels[0]].time, table[full_w].time)
                assert table[chosen].time <= allowed_s, where


@given(
    count=st.integers(1, 60),
    warmup_steps=st.integers(0, 20),
    profile_steps=st.integers(1, 60),
    data=st.data(),
)
def test_every_search_ends_and_measures_no_limit_twice_whatever_the_numbers(
    count: int, warmup_steps: int, profile_steps: int, data: Any
) -> None:
    levels = list(range(10 * count, 0, -10))
    dice = random.Random(data.draw(st.integers(0, 1000)))
    selector = data.draw(st.sampled_from(SELECTORS))
    for kind in ("full", "coarse-to-fine"):
        looking = Search(kind, warmup_steps, profile_steps)
        measured: list[pl.PowerLimitMeasurement] = []
        while (level := looking.next_level(levels, measured, selector)) is not None:
            measured.append(
                pl.PowerLimitMeasurement(power_limit=level, time=dice.uniform(0.1, 9), energy=dice.uniform(1, 9))
            )
        assert len({m.power_limit for m in measured}) == len(measured)
        assert measured[0].power_limit == levels[0]
        if kind != "full" and count > 4:
            steps = len(measured) * (warmup_steps + looking.window_steps)
            assert 2 * steps <= count * (warmup_steps + profile_steps)


def test_in_training_the_search_takes_half_the_steps_and_its_windows_count_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measurements of half as many steps are doubled, so that a profile file means the same."""
    model = MODELS["A40"]
    taken = {}
    for kind, share in (("full", 1.0), ("coarse-to-fine", 0.5)):
        gpu = FakeGpu(100, 300)

        def numbers(gpu: FakeGpu = gpu, share: float = share) -> tuple[float, float]:
            found = at_limit(model, gpu.levels[-1])
            return found.time * share, found.energy * share

        optimizer, _ = make_optimizer(monkeypatch, FakeMonitor(numbers), gpu, search=kind)
        taken[kind] = 0
        while not isinstance(optimizer.state, pl.Done):
            optimizer.on_step_begin()
            taken[kind] += 1
        assert optimizer.state.optimal_power_limit == 225
        for found in optimizer.measurements:
            assert found.time == pytest.approx(at_limit(model, found.power_limit).time)
            assert found.energy == pytest.approx(at_limit(model, found.power_limit).energy)
    assert taken["full"] == 2 + 9 * 50
    assert taken["coarse-to-fine"] <= taken["full"] / 2
