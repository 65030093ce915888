"""lowtime itself on the same problem."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from planner_problems import published

from pfo_fs.errors import ConfigError, Impossible
from pfo_fs.planner import Planner, Problem, all_maximum, lowtime_plan, lowtime_plans, make_pipeline

pytest.importorskip("lowtime")


@pytest.fixture
def problem(shared_data: Path) -> Problem:
    return published(shared_data, 2)


def test_lowtime_finds_plans_from_the_slowest_to_the_fastest(problem: Problem) -> None:
    found = list(lowtime_plans(problem, unit_time_s=0.005))
    said = [computed_s for computed_s, _ in found]
    assert said == sorted(said, reverse=True)
    assert len(said) > 20


def test_lowtime_returns_the_same_kind_of_plan_and_ours_is_no_worse(problem: Problem) -> None:
    deadline_s = all_maximum(problem).iteration_time_s * 1.1
    theirs = lowtime_plan(problem, deadline_s, unit_time_s=0.002)
    ours = Planner(problem).at(deadline=deadline_s)
    assert theirs.iteration_time_s <= deadline_s
    assert theirs.solver == "lowtime"
    assert ours.energy_j <= theirs.energy_j
    assert ours.lower_bound_j is not None
    assert ours.lower_bound_j <= theirs.energy_j


def test_lowtime_says_when_its_fastest_plan_is_too_slow(problem: Problem) -> None:
    with pytest.raises(Impossible, match="its fastest takes"):
        lowtime_plan(problem, 0.5, unit_time_s=0.005)


def test_lowtime_is_not_asked_for_what_it_cannot_express(problem: Problem) -> None:
    other = dataclasses.replace(problem, pipeline=make_pipeline("1f1b", 8, 2, delay_s=0.001))
    with pytest.raises(ConfigError, match="without communication delays"):
        next(lowtime_plans(other))
