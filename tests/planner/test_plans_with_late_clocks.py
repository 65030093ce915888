"""Clocks that act late: what a plan takes is what the simulator makes of it, and the planner uses that."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import random_profile, small_problems

from pfo_fs.device.simulated.physics import A100
from pfo_fs.errors import ConfigError
from pfo_fs.planner import Measurement, Plan, Planner, Problem, Profile, SwitchCosts, all_maximum, make_pipeline
from pfo_fs.simulator import Cluster, ModelTruth, Nuisances, ProfileTruth

WAITING_W = 60.0


def problem_of(seed: int, onset_delay_s: float, schedule: str = "1f1b", clocks: int = 5) -> Problem:
    pipeline = make_pipeline(schedule, 2, 4)
    profile = random_profile(random.Random(seed), pipeline, clocks)
    return Problem(pipeline, profile, WAITING_W, switch_costs=SwitchCosts(onset_delay_s=onset_delay_s))


def uneven_problem(seed: int, onset_delay_s: float, stages: int = 4, microbatches: int = 8) -> Problem:
    """An A100 job whose stages take different times; instructions take some ten times as long as clocks act late."""
    rng = random.Random(seed)
    truth = ModelTruth(A100, stages)
    pipeline = make_pipeline("1f1b", stages, microbatches)
    table = {}
    for kind in sorted({(i.stage, i.name) for i in pipeline.instructions}):
        share = rng.uniform(0.8, 1.0)
        found = [truth.measurement(*kind, mhz) for mhz in truth.clocks_mhz[::4]]
        table[kind] = [replace(each, time_s=share * each.time_s, energy_j=share * each.energy_j) for each in found]
    return Problem(pipeline, Profile(table), WAITING_W, switch_costs=SwitchCosts(onset_delay_s=onset_delay_s))


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.sampled_from([0.001, 0.01, 0.05, 1.0]), st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
def test_a_plan_takes_what_the_simulator_makes_of_it(seed: int, onset_delay_s: float, schedule: str) -> None:
    problem = problem_of(seed, onset_delay_s, schedule)
    rng = random.Random(seed)
    clocks = sorted({m.frequency_mhz for rows in problem.profile.measurements.values() for m in rows})
    plan = Plan(problem, tuple(rng.choice(clocks) for _ in problem.pipeline.instructions), "random", 0.0)
    calm = Nuisances(
        time_jitter=0.0, power_jitter=0.0, warm_up=0.0, switch_s=onset_delay_s, delay_s=0.0, overhead_s=0.0, tick_s=0.1
    )
    cluster = Cluster(problem.pipeline, ProfileTruth(problem.profile, WAITING_W), calm)
    played = cluster.run(cluster.clocks_of([{s.rank: s.frequencies for s in plan.schedules()}]))
    assert plan.iteration_time_s == pytest.approx(played.time_s, rel=1e-9)
    assert plan.energy_j == pytest.approx(played.energy_j, rel=1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10**9), st.sampled_from([0.003, 0.01, 0.05]), st.sampled_from([1.0, 1.005, 1.1]))
def test_a_plan_is_on_time_though_clocks_act_late(seed: int, onset_delay_s: float, slowdown: float) -> None:
    problem = problem_of(seed, onset_delay_s)
    highest = all_maximum(problem)
    deadline_s = slowdown * highest.iteration_time_s
    plan = Planner(problem).at(deadline=deadline_s)
    assert plan.iteration_time_s <= deadline_s * (1 + 1e-9)
    assert plan.energy_j <= highest.energy_j * (1 + 1e-9)
    assert plan.lower_bound_j is not None
    assert plan.energy_j >= plan.lower_bound_j * (1 - 1e-9)


@pytest.mark.slow
@settings(max_examples=8)
@given(small_problems(), st.sampled_from([0.003, 0.01, 0.05]), st.floats(1.0, 1.2))
def test_bound_optimum_and_plan_are_in_order(problem: Problem, onset_delay_s: float, slowdown: float) -> None:
    problem = replace(problem, switch_costs=SwitchCosts(onset_delay_s=onset_delay_s))
    planner = Planner(problem)
    deadline_s = planner.fastest_s * slowdown
    plan = planner.at(deadline=deadline_s)
    rows = [problem.measured_by_kind[i.stage, i.name].frequencies_mhz for i in problem.pipeline.instructions]
    every = [Plan(problem, clocks, "all", deadline_s=0.0) for clocks in itertools.product(*rows)]
    least_j = min(each.energy_j for each in every if each.iteration_time_s <= deadline_s)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= least_j * (1 + 1e-9) <= plan.energy_j * (1 + 2e-9)


def test_a_wasteful_clock_is_used_where_the_next_instruction_would_not_reach_its_own_in_time() -> None:
    table = {
        (0, "forward"): [Measurement(1000, 0.1, 30.0), Measurement(500, 0.2, 31.0)],
        (0, "backward"): [Measurement(1000, 0.1, 30.0), Measurement(500, 0.2, 15.0)],
    }
    problem = Problem(make_pipeline("1f1b", 1, 1), Profile(table), 0.0, switch_costs=SwitchCosts(onset_delay_s=0.1))
    plan = Planner(problem).at(deadline=0.5)
    assert plan.frequencies_mhz == (500, 500)
    assert plan.energy_j == pytest.approx(45.0)
    assert plan.lower_bound_j == pytest.approx(45.0)


@pytest.mark.parametrize("seed", range(3))
def test_plans_save_most_of_what_can_be_saved_though_instructions_without_slack_follow_slower_ones(seed: int) -> None:
    problem = uneven_problem(seed, 0.01)
    highest = all_maximum(problem)
    plan = Planner(problem).at(deadline=highest.iteration_time_s)
    assert plan.gap is not None
    assert plan.gap < 0.5 * (highest.energy_j / plan.energy_j - 1)


def test_plans_of_large_problems_with_late_clocks_are_near_the_least_possible() -> None:
    problem = uneven_problem(0, 0.01, stages=8, microbatches=32)
    assert len(problem.pipeline.instructions) == 512
    plan = Planner(problem).at(deadline=all_maximum(problem).iteration_time_s)
    assert plan.gap is not None
    assert plan.gap < 0.02


def test_a_clock_that_acts_at_once_after_the_begin_costs_nothing() -> None:
    problem = problem_of(3, 0.0)
    assert all_maximum(problem).switch_load.energy_j == 0
    assert problem.switch_costs.none


def test_an_instruction_begins_at_the_clock_before_and_an_iteration_at_the_highest() -> None:
    table = {(0, name): [Measurement(1000, 0.1, 30.0), Measurement(500, 0.2, 20.0)] for name in ("forward", "backward")}
    pipeline = make_pipeline("1f1b", 1, 1)
    problem = Problem(pipeline, Profile(table), 0.0, switch_costs=SwitchCosts(onset_delay_s=0.05))
    assert Plan(problem, (500, 500), "", 1.0).times_s == pytest.approx([0.05 + 0.5 * 0.2, 0.2])
    assert Plan(problem, (500, 1000), "", 1.0).times_s == pytest.approx([0.05 + 0.5 * 0.2, 0.05 + 0.75 * 0.1])


def test_a_clock_that_was_not_measured_for_the_instruction_counts_like_the_nearest_one() -> None:
    table = {
        (0, "forward"): [Measurement(1000, 0.1, 30.0), Measurement(505, 0.2, 20.0)],
        (0, "backward"): [Measurement(1000, 0.1, 30.0), Measurement(500, 0.2, 20.0)],
    }
    problem = Problem(make_pipeline("1f1b", 1, 1), Profile(table), 0.0, switch_costs=SwitchCosts(onset_delay_s=0.05))
    assert Plan(problem, (505, 1000), "", 1.0).times_s[1] == pytest.approx(0.05 + 0.75 * 0.1)


def changes_of_plans(onset_delay_s: float) -> int:
    """The clock changes of some jobs' plans together: those of one job also depend on the linear solver's release."""
    problems = [problem_of(seed, onset_delay_s, clocks=8) for seed in range(8, 12)]
    plans = [Planner(p).at(deadline=1.05 * all_maximum(p).iteration_time_s) for p in problems]
    return sum(len(plan.changes) for plan in plans)


def test_plans_change_clocks_less_often_the_later_they_act() -> None:
    assert changes_of_plans(0.0) > changes_of_plans(0.02) > changes_of_plans(10.0)


def test_a_negative_latency_is_refused() -> None:
    with pytest.raises(ConfigError, match="onset_delay_s"):
        SwitchCosts(onset_delay_s=-0.01)


@settings(max_examples=20)
@given(st.integers(0, 10**9), st.sampled_from([1.0, 1.1, 1.5]), st.booleans())
def test_the_quick_bound_is_below_every_plan(seed: int, slowdown: float, straggler: bool) -> None:
    problem = problem_of(seed, 0.01)
    planner = Planner(problem)
    deadline_s = slowdown * planner.fastest_s
    plan = planner.at(straggler=deadline_s) if straggler else planner.at(deadline=deadline_s)
    assert planner.least_j(deadline_s, straggler=straggler) <= plan.energy_j * (1 + 1e-9)
