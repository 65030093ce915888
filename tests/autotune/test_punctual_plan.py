"""Plans that are made faster because iterations under them would be late on average."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import random_profile

from pfo_fs.autotune.expected_time import ExpectedTime
from pfo_fs.autotune.punctual_plan import PunctualPlans
from pfo_fs.planner import Plan, Planner, Problem, SwitchCosts, all_maximum, make_pipeline

SCATTER = 0.02
NEARLY_FREE = SwitchCosts(late_s=1e-5)
COSTS = [NEARLY_FREE, SwitchCosts(acts_late_s=0.01), SwitchCosts(driver_time_s=0.005, latency_s=0.01, late_s=0.001)]


def planned(seed: int, costs: SwitchCosts, slowdown: float = 1.02, stages: int = 3) -> tuple[Plan, ExpectedTime]:
    """A plan that uses up the time that it has."""
    pipeline = make_pipeline("1f1b", stages, 6)
    problem = Problem(pipeline, random_profile(random.Random(seed), pipeline, 8), 60.0, switch_costs=costs)
    plan = Planner(problem, search="quick").at(deadline=slowdown * all_maximum(problem).iteration_time_s)
    return plan, ExpectedTime(problem, SCATTER)


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(COSTS))
def test_iterations_are_on_time_on_average_and_the_plan_can_be_made(seed: int, costs: SwitchCosts) -> None:
    plan, expected = planned(seed, costs)
    found = PunctualPlans(plan.problem, expected).in_time(plan, plan.deadline_s)
    assert expected.of(found) <= plan.deadline_s * (1 + 1e-4)
    assert found.switch_load.fits
    assert plan.energy_j <= found.energy_j * (1 + 1e-3)  # the planner is not exact
    assert found.energy_j < all_maximum(plan.problem).energy_j


def test_a_plan_that_is_on_time_stays() -> None:
    plan, expected = planned(1, NEARLY_FREE)
    assert PunctualPlans(plan.problem, expected).in_time(plan, 1.1 * plan.deadline_s).frequencies_mhz == (
        plan.frequencies_mhz
    )


def test_a_plan_that_was_made_faster_says_how_many_changes_it_has_now() -> None:
    counts = set()
    for seed in range(2):
        plan, expected = planned(seed, NEARLY_FREE)
        found = PunctualPlans(plan.problem, expected).in_time(plan, plan.deadline_s)
        assert found.switching.startswith(f"{len(found.changes)} clock changes")
        assert found.limits == plan.limits
        counts.add(len(found.changes) - len(plan.changes))
    assert counts - {0}


def test_what_no_clocks_can_reach_ends_with_a_faster_plan() -> None:
    plan, expected = planned(2, NEARLY_FREE)
    found = PunctualPlans(plan.problem, expected).in_time(plan, 0.5 * plan.deadline_s)
    assert expected.of(found) <= 1.01 * expected.of(all_maximum(plan.problem))


def test_instructions_do_not_get_clocks_that_are_left_out() -> None:
    plan, expected = planned(3, NEARLY_FREE)
    left_out = {1400 - 15 * number for number in range(1, 8)} - set(plan.frequencies_mhz)
    found = PunctualPlans(plan.problem, expected, left_out).in_time(plan, plan.deadline_s)
    assert not left_out & set(found.frequencies_mhz)


def test_instructions_that_are_always_on_the_longest_path_are_known_as_such() -> None:
    plan, expected = planned(4, NEARLY_FREE, stages=1)
    mean_s, shares = expected.critical(plan)
    assert mean_s == expected.of(plan)
    assert shares == pytest.approx([1.0] * len(shares))
