"""Plans and bounds where clock changes cost something, against all plans of small problems."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from clock import replace_time
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import measured_mhz, small_problems

from pfo_fs.planner import (
    Measurement,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    make_pipeline,
)

_EXACT = 1e-9


def every_plan(problem: Problem) -> list[Plan]:
    return [Plan(problem, clocks, "all", deadline_s=0.0) for clocks in itertools.product(*measured_mhz(problem))]


def with_costs(problem: Problem, driver_s: float, late_s: float = 0.0) -> Problem:
    return replace(problem, switch_costs=SwitchCosts(driver_s, timing_error_s=late_s))


@settings(max_examples=8)
@given(small_problems(), st.sampled_from([0.001, 0.1, 0.3]), st.sampled_from([0.001, 0.02]), st.floats(1.0, 1.2))
def test_bound_optimum_and_plan_are_in_order_and_the_plan_is_on_time(
    problem: Problem, driver_s: float, late_s: float, slowdown: float
) -> None:
    problem = with_costs(problem, driver_s, late_s)
    planner = Planner(problem)
    deadline_s = planner.fastest_s * slowdown
    plan = planner.at(deadline=deadline_s)
    possible = [each for each in every_plan(problem) if each.iteration_time_s <= deadline_s and each.switch_load.fits]
    least_j = min(each.energy_j for each in possible)
    assert plan.iteration_time_s <= deadline_s * (1 + _EXACT)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= least_j * (1 + _EXACT) <= plan.energy_j * (1 + 2 * _EXACT)
    assert plan.energy_j <= least_j * (1 + 3e-2)


def pipeline_with_slack(driver_time_s: float = 0.002) -> Problem:
    """Stages of different size, so that slower clocks on the small ones save energy."""
    table = {}
    for stage, size in enumerate((1.0, 0.8, 0.6)):
        for name, share in (("forward", 1.0), ("backward", 2.0)):
            table[stage, name] = [
                Measurement(mhz, 0.05 * size * share * 1400 / mhz, size * share * (5 + 10 * (mhz / 1400) ** 3))
                for mhz in (1400, 1300, 1200, 1100, 1000)
            ]
    return Problem(make_pipeline("1f1b", 3, 6), Profile(table), 60.0, switch_costs=SwitchCosts(driver_time_s))


@pytest.mark.parametrize("costs", [SwitchCosts(0.002), SwitchCosts(0.05, 0.01), SwitchCosts(timing_error_s=0.002)])
def test_a_plan_does_not_depend_on_how_fast_the_machine_is(costs: SwitchCosts, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(pipeline_with_slack(), switch_costs=costs)
    deadline_s = all_maximum(problem).iteration_time_s
    usual = Planner(problem).at(deadline=deadline_s)
    replace_time(
        monkeypatch,
        "pfo_fs.planner",
        perf_counter=lambda: 100 * time.perf_counter(),
        monotonic=lambda: 100 * time.monotonic(),
        time=lambda: 100 * time.time(),
    )
    slow = Planner(problem).at(deadline=deadline_s)
    assert slow.frequencies_mhz == usual.frequencies_mhz
    assert slow.lower_bound_j == usual.lower_bound_j
