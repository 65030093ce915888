"""Plans where a clock change costs something: never late, and never behind the simple means, whatever the profile."""

import itertools
import math
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import measured_mhz, published, small_problems

from pfo_fs.autotune.job_layout import pipeline_of
from pfo_fs.errors import ConfigError, Impossible
from pfo_fs.planner import (
    Measurement,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    even_hosts,
    make_pipeline,
    one_frequency,
    one_per_stage,
)


def noisy_profile(seed: int, stages: int) -> Profile:
    """A profile as of a power-limited board: max clocks differ by noise only, and the top one is slower."""
    rng = random.Random(seed)
    table = {}
    for stage in range(stages):
        work = rng.uniform(0.9, 1.1)
        for name, seconds in (("forward", 0.02), ("backward", 0.045)):
            rows = []
            for number in range(20):
                lowered = max(0, number - 8) / 20
                time_s = seconds * work * (0.3 + 0.7 / (1 - 0.6 * lowered)) * (1 + rng.gauss(0, 0.01))
                time_s *= 1.015 if number == 0 else 1
                power_w = (90 + 210 * (1 - 0.6 * lowered) ** 2.5) * (1 + rng.gauss(0, 0.01))
                rows.append(Measurement(1410 - 15 * number, time_s, time_s * power_w))
            table[stage, name] = rows
        halves = [Measurement(m.frequency_mhz, m.time_s / 2, m.energy_j / 2) for m in table[stage, "backward"]]
        table[stage, "backward_input"] = table[stage, "backward_weight"] = halves
    return Profile(table, f"noisy {seed}")


def problem_of(seed: int, costs: SwitchCosts, schedule: str = "1f1b", ranks: int = 4) -> Problem:
    stages = 2 * ranks if schedule in ("interleaved", "zb-v") else ranks
    pipeline = make_pipeline(schedule, stages, 2 * ranks, num_ranks=ranks)
    return Problem(pipeline, noisy_profile(seed, stages), 75.0, switch_costs=costs)


@st.composite
def switch_costs(draw: st.DrawFn) -> SwitchCosts:
    """What changes may cost on a node: rank and host counts of small pipelines, instructions of 20 and 45 ms."""
    calls = draw(st.sampled_from([1, 2, 8]))
    return SwitchCosts(
        driver_time_s=calls * draw(st.sampled_from([0.0, 0.001, 0.005])),
        latency_s=draw(st.sampled_from([0.0, 0.01, 0.1])),
        timing_error_s=draw(st.sampled_from([0.0, 0.0015, 0.02])),
        calls=calls,
        hosts=draw(st.sampled_from([(), ((0, 1),)])),
        max_calls_per_s=draw(st.sampled_from([math.inf, 170.0, 5.0])),
    )


def simple_plans(problem: Problem, deadline_s: float, straggler_s: float | None = None) -> list[Plan]:
    plans = [all_maximum(problem).replace(straggler_s=straggler_s)]
    for simple in (one_frequency, one_per_stage):
        with suppress(Impossible):
            plans.append(simple(problem, deadline_s, straggler_s))
    return [plan for plan in plans if plan.iteration_time_s <= deadline_s]


def test_a_rank_whose_instructions_share_no_clock_is_planned_all_the_same() -> None:
    table = {
        (0, "forward"): [Measurement(1400, 0.1, 30.0), Measurement(1300, 0.11, 25.0)],
        (0, "backward"): [Measurement(1410, 0.2, 60.0), Measurement(1310, 0.22, 50.0)],
    }
    problem = Problem(make_pipeline("1f1b", 1, 3), Profile(table), 50.0, switch_costs=SwitchCosts(0.01))
    maximum = all_maximum(problem)
    assert Planner(problem).at(deadline=maximum.iteration_time_s).iteration_time_s <= maximum.iteration_time_s


# ---- what the driver of a host can do


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.integers(0, 10**9),
    switch_costs(),
    st.sampled_from(["1f1b", "gpipe", "interleaved", "zb-v"]),
    st.sampled_from([1.0, 1.02, 1.2]),
    st.booleans(),
)
def test_whatever_changes_cost_a_plan_is_on_time_can_be_made_and_is_not_behind_simple_ones(
    seed: int, costs: SwitchCosts, schedule: str, slowdown: float, straggler: bool
) -> None:
    problem = problem_of(seed, costs, schedule, ranks=2)
    deadline_s = slowdown * all_maximum(problem).iteration_time_s
    planner = Planner(problem)
    plan = planner.at(straggler=deadline_s) if straggler else planner.at(deadline=deadline_s)
    assert plan.iteration_time_s <= deadline_s
    assert plan.switch_load.fits
    simple = simple_plans(problem, deadline_s, deadline_s if straggler else None)
    assert plan.energy_j <= min(other.energy_j for other in simple if other.switch_load.fits) * (1 + 1e-9)
    assert plan.energy_j >= plan.lower_bound_j * (1 - 1e-9)
    assert plan.switching


@pytest.mark.parametrize(
    ("costs", "kept"),
    [
        (SwitchCosts(driver_time_s=0.005, latency_s=0.010, timing_error_s=0.0015), 0.98),
        (SwitchCosts(driver_time_s=0.040, latency_s=0.010, timing_error_s=0.0015, calls=8), 0.87),
    ],
    ids=["one GPU", "eight GPUs"],
)
def test_most_of_the_saving_is_kept_with_fewer_changes(shared_data: Path, costs: SwitchCosts, kept: float) -> None:
    problem = published(shared_data, 12)
    maximum = all_maximum(problem)
    free = Planner(problem).at(deadline=maximum.iteration_time_s)
    plan = Planner(replace(problem, switch_costs=costs)).at(deadline=free.deadline_s)
    assert maximum.energy_j - plan.energy_j > kept * (maximum.energy_j - free.energy_j)
    assert plan.iteration_time_s <= maximum.iteration_time_s
    assert len(plan.changes) <= len(free.changes)


# ---- what the plan says about its changes


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        (SwitchCosts(), "clock changes: changes cost nothing in this model"),
        (SwitchCosts(max_calls_per_s=20.0, hosts=(tuple(range(4)),)), "makes at most 20 calls per second"),
        (SwitchCosts(timing_error_s=0.03), "more would take more energy than they save"),
        (SwitchCosts(latency_s=100.0), "one clock for each rank instead of"),
    ],
)
def test_a_plan_says_why_it_has_no_more_changes(costs: SwitchCosts, words: str) -> None:
    problem = problem_of(3, costs)
    assert words in Planner(problem).at(deadline=all_maximum(problem).iteration_time_s).switching


def test_many_short_instructions_of_a_balanced_pipeline_keep_to_one_clock_for_each_rank() -> None:
    """As in large runs: instructions of some 10 ms, and a change of a node's eight GPUs takes 46 ms."""
    rows = {
        name: [Measurement(mhz, seconds * (0.4 + 800 / mhz), seconds * (200 + mhz / 4)) for mhz in (1980, 1800, 1600)]
        for name, seconds in (("forward", 0.009), ("backward", 0.018))
    }
    profile = Profile({(stage, name): table for stage in range(4) for name, table in rows.items()}, "balanced")
    costs = SwitchCosts(driver_time_s=0.046, latency_s=0.02, timing_error_s=0.002, calls=8)
    plan = Planner(Problem(make_pipeline("1f1b", 4, 32), profile, 75.0, switch_costs=costs)).at(slowdown=1.0)
    assert not plan.changes
    assert plan.switching.startswith("one clock for each rank instead of ")


# ---- plans and bounds against all plans of small problems


@settings(max_examples=10)
@given(
    small_problems(clocks=2), st.sampled_from([0.001, 0.1, 0.3]), st.sampled_from([0.001, 0.02]), st.floats(1.0, 1.2)
)
def test_bound_optimum_and_plan_are_in_order(problem: Problem, driver_s: float, late_s: float, slowdown: float) -> None:
    problem = replace(problem, switch_costs=SwitchCosts(driver_s, timing_error_s=late_s))
    planner = Planner(problem)
    deadline_s = planner.fastest_s * slowdown
    plan = planner.at(deadline=deadline_s)
    every = (Plan(problem, clocks, "all", deadline_s=0.0) for clocks in itertools.product(*measured_mhz(problem)))
    possible = [each for each in every if each.iteration_time_s <= deadline_s and each.switch_load.fits]
    least_j = min(each.energy_j for each in possible)
    assert plan.iteration_time_s <= deadline_s * (1 + 1e-9)
    assert plan.lower_bound_j <= least_j * (1 + 1e-9) <= plan.energy_j * (1 + 2e-9)
    assert plan.energy_j <= least_j * (1 + 3e-2)


# ---- what clock changes cost: the figures of one plan by hand, and the limits of a host's driver


def two_clocks(costs: SwitchCosts, stages: int = 1, microbatches: int = 2, gpus_per_rank: int = 1) -> Problem:
    """Forward and backward take 0.1 s and 30 J at 1400 MHz, and 0.2 s and 24 J at 1000 MHz."""
    rows = [Measurement(1400, 0.1, 30.0), Measurement(1000, 0.2, 24.0)]
    table = {(stage, name): rows for stage in range(stages) for name in ("forward", "backward")}
    pipeline = make_pipeline("1f1b", stages, microbatches)
    return Problem(pipeline, Profile(table), 50.0, switch_costs=costs, gpus_per_rank=gpus_per_rank)


def plan_of(problem: Problem, *clocks_mhz: int) -> Plan:
    return Plan(problem, clocks_mhz, "", 1.0)


def test_changes_cost_nothing_unless_the_problem_says_so() -> None:
    load = plan_of(two_clocks(SwitchCosts()), 1400, 1000, 1400, 1000).switch_load
    assert (load.changes, load.energy_j, load.calls_per_s, load.fits) == (3, 0.0, 0.0, True)


@pytest.mark.parametrize("clocks_mhz", [(1400, 1400, 1000, 1000), (1000, 1000, 1400, 1400)])
def test_a_change_makes_the_lower_instruction_run_at_the_higher_clock_for_a_while(clocks_mhz: tuple[int, ...]) -> None:
    """An eighth of the instruction's work, and of the 11 J that it saves beyond waiting: 25 J at 1400 and 14 J at
    1000 MHz."""
    costs = SwitchCosts(timing_error_s=0.0125)
    free, plan = plan_of(two_clocks(SwitchCosts()), *clocks_mhz), plan_of(two_clocks(costs), *clocks_mhz)
    assert plan.energy_j - free.energy_j == pytest.approx((25.0 - 14.0) / 8)
    assert plan.iteration_time_s == free.iteration_time_s


def test_a_change_costs_no_more_than_the_whole_instruction_at_the_higher_clock() -> None:
    plan = plan_of(two_clocks(SwitchCosts(timing_error_s=9.0)), 1400, 1400, 1000, 1400)
    assert plan.switch_load.energy_j == pytest.approx(2 * (25.0 - 14.0))


def test_a_change_of_many_gpus_has_each_of_them_wait_for_half_of_the_other_calls_on_average() -> None:
    assert SwitchCosts(driver_time_s=0.04, calls=8).wrong_clock_s == pytest.approx(0.0175)
    assert SwitchCosts(driver_time_s=0.005, calls=1, timing_error_s=0.001).wrong_clock_s == pytest.approx(0.001)


def test_a_rank_that_waits_for_its_neighbour_changes_its_clock_for_nothing() -> None:
    """The last stage's backward comes back to a first stage that has waited for it since its forward."""
    problem = two_clocks(SwitchCosts(timing_error_s=0.01), stages=2, microbatches=1)
    plan = plan_of(problem, 1400, 1000, 1400, 1400)
    assert plan.changes == [1]
    assert plan.switch_load.energy_j == 0.0


def test_energies_of_changes_are_sums_over_the_gpus_of_a_rank() -> None:
    one, many = (two_clocks(SwitchCosts(timing_error_s=0.01), gpus_per_rank=gpus) for gpus in (1, 4))
    energies_j = [plan_of(problem, 1400, 1000, 1000, 1000).switch_load.energy_j for problem in (one, many)]
    assert energies_j[1] == pytest.approx(4 * energies_j[0]) != 0


def test_the_calls_of_a_host_count_with_the_change_between_two_iterations() -> None:
    costs = SwitchCosts(driver_time_s=0.02, calls=2, hosts=((0, 1),))
    plan = plan_of(two_clocks(costs, stages=2, microbatches=1), 1400, 1000, 1400, 1000)
    calls = 2 * 2 * 2  # two ranks, two changes of each, two calls for a change
    assert plan.switch_load.calls_per_s == pytest.approx(calls / plan.iteration_time_s)


def test_ranks_of_one_host_wait_for_each_others_calls() -> None:
    apart = SwitchCosts(driver_time_s=0.02, hosts=((0,), (1,)))
    together = replace(apart, hosts=((0, 1),))
    problems = [two_clocks(costs, stages=2, microbatches=2) for costs in (apart, together)]
    energies = [plan_of(problem, *[1400, 1400, 1000, 1000] * 2).switch_load.energy_j for problem in problems]
    assert energies[0] == 0.0 < energies[1]


@pytest.mark.parametrize(
    ("costs", "overloaded"),
    [
        ({"driver_time_s": 0.119}, False),  # 0.6 s, three changes and one between two iterations: 80 % of the time
        ({"driver_time_s": 0.121}, True),
        ({"max_calls_per_s": 4 / 0.6 * 1.01}, False),
        ({"max_calls_per_s": 4 / 0.6 * 0.99}, True),
    ],
)
def test_a_host_is_overloaded_by_a_busy_driver_or_one_of_fewer_calls(costs: dict[str, float], overloaded: bool) -> None:
    plan = plan_of(two_clocks(SwitchCosts(**costs)), 1400, 1000, 1400, 1000)
    assert plan.iteration_time_s == pytest.approx(0.6)
    assert plan.switch_load.overloaded == ((0,) if overloaded else ())


@pytest.mark.parametrize(
    ("clocks_mhz", "driver_time_s", "latency_s", "too_short"),
    [
        ((1000, 1000, 1400, 1000), 0.02, 0.07, 0),  # the run at 1400 MHz takes 0.1 s, and a call and its latency more
        ((1000, 1000, 1400, 1000), 0.02, 0.09, 1),
        ((1400, 1400, 1000, 1400), 0.09, 0.0, 0),  # that at 1000 MHz takes 0.2 s, and its own and the next call more
        ((1400, 1400, 1000, 1400), 0.11, 0.0, 1),
    ],
)
def test_a_run_of_one_clock_is_too_short_if_the_next_change_must_be_asked_for_before_the_last_one_acts(
    clocks_mhz: tuple[int, ...], driver_time_s: float, latency_s: float, too_short: int
) -> None:
    costs = SwitchCosts(driver_time_s=driver_time_s, latency_s=latency_s)
    assert plan_of(two_clocks(costs), *clocks_mhz).switch_load.too_short == too_short


@pytest.mark.parametrize(
    "wrong",
    [
        {"driver_time_s": -0.1},
        {"timing_error_s": math.nan},
        {"latency_s": math.inf},
        {"calls": 0},
        {"max_calls_per_s": 0.0},
        {"hosts": ((0, 1), (1, 2))},
    ],
)
def test_a_cost_out_of_range_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SwitchCosts(**wrong)


def test_ranks_are_spread_over_hosts_in_their_order() -> None:
    assert even_hosts(5, 2) == ((0, 1), (2, 3), (4,))
    assert SwitchCosts(hosts=((1, 2),)).hosts_of(4) == [[1, 2], [0], [3]]


def test_a_plan_is_in_time_without_a_thorough_search_where_max_clocks_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfo_fs.planner.scenarios._MORE", None)  # what a thorough search iterates over
    rows = [Measurement(1400, 0.12, 10.0), Measurement(1300, 0.1, 20.0)]
    profile = Profile({(stage, name): rows for stage in range(3) for name in ("forward", "backward")})
    pipeline = pipeline_of([[("forward", stage), ("backward", stage)] for stage in (0, 2)])  # a stage is left out
    planner = Planner(Problem(pipeline, profile, 60.0, 100.0, SwitchCosts(driver_time_s=0.001)))
    assert planner.at(deadline=planner.fastest_s).iteration_time_s <= planner.fastest_s
