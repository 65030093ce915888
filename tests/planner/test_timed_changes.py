"""Plans and bounds where GPUs stand still at clock changes, against all plans of small problems."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import small_problems

from pfo_fs.errors import Impossible
from pfo_fs.planner import ChangeBudget, Plan, Planner, Problem, SwitchCosts, all_maximum
from pfo_fs.planner.change_relaxation import ChangeRelaxation
from pfo_fs.planner.clock_tables import ClockTables

_EXACT = 1e-9


def every_plan(problem: Problem) -> list[Plan]:
    rows = [problem.measured_by_kind[i.stage, i.name].frequencies_mhz for i in problem.pipeline.instructions]
    return [Plan(problem, clocks, "all", deadline_s=0.0) for clocks in itertools.product(*rows)]


def with_costs(problem: Problem, still_s: float, late_s: float = 0.0) -> Problem:
    return replace(problem, switch_costs=SwitchCosts(still_s, late_s=late_s))


@settings(max_examples=25, deadline=None)
@given(small_problems(), st.sampled_from([0.001, 0.01, 0.05]), st.sampled_from([0.0, 0.02]), st.floats(1.0, 1.2))
def test_bound_optimum_and_plan_are_in_order_and_the_plan_is_on_time(
    problem: Problem, still_s: float, late_s: float, slowdown: float
) -> None:
    problem = with_costs(problem, still_s, late_s)
    planner = Planner(problem, seconds=2)
    deadline_s = planner.fastest_s * slowdown
    plan = planner.at(deadline=deadline_s)
    least_j = min(each.energy_j for each in every_plan(problem) if each.iteration_time_s <= deadline_s)
    assert plan.iteration_time_s <= deadline_s * (1 + _EXACT)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= least_j * (1 + _EXACT) <= plan.energy_j * (1 + 2 * _EXACT)


@settings(max_examples=25, deadline=None)
@given(small_problems(), st.integers(0, 10**6), st.sampled_from([0.0, 0.01]))
def test_any_prices_of_time_give_a_valid_bound(problem: Problem, seed: int, late_s: float) -> None:
    problem = with_costs(problem, 0.01, late_s)
    tables, rng = ClockTables(problem), random.Random(seed)
    relaxation = ChangeRelaxation(problem, tables)
    arcs, sinks = ([rng.uniform(0, 300) for _ in row] for row in (relaxation.edges.after, relaxation.edges.sinks))
    bound = relaxation.bound(arcs, sinks, problem.waiting_power_w, [0.0] * len(tables.kind))
    length_s = Planner(problem, seconds=1).fastest_s - problem.overhead_s
    least_j = min(
        each.effective_j + problem.waiting_power_w * (each.iteration_time_s - problem.overhead_s)
        for each in every_plan(problem)
        if each.iteration_time_s <= length_s + problem.overhead_s
    )
    assert bound.at(length_s) <= least_j + 1e-6


@settings(max_examples=10, deadline=None)
@given(small_problems(clocks=2), st.integers(0, 4))
def test_a_budget_of_changes_is_kept_and_its_bound_is_valid(problem: Problem, most: int) -> None:
    problem = with_costs(problem, 0.002)
    deadline_s = all_maximum(problem).iteration_time_s * 1.05
    planner = Planner(problem, seconds=1)
    possible = [p.energy_j for p in every_plan(problem) if p.iteration_time_s <= deadline_s and len(p.changes) <= most]
    try:
        plan = ChangeBudget(planner, deadline_s).within(most)
    except Impossible:
        return
    assert len(plan.changes) <= most
    assert plan.iteration_time_s <= deadline_s * (1 + _EXACT)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= min(possible) * (1 + _EXACT) <= plan.energy_j * (1 + 2 * _EXACT)


def test_a_budget_that_no_plan_keeps_is_refused() -> None:
    from planner_problems import random_profile

    from pfo_fs.planner import make_pipeline

    pipeline = make_pipeline("1f1b", 2, 2)
    profile = random_profile(random.Random(1), pipeline, 2)
    planner = Planner(Problem(pipeline, profile, 50.0), seconds=1)
    with pytest.raises(Impossible):
        ChangeBudget(planner, planner.fastest_s / 2).within(0)
