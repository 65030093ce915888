"""What a planner can be asked for, at the ends of what is possible and one step outside."""

import dataclasses
import math
import random
from pathlib import Path

import pytest
from planner_problems import options_of, published, random_profile

from pfo_fs.errors import ConfigError, Impossible, PlannerError
from pfo_fs.planner import (
    Measurement,
    Plan,
    Planner,
    Problem,
    Profile,
    all_maximum,
    even_deadlines,
    lowtime_plan,
    lowtime_plans,
    make_pipeline,
    one_frequency,
    one_per_stage,
    solve_frontier,
)
from pfo_fs.scheduler import read_plan


def problem_of(schedule: str = "1f1b", stages: int = 4, microbatches: int = 8, **options: float) -> Problem:
    pipeline = make_pipeline(schedule, stages, microbatches)
    return Problem(pipeline, random_profile(random.Random(5), pipeline, 12), 80.0, **options)


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(problem_of())


def test_the_fastest_plan_saves_energy_and_a_deadline_one_bit_before_it_is_taken_for_it(planner: Planner) -> None:
    maximum, almost = all_maximum(planner.problem), planner.at(deadline=math.nextafter(planner.fastest_s, 0))
    assert planner.fastest_s == maximum.iteration_time_s
    for plan in (planner.fastest(), almost):
        assert plan.iteration_time_s == planner.fastest_s
        assert plan.energy_j < maximum.energy_j


@pytest.mark.parametrize(
    ("request_", "asked", "best"),
    [
        ({"deadline": 0.5}, 0.5, "fastest_s"),
        ({"straggler": 0.5}, 0.5, "fastest_s"),
        ({"slowdown": 0.9}, 0.9, None),
        ({"power": 1.0}, 1.0, None),
    ],
)
def test_what_is_possible_is_said(planner: Planner, request_: dict[str, float], asked: float, best: str | None) -> None:
    with pytest.raises(Impossible) as caught:
        planner.at(**request_)
    assert caught.value.asked == asked
    assert caught.value.best > asked
    if best:
        assert caught.value.best == getattr(planner, best)
        with pytest.raises(Impossible, match="one-frequency"):
            one_frequency(planner.problem, asked)


@pytest.mark.parametrize(
    "request_", [{}, {"deadline": 2.0, "power": 5.0}, {"deadline": float("nan")}, {"slowdown": -1.0}]
)
def test_a_request_that_makes_no_sense_is_refused(planner: Planner, request_: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        planner.at(**request_)


def test_a_straggler_is_waited_for_at_the_clocks_that_cost_least(planner: Planner) -> None:
    straggler_s = 2 * planner.slowest_s
    plan = planner.at(straggler=straggler_s)
    slowest = tuple(choices.frequencies_mhz[-1] for choices in options_of(planner.problem))
    assert plan.energy_j == pytest.approx(Plan(planner.problem, slowest, "", 1.0).energy_over(straggler_s))
    assert plan.energy_j <= planner.at(deadline=straggler_s).energy_over(straggler_s)
    assert plan.average_power_w == pytest.approx(plan.energy_j / straggler_s)


@pytest.mark.parametrize("share", [0.02, 0.98])
def test_a_power_cap_is_kept_with_little_time_lost(planner: Planner, share: float) -> None:
    high = planner.fastest().average_power_w
    low = planner.at(straggler=planner.slowest_s).average_power_w
    cap_w = low + share * (high - low)
    plan = planner.at(power=cap_w)
    assert plan.average_power_w <= cap_w
    faster = planner.at(straggler=max(planner.fastest_s, plan.iteration_time_s * 0.97))
    assert faster.energy_over(faster.iteration_time_s) / faster.iteration_time_s > cap_w


def test_many_deadlines_at_once_are_each_kept_and_never_much_worse_than_one_by_one(planner: Planner) -> None:
    deadlines = [planner.fastest_s * (1 + 0.01 * n) for n in range(20)]
    for deadline_s, plan in zip(deadlines, planner.at_each(deadlines), strict=True):
        alone = planner.at(deadline=deadline_s)
        assert plan.iteration_time_s <= deadline_s
        assert plan.lower_bound_j == pytest.approx(alone.lower_bound_j)
        assert plan.energy_j <= alone.energy_j * 1.02


def test_overhead_and_tensor_parallel_gpus_are_part_of_time_and_energy() -> None:
    plain, larger = Planner(problem_of()), Planner(problem_of(overhead_s=0.5, gpus_per_rank=4))
    assert larger.fastest_s == pytest.approx(plain.fastest_s + 0.5)
    waiting_j = 0.5 * 4 * 4 * 80.0
    assert larger.fastest().energy_j == pytest.approx(4 * plain.fastest().energy_j + waiting_j, rel=1e-3)


def test_a_plan_becomes_schedules_for_training() -> None:
    plan = Planner(problem_of("zb-v", 4, 6)).fastest()
    schedules = plan.schedules()
    assert [len(schedule.frequencies) for schedule in schedules] == [36, 36]
    assert set(schedules[0].stages or []) == {0, 3}
    assert [mhz for schedule in schedules for _, mhz in schedule.frequencies] == list(plan.frequencies_mhz)


def test_the_critical_path_is_as_long_as_the_iteration(planner: Planner) -> None:
    plan = planner.at(slowdown=1.03)
    assert sum(plan.times_s[node] for node in plan.critical) == pytest.approx(plan.iteration_time_s)


EVEN = [
    [Measurement(1400 - 100 * n, (1 + n) * (1 + stage) * 0.1, 100.0 / (1 + n)) for n in range(4)] for stage in (0, 1)
]
OWN = [[Measurement(mhz, 140 / mhz, mhz / 50) for mhz in (1400, 1300 - 100 * stage)] for stage in (0, 1)]


@pytest.mark.parametrize(
    ("of_stages", "slowdown", "mhz"),
    [(EVEN, 1.15, [{1300}, {1400}]), (OWN, 5.0, [{1300}, {1200}])],
    ids=["evens out the forwards", "at its own clocks"],
)
def test_one_clock_per_stage_evens_stages_out_at_their_own_clocks(
    of_stages: list[list[Measurement]], slowdown: float, mhz: list[set[int]]
) -> None:
    rows = {(stage, name): of_stages[stage] for stage in (0, 1) for name in ("forward", "backward")}
    problem = Problem(make_pipeline("1f1b", 2, 8), Profile(rows), 1.0)
    plan = one_per_stage(problem, all_maximum(problem).iteration_time_s * slowdown)
    assert [{mhz for _, mhz in order} for order in plan.orders()] == mhz


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slowdown", [1.0, 1.02, 1.4])
def test_one_clock_per_stage_is_on_time_and_never_worse_than_one_for_all(seed: int, slowdown: float) -> None:
    pipeline = make_pipeline("1f1b", 4, 8).with_delay(0.0007)
    problem = Problem(pipeline, random_profile(random.Random(seed), pipeline, 3), 60.0, overhead_s=0.03)
    deadline_s = all_maximum(problem).iteration_time_s * slowdown
    per_stage, single = one_per_stage(problem, deadline_s), one_frequency(problem, deadline_s)
    assert max(per_stage.iteration_time_s, single.iteration_time_s) <= deadline_s
    assert per_stage.energy_j <= single.energy_j


# ---- frontiers


@pytest.mark.parametrize("points", [-1, 0, 1, 10**6])
def test_a_frontier_of_so_many_points_is_refused(planner: Planner, points: int) -> None:
    with pytest.raises(ConfigError, match="points"):
        even_deadlines(planner, points)


def test_each_deadline_has_its_plan_however_many_there_are(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines = even_deadlines(planner, 9)
    at_once = list(solve_frontier(planner.problem, [*deadlines[::-1], deadlines[0]]))
    assert [plan.deadline_s for plan in at_once] == deadlines
    assert all(plan.iteration_time_s <= plan.deadline_s for plan in at_once)
    monkeypatch.setattr("pfo_fs.planner.planner._MOST_AT_ONCE", 4)
    in_parts = list(solve_frontier(planner.problem, deadlines))
    # Each call begins from another basis and finds other plans of equal quality.
    assert [plan.energy_j for plan in in_parts] == pytest.approx([plan.energy_j for plan in at_once], rel=0.01)


# ---- the published profiles


@pytest.mark.parametrize(
    ("profile", "microbatches", "percent"),
    [
        ("gpt3-175b+a100_sxm_bf16", 12, 15.201604),
        ("gpt3-175b+a40_bf16", 12, 11.810657),
        ("bloom+a100_sxm_bf16", 12, 10.471891),
        ("gpt3-175b+a100_sxm_bf16", 96, 13.319138),
    ],
)
def test_savings_without_slowdown_are_not_below_the_published_ones(
    shared_data: Path, profile: str, microbatches: int, percent: float
) -> None:
    problem = published(shared_data, microbatches, profile)
    maximum = all_maximum(problem)
    plan = Planner(problem).at(deadline=maximum.iteration_time_s)
    assert plan.iteration_time_s <= maximum.iteration_time_s
    assert 100 * (1 - plan.energy_j / maximum.energy_j) >= percent
    assert plan.gap < 0.01


def test_lowtimes_own_plans_are_beaten_at_their_own_iteration_time(shared_data: Path) -> None:
    problem = published(shared_data, 12)
    planner = Planner(problem)
    files = sorted((shared_data / "plans").glob("freqs_pipeline_gpt3*.py"))
    assert len(files) == 3
    for file in files:
        clocks_mhz = tuple(mhz for order in read_plan(file) for _, mhz in order)
        theirs = Plan(problem, clocks_mhz, "lowtime", deadline_s=0.0)
        ours = planner.at(straggler=theirs.iteration_time_s)
        assert ours.energy_j <= theirs.energy_j


# ---- lowtime as another solver


@pytest.fixture
def problem(shared_data: Path) -> Problem:
    pytest.importorskip("lowtime")
    return published(shared_data, 2)


def test_lowtime_returns_the_same_kind_of_plan_and_ours_is_no_worse(problem: Problem) -> None:
    deadline_s = all_maximum(problem).iteration_time_s * 1.1
    theirs = lowtime_plan(problem, deadline_s, unit_time_s=0.002)
    ours = Planner(problem).at(deadline=deadline_s)
    assert theirs.iteration_time_s <= deadline_s
    assert theirs.solver == "lowtime"
    assert ours.energy_j <= theirs.energy_j
    assert ours.lower_bound_j <= theirs.energy_j


def test_lowtime_says_when_its_fastest_plan_is_too_slow_and_is_not_asked_for_delays(problem: Problem) -> None:
    with pytest.raises(PlannerError, match=r"^lowtime keeps 1 options of"):
        next(lowtime_plans(problem, unit_time_s=10.0))
    with pytest.raises(Impossible, match="its fastest takes"):
        lowtime_plan(problem, 0.5, unit_time_s=0.005)
    other = dataclasses.replace(problem, pipeline=make_pipeline("1f1b", 8, 2).with_delay(0.001))
    with pytest.raises(ConfigError, match="without communication delays"):
        next(lowtime_plans(other))
