"""Selectors, the search for the level that they choose, and `pfo-fs power-limit`."""

import random
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from commands import pfo_fs
from hypothesis import given
from hypothesis import strategies as st
from power_limit_fakes import FakeGpu, FakeMonitor, at_limit, make_optimizer

from pfo_fs import power_limit as pl
from pfo_fs.device.simulated.physics import A100, MODELS, TRAINING
from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.gpus import Levels
from pfo_fs.power_limit.rank_gpus import GpuRange
from pfo_fs.power_limit.ranks import agree_on_levels
from pfo_fs.power_limit.selectors import Search

SELECTORS: list[pl.OptimumSelector] = [
    pl.Energy(),
    pl.Time(),
    *(pl.ZeusCost(eta) for eta in (0, 0.25, 0.5, 0.75, 1)),
    *(pl.MaxSlowdownConstraint(factor) for factor in (1, 1.02, 1.05, 1.1, 1.2, 1.5)),
]
WARMUP_STEPS, PROFILE_STEPS = 10, 40


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
    table: dict[int, pl.PowerLimitMeasurement],
    selector: pl.OptimumSelector,
    kind: Any = "coarse-to-fine",
    steps: tuple[int, int] = (WARMUP_STEPS, PROFILE_STEPS),
) -> tuple[int, int]:
    """Returns the choice, and the steps it took, of a search; it measures no limit twice."""
    looking, levels = Search(kind, *steps), list(table)
    measured: list[pl.PowerLimitMeasurement] = []
    while (level := looking.next_level(levels, measured, selector)) is not None:
        assert level not in {m.power_limit for m in measured}
        measured.append(table[level])
    assert measured[0].power_limit == levels[0]
    return selector.select(measured), len(measured) * (steps[0] + looking.window_steps)


@pytest.mark.parametrize("noise", [0.0, 0.003])
@pytest.mark.parametrize("pl_step", [10, 25, 50])
@pytest.mark.parametrize("name", MODELS)
def test_half_the_steps_find_the_choice_of_the_full_sweep_or_a_near_one(name: str, pl_step: int, noise: float) -> None:
    lowest, highest = map(int, MODELS[name].power_limits_w)
    levels = list(range(highest, lowest - 1, -pl_step))
    truth = {level: at_limit(MODELS[name], level) for level in levels}
    for selector in SELECTORS:
        for seed in range(15 if noise else 1):
            table = noisy(truth, noise, seed)
            full_w = selector.select(list(table.values()))
            chosen, steps = search(table, selector)
            assert 2 * steps <= len(levels) * (WARMUP_STEPS + PROFILE_STEPS)
            where = f"{selector}, seed {seed}: {chosen} W, the full sweep {full_w} W"
            most = 1.01 if name in TRAINING else 1.03  # noise tells more where energy changes little beside time
            assert cost(selector, truth, chosen) <= most * cost(selector, truth, full_w), where
            if isinstance(selector, pl.MaxSlowdownConstraint):
                allowed_s = max(selector.factor * table[levels[0]].time, table[full_w].time)
                assert table[chosen].time <= allowed_s, where


@given(st.integers(1, 60), st.integers(0, 20), st.integers(1, 60), st.integers(0, 1000), st.sampled_from(SELECTORS))
def test_every_search_ends_and_measures_no_limit_twice_whatever_the_numbers(
    count: int, warmup_steps: int, profile_steps: int, seed: int, selector: pl.OptimumSelector
) -> None:
    dice = random.Random(seed)
    table = {
        level: pl.PowerLimitMeasurement(power_limit=level, time=dice.uniform(0.1, 9), energy=dice.uniform(1, 9))
        for level in range(10 * count, 0, -10)
    }
    search(table, selector, "full", (warmup_steps, profile_steps))
    _, steps = search(table, selector, "coarse-to-fine", (warmup_steps, profile_steps))
    assert 2 * steps <= count * (warmup_steps + profile_steps) or count <= 4


def test_in_training_the_search_takes_half_the_steps_and_windows_count_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of half as many steps are doubled, so that a profile file means the same."""
    model, gpu, taken = MODELS["A40"], FakeGpu(100, 300), 0

    def numbers() -> tuple[float, float]:
        found = at_limit(model, gpu.levels[-1])
        return found.time / 2, found.energy / 2

    optimizer, _ = make_optimizer(monkeypatch, FakeMonitor(numbers), gpu, search="coarse-to-fine")
    while not isinstance(optimizer.state, pl.Done):
        optimizer.on_step_begin()
        taken += 1
    assert optimizer.state.optimal_power_limit == 225
    for found in optimizer.measurements:
        assert found.time == pytest.approx(at_limit(model, found.power_limit).time)
        assert found.energy == pytest.approx(at_limit(model, found.power_limit).energy)
    assert taken <= (2 + 9 * 50) / 2, "half of a full sweep"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(pl.profile_text([at_limit(A100, level) for level in range(500, 99, -25)]))
    return path


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ("--selector max-slowdown --factor 1.05", 450),
        ("--selector max-slowdown --factor 1.2", 325),
        ("--selector energy", 275),
        ("--selector time", 500),
        ("", 350),
        ("--selector zeus-cost --eta-knob 0.8 --world-size 1", 300),
        ("--selector zeus-cost --world-size 8", 500),
    ],
)
def test_each_selector_answers_from_a_profile(profile: Path, arguments: str, level: int) -> None:
    answer = pfo_fs("power-limit", profile, "--json", *arguments.split()).answer
    assert (answer["power_limit"], len(answer["measurements"])) == (level, 17)


ONE_CLOCK = '{"measurements": [{"clock": 900, "energy": 1, "time": 1}]}'
BENT = pl.profile_text(
    [
        found.model_copy(update={"time": found.time * (3 if found.level == 400 else 1)})  # as a busy machine bends it
        for found in (at_limit(A100, limit_w) for limit_w in (500, 400, 300, 200, 150))
    ]
)


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        ('{"measurements": [[1, 2]]}', [], 1, "measurements.0"),
        (BENT, [], 1, "at 400 W, but only"),
        (BENT, ["--force"], 0, ""),
        (ONE_CLOCK, [], 0, "ZeusCost(eta_knob=0.5, world_size=1): 900 MHz"),
    ],
)
def test_what_a_profile_tells_is_said(profile: Path, text: str, arguments: list[str], code: int, said: str) -> None:
    profile.write_text(text)
    done = pfo_fs("power-limit", profile, *arguments)
    assert (done.returncode, said in done.said) == (code, True), done.said


def test_the_loop_in_the_documentation_runs(tmp_path: Path, sim_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "power-limit.md").read_text()
    (block,) = re.findall(r"```python\n(from pfo_fs\.power_limit import GlobalPower.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFO_FS_GPU", "simulated:readme")
    names: dict[str, Any] = {"epochs": 2, "loader": range(450)}
    exec(block, names)
    assert isinstance(names["plo"].state, pl.Off)
    assert len(names["plo"].measurements) == 16, "an epoch measures 8 limits"


@given(
    numbers=st.dictionaries(
        st.integers(1, 1000), st.tuples(st.floats(0.1, 100), st.floats(0.1, 1e5)), min_size=1, max_size=40
    ),
    eta=st.floats(0, 1),
    world_size=st.integers(1, 1000),
    factor=st.floats(1, 4),
)
def test_every_selector_chooses_as_zeuss(
    numbers: dict[int, tuple[float, float]], eta: float, world_size: int, factor: float
) -> None:
    zeus = pytest.importorskip("zeus.optimizer.power_limit", reason="needs Zeus, with which it compares")
    ours = [pl.PowerLimitMeasurement(power_limit=w, time=t, energy=e) for w, (t, e) in numbers.items()]
    theirs = [zeus.PowerLimitMeasurement(power_limit=w, time=t, energy=e) for w, (t, e) in numbers.items()]
    for name, arguments in (
        ("Energy", {}),
        ("Time", {}),
        ("ZeusCost", {"eta_knob": eta, "world_size": world_size}),
        ("MaxSlowdownConstraint", {"factor": factor}),
    ):
        assert getattr(pl, name)(**arguments).select(ours) == getattr(zeus, name)(**arguments).select(theirs)


@pytest.mark.parametrize("kind", [pl.ZeusCost, pl.MaxSlowdownConstraint])
def test_no_number_is_no_argument_of_a_selector(kind: type[pl.ZeusCost] | type[pl.MaxSlowdownConstraint]) -> None:
    with pytest.raises(ConfigError):
        kind(float("nan"))


def test_gpus_whose_clocks_differ_between_the_same_ends_are_told_apart() -> None:
    ranges = [GpuRange("GPU", Levels(210, 1410, clocks), 0) for clocks in ((1410, 210), (1410, 900, 210))]
    with pytest.raises(ConfigError, match=r"1410 MHz, 2 clocks; .* 1410 MHz, 3 clocks"):
        agree_on_levels(Mock(all_gather=lambda mine: [mine]), Mock(ranges=lambda: ranges, problem=""), 15, "MHz")
