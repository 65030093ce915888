"""Frontiers: evenly spaced deadlines, and a plan for each of them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from planner_problems import random_profile

from pfo_fs.errors import ConfigError, Impossible
from pfo_fs.planner import Planner, Problem, even_deadlines, make_pipeline, solve_frontier


@pytest.fixture
def problem() -> Problem:
    pipeline = make_pipeline("1f1b", 3, 6)
    return Problem(pipeline, random_profile(random.Random(3), pipeline, 10), 70.0)


def test_deadlines_go_evenly_from_the_fastest_plan_to_that_of_least_energy(problem: Problem) -> None:
    planner = Planner(problem)
    deadlines = even_deadlines(planner, 11)
    assert (deadlines[0], deadlines[-1]) == (planner.fastest_s, planner.least_energy_s)
    assert even_deadlines(planner, 2) == [planner.fastest_s, planner.least_energy_s]
    steps = [later - earlier for earlier, later in pairwise(deadlines)]
    assert max(steps) == pytest.approx(min(steps))


@pytest.mark.parametrize("points", [-1, 0, 1, 10**6])
def test_a_frontier_of_so_many_points_is_refused(problem: Problem, points: int) -> None:
    with pytest.raises(ConfigError, match="points"):
        even_deadlines(Planner(problem), points)


def test_each_deadline_has_its_plan_however_many_are_planned_at_once(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = even_deadlines(Planner(problem), 9)
    at_once = list(solve_frontier(problem, [*deadlines[::-1], deadlines[0]]))
    assert [plan.deadline_s for plan in at_once] == deadlines
    assert all(plan.iteration_time_s <= plan.deadline_s for plan in at_once)
    monkeypatch.setattr("pfo_fs.planner.planner._MOST_AT_ONCE", 4)
    in_parts = list(solve_frontier(problem, deadlines))
    # Each call begins from another basis and finds other plans of equal quality.
    assert [plan.energy_j for plan in in_parts] == pytest.approx([plan.energy_j for plan in at_once], rel=0.01)


def test_a_deadline_that_is_impossible_is_said_with_its_figures(problem: Problem) -> None:
    fastest_s = Planner(problem).fastest_s
    with pytest.raises(Impossible) as caught:
        list(solve_frontier(problem, [0.5 * fastest_s, fastest_s]))
    assert (caught.value.asked, caught.value.best) == (0.5 * fastest_s, fastest_s)
