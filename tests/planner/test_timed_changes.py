"""Plans and bounds where GPUs stand still at clock changes, against all plans of small problems."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from highspy import Highs, HighsModelStatus
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import small_problems

from pfo_fs.errors import Impossible
from pfo_fs.planner import (
    ChangeBudget,
    Measurement,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    change_program,
    make_pipeline,
)
from pfo_fs.planner.change_program import ChangeProgram
from pfo_fs.planner.change_relaxation import ChangeRelaxation
from pfo_fs.planner.clock_tables import ClockTables
from pfo_fs.planner.segment_search import SegmentSearch, ramped

_EXACT = 1e-9


def every_plan(problem: Problem) -> list[Plan]:
    rows = [problem.measured_by_kind[i.stage, i.name].frequencies_mhz for i in problem.pipeline.instructions]
    return [Plan(problem, clocks, "all", deadline_s=0.0) for clocks in itertools.product(*rows)]


def with_costs(problem: Problem, still_s: float, late_s: float = 0.0, acts_late_s: float = 0.0) -> Problem:
    return replace(problem, switch_costs=SwitchCosts(still_s, late_s=late_s, acts_late_s=acts_late_s))


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
    if not late_s:
        assert plan.energy_j <= least_j * (1 + 2e-3)


@settings(max_examples=25, deadline=None)
@given(small_problems(), st.integers(0, 10**6), st.sampled_from([(0.01, 0.0), (0.01, 0.01), (0.0, 0.0, 0.02)]))
def test_any_prices_of_time_give_a_valid_bound(problem: Problem, seed: int, costs_s: tuple[float, ...]) -> None:
    problem = with_costs(problem, *costs_s)
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

    pipeline = make_pipeline("1f1b", 2, 2)
    profile = random_profile(random.Random(1), pipeline, 2)
    planner = Planner(Problem(pipeline, profile, 50.0), seconds=1)
    with pytest.raises(Impossible):
        ChangeBudget(planner, planner.fastest_s / 2).within(0)


def test_a_bound_for_plans_with_few_changes_says_that_it_is_one() -> None:
    rows = [Measurement(1410, 0.1, 30.0), Measurement(1110, 0.12, 25.0), Measurement(810, 0.16, 23.0)]
    profile = Profile({(stage, name): rows for stage in range(3) for name in ("forward", "backward")})
    planner = Planner(Problem(make_pipeline("1f1b", 3, 4), profile, blocking_power_w=80.0))
    deadline_s = all_maximum(planner.problem).iteration_time_s
    free, limited = planner.at(deadline=deadline_s), ChangeBudget(planner, deadline_s).within(0)
    assert free.changes
    assert not limited.changes
    assert limited.gap is not None
    assert limited.most_changes == limited.summary()["gap_within_changes"] == 0
    assert limited.gap_text.endswith("above the least possible with at most 0 clock changes")
    assert free.most_changes is None
    assert free.gap_text.endswith("above the least possible")


# ---- parts of the search


def search_of(problem: Problem, deadline_s: float) -> tuple[SegmentSearch, ClockTables, list[int]]:
    """The programs for a deadline, and the highest clocks in MHz."""
    tables = ClockTables(problem)
    edges = ChangeRelaxation(problem, tables).edges
    search = SegmentSearch(tables, edges, deadline_s, problem.waiting_power_w, np.zeros(len(tables.kind)))
    return search, tables, [max(choices.frequencies_mhz) for choices in problem.choices]


def pipeline_with_slack(switch_time_s: float = 0.002) -> Problem:
    """Stages of different size, so that slower clocks on the small ones save energy."""
    table = {}
    for stage, size in enumerate((1.0, 0.8, 0.6)):
        for name, share in (("forward", 1.0), ("backward", 2.0)):
            table[stage, name] = [
                Measurement(mhz, 0.05 * size * share * 1400 / mhz, size * share * (5 + 10 * (mhz / 1400) ** 3))
                for mhz in (1400, 1300, 1200, 1100, 1000)
            ]
    return Problem(make_pipeline("1f1b", 3, 6), Profile(table), 60.0, switch_costs=SwitchCosts(switch_time_s))


def test_mixtures_that_are_alike_are_split_in_their_proportions() -> None:
    tables = ClockTables(pipeline_with_slack())
    shares = np.zeros((len(tables.kind), 5))
    shares[:, 4] = 1.0
    shares[2:10, [1, 3, 4]] = 0.75, 0.25, 0.0
    assert ramped(tables, shares)[:12].tolist() == [4, 4, *[1] * 6, 3, 3, 4, 4]
    assert ramped(tables, shares, falling=True)[:12].tolist() == [4, 4, 3, 3, *[1] * 6, 4, 4]


def test_a_split_does_not_go_beyond_a_rank() -> None:
    tables = ClockTables(pipeline_with_slack())
    shares = np.zeros((len(tables.kind), 5))
    shares[:, [0, 4]] = 0.5
    clocks = ramped(tables, shares)
    for first, end in tables.spans:
        half = (end - first) // 2
        assert clocks[first:end].tolist() == [0] * half + [4] * half


def test_a_program_of_some_ranks_leaves_the_clocks_of_the_others() -> None:
    problem = pipeline_with_slack()
    deadline_s = all_maximum(problem).iteration_time_s
    search, tables, highest = search_of(problem, deadline_s)
    lower = np.full(len(highest), 1)
    lower[::2] = 2
    found = search.improved(highest, [lower], [1], 5.0)
    assert found is not None
    first, end = tables.spans[1]
    assert found[:first] == highest[:first]
    assert found[end:] == highest[end:]
    better, plan = (Plan(problem, tuple(clocks), "all", deadline_s) for clocks in (found, highest))
    assert better.energy_j < plan.energy_j
    assert better.iteration_time_s <= deadline_s * (1 + 1e-6)


def program_over_all_clocks() -> ChangeProgram:
    tables = ClockTables(pipeline_with_slack())
    edges = ChangeRelaxation(tables.problem, tables).edges
    nodes = len(tables.kind)
    everything: Any = np.ones((nodes, len(tables.clocks_mhz)), bool)
    length_s = all_maximum(tables.problem).iteration_time_s
    return ChangeProgram(tables, edges, np.arange(nodes), everything, length_s, 100.0, np.zeros(nodes))


def test_a_solver_that_has_no_time_for_a_first_solution_finds_nothing() -> None:
    assert program_over_all_clocks().relaxed(0.0) is None


def test_a_program_that_the_solver_is_unsure_of_is_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some profiles with clocks that are nearly alike, where its answer was far off."""
    program = program_over_all_clocks()
    right = program.relaxed(5.0)
    made: list[Highs] = []

    class Unsure(Highs):  # type: ignore[misc]
        def getModelStatus(self) -> HighsModelStatus:
            return HighsModelStatus.kUnknown if self is made[0] else super().getModelStatus()

    def unsure() -> Highs:
        made.append(Unsure())
        made[-1].setOptionValue("output_flag", False)
        return made[-1]

    monkeypatch.setattr(change_program, "silent_highs", unsure)
    again = program.relaxed(5.0)
    assert right is not None
    assert again is not None
    assert len(made) == 2
    assert again.energy_j == pytest.approx(right.energy_j, rel=1e-3)


def test_a_dive_finds_a_plan_in_time_that_saves_energy() -> None:
    problem = pipeline_with_slack()
    deadline_s = all_maximum(problem).iteration_time_s
    search, _, highest = search_of(problem, deadline_s)
    found = search.dived([np.arange(len(highest)) % 2], 5.0)
    assert found is not None
    plan = Plan(problem, tuple(found), "all", deadline_s)
    assert plan.iteration_time_s <= deadline_s * (1 + 1e-6)
    assert plan.energy_j < 0.97 * all_maximum(problem).energy_j


def test_a_dive_without_a_plan_in_time_finds_none() -> None:
    problem = pipeline_with_slack()
    search, _, highest = search_of(problem, 0.9 * all_maximum(problem).iteration_time_s)
    assert search.dived([np.arange(len(highest)) % 2], 5.0) is None


def test_a_small_problem_is_solved_and_its_bound_says_so() -> None:
    """The program that mixes clocks leaves a gap of 2 % here."""
    problem = pipeline_with_slack(0.02)
    planner = Planner(problem, seconds=100)  # enough on a busy machine; it takes one or two
    plan = planner.at(deadline=all_maximum(problem).iteration_time_s)
    assert plan.gap is not None
    assert plan.gap < 2e-3


def test_a_program_over_all_clocks_that_ends_without_a_bound_leaves_the_one_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = pipeline_with_slack(0.02)
    monkeypatch.setattr(SegmentSearch, "best", lambda self, plan, *rest: (list(plan), float("-inf")))
    planner = Planner(problem, seconds=5)
    deadline_s = all_maximum(problem).iteration_time_s
    bound_j = planner.at(deadline=deadline_s).lower_bound_j
    assert bound_j is not None
    assert bound_j > planner.least_j(deadline_s) * (1 + 1e-3)


def test_a_quick_plan_is_on_time_and_its_bound_ignores_changes() -> None:
    problem = pipeline_with_slack(0.02)
    maximum = all_maximum(problem)
    planner = Planner(problem, search="quick")
    plan = planner.at(deadline=maximum.iteration_time_s)
    assert plan.iteration_time_s <= maximum.iteration_time_s
    assert plan.energy_j < maximum.energy_j
    assert plan.lower_bound_j == pytest.approx(planner.least_j(maximum.iteration_time_s))
