"""The clocks of one rank: as good as all possible ones tried out, and always within the windows."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import random_profile

from pfo_fs.planner import Plan, Problem, SwitchCosts, make_pipeline
from pfo_fs.planner.rank_runs import RankRuns, Window

INSTRUCTIONS = 6


def problem_of(seed: int, costs: SwitchCosts) -> Problem:
    """One rank with three forwards and three backwards at three clocks."""
    pipeline = make_pipeline("1f1b", 1, INSTRUCTIONS // 2)
    return Problem(pipeline, random_profile(random.Random(seed), pipeline, 3), 40.0, switch_costs=costs)


def window_of(due_s: float, price_w: float = 0.0) -> Window:
    count = INSTRUCTIONS
    return Window(np.zeros(count), np.full(count, due_s), np.full(count, price_w))


def value_j(problem: Problem, clocks_mhz: list[int], price_w: float, change_price_j: float) -> float:
    plan = Plan(problem, tuple(clocks_mhz), "", 1.0)
    if plan.switch_load.too_short:
        return float("inf")
    return plan.effective_j + price_w * sum(plan.times_s) + len(plan.changes) * change_price_j


@settings(max_examples=40)
@given(
    st.integers(0, 10**9),
    st.sampled_from([0.001, 0.01, 0.1]),
    st.sampled_from([0.0, 50.0, 300.0]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.01, 1.0]),
)
def test_without_windows_the_cheapest_of_all_clocks_is_found(
    seed: int, late_s: float, price_w: float, change_price_j: float, onset_delay_s: float
) -> None:
    problem = problem_of(seed, SwitchCosts(timing_error_s=late_s, onset_delay_s=onset_delay_s))
    runs = RankRuns(problem, 0, late_s)
    found = runs.best(window_of(1e9, price_w), change_price_j)
    assert found is not None
    every = itertools.product(runs.clocks_mhz, repeat=INSTRUCTIONS)
    least_j = min(value_j(problem, list(clocks), price_w, change_price_j) for clocks in every)
    assert value_j(problem, found, price_w, change_price_j) == pytest.approx(least_j, rel=1e-9)


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.floats(1.0, 1.6), st.sampled_from([0.0, 0.02]), st.sampled_from([0.0, 0.02]))
def test_what_is_found_is_within_its_window(seed: int, share: float, still_s: float, onset_delay_s: float) -> None:
    problem = problem_of(seed, SwitchCosts(still_s, timing_error_s=0.01, onset_delay_s=onset_delay_s))
    due_s = share * sum(c.times_s[0] for c in problem.choices)
    found = RankRuns(problem, 0, 0.01).best(window_of(due_s))
    assert found is not None  # the highest clock is the fastest here
    assert Plan(problem, tuple(found), "", due_s).iteration_time_s <= due_s + 1e-9


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.sampled_from([0.02, 0.1, 0.3]), st.sampled_from([0.0, 0.05]))
def test_no_run_is_too_short_for_the_driver(seed: int, driver_time_s: float, latency_s: float) -> None:
    problem = problem_of(seed, SwitchCosts(driver_time_s=driver_time_s, latency_s=latency_s))
    found = RankRuns(problem, 0, 0.0).best(window_of(1e9, 150.0))
    assert found is not None
    assert Plan(problem, tuple(found), "", 1.0).switch_load.too_short == 0


def test_none_is_found_where_even_the_fastest_clocks_take_too_long() -> None:
    problem = problem_of(1, SwitchCosts(timing_error_s=0.01))
    due_s = 0.99 * sum(c.times_s[0] for c in problem.choices)
    assert RankRuns(problem, 0, 0.01).best(window_of(due_s)) is None
