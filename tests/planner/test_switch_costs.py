"""What clock changes cost: the figures of one plan by hand, and the limits of a host's driver."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pfo_fs.errors import ConfigError
from pfo_fs.planner import Measurement, Plan, Problem, Profile, SwitchCosts, even_hosts, make_pipeline


def problem_of(costs: SwitchCosts, stages: int = 1, microbatches: int = 2, gpus_per_rank: int = 1) -> Problem:
    """Forward and backward take 0.1 s and 30 J at 1400 MHz, and 0.2 s and 24 J at 1000 MHz."""
    rows = [Measurement(1400, 0.1, 30.0), Measurement(1000, 0.2, 24.0)]
    table = {(stage, name): rows for stage in range(stages) for name in ("forward", "backward")}
    pipeline = make_pipeline("1f1b", stages, microbatches)
    return Problem(pipeline, Profile(table), 50.0, switch_costs=costs, gpus_per_rank=gpus_per_rank)


def plan_of(problem: Problem, *clocks_mhz: int) -> Plan:
    return Plan(problem, clocks_mhz, "", 1.0)


def test_changes_cost_nothing_unless_the_problem_says_so() -> None:
    load = plan_of(problem_of(SwitchCosts()), 1400, 1000, 1400, 1000).switch_load
    assert (load.changes, load.energy_j, load.calls_per_s, load.fits) == (3, 0.0, 0.0, True)


@pytest.mark.parametrize("clocks_mhz", [(1400, 1400, 1000, 1000), (1000, 1000, 1400, 1400)])
def test_a_change_makes_the_instruction_with_the_lower_clock_run_at_the_higher_one_for_a_while(
    clocks_mhz: tuple[int, ...],
) -> None:
    """An eighth of the instruction's work, and of the 11 J that it saves beyond waiting: 25 J at 1400 and 14 J at
    1000 MHz."""
    costs = SwitchCosts(timing_error_s=0.0125)
    free, plan = plan_of(problem_of(SwitchCosts()), *clocks_mhz), plan_of(problem_of(costs), *clocks_mhz)
    assert plan.energy_j - free.energy_j == pytest.approx((25.0 - 14.0) / 8)
    assert plan.iteration_time_s == free.iteration_time_s


def test_a_change_costs_no_more_than_the_whole_instruction_at_the_higher_clock() -> None:
    clocks_mhz = (1400, 1400, 1000, 1400)
    plan = plan_of(problem_of(SwitchCosts(timing_error_s=9.0)), *clocks_mhz)
    assert plan.switch_load.energy_j == pytest.approx(2 * (25.0 - 14.0))


def test_a_change_of_many_gpus_has_each_of_them_wait_for_half_of_the_other_calls_on_average() -> None:
    assert SwitchCosts(driver_time_s=0.04, calls=8).wrong_clock_s == pytest.approx(0.0175)
    assert SwitchCosts(driver_time_s=0.005, calls=1, timing_error_s=0.001).wrong_clock_s == pytest.approx(0.001)


def test_a_rank_that_waits_for_its_neighbour_changes_its_clock_for_nothing() -> None:
    """The last stage's backward comes back to a first stage that has waited for it since its forward."""
    problem = problem_of(SwitchCosts(timing_error_s=0.01), stages=2, microbatches=1)
    plan = plan_of(problem, 1400, 1000, 1400, 1400)
    assert plan.changes == [1]
    assert plan.switch_load.energy_j == 0.0


def test_energies_of_changes_are_sums_over_the_gpus_of_a_rank() -> None:
    one, many = (problem_of(SwitchCosts(timing_error_s=0.01), gpus_per_rank=gpus) for gpus in (1, 4))
    energies_j = [plan_of(problem, 1400, 1000, 1000, 1000).switch_load.energy_j for problem in (one, many)]
    assert energies_j[1] == pytest.approx(4 * energies_j[0]) != 0


def test_the_calls_of_a_host_count_with_the_change_between_two_iterations() -> None:
    costs = SwitchCosts(driver_time_s=0.02, calls=2, hosts=((0, 1),))
    plan = plan_of(problem_of(costs, stages=2, microbatches=1), 1400, 1000, 1400, 1000)
    calls = 2 * 2 * 2  # two ranks, two changes of each, two calls for a change
    assert plan.switch_load.calls_per_s == pytest.approx(calls / plan.iteration_time_s)


def test_ranks_of_one_host_wait_for_each_others_calls() -> None:
    apart = SwitchCosts(driver_time_s=0.02, hosts=((0,), (1,)))
    together = dataclasses.replace(apart, hosts=((0, 1),))
    clocks_mhz = (1400, 1400, 1000, 1000, 1400, 1400, 1000, 1000)
    energies = [
        plan_of(problem_of(costs, stages=2, microbatches=2), *clocks_mhz).switch_load.energy_j
        for costs in (apart, together)
    ]
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
def test_a_host_is_overloaded_when_its_driver_is_too_busy_or_serves_fewer_calls(
    costs: dict[str, float], overloaded: bool
) -> None:
    plan = plan_of(problem_of(SwitchCosts(**costs)), 1400, 1000, 1400, 1000)  # type: ignore[arg-type]
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
    assert plan_of(problem_of(costs), *clocks_mhz).switch_load.too_short == too_short


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
        SwitchCosts(**wrong)  # type: ignore[arg-type]


def test_ranks_are_spread_over_hosts_in_their_order() -> None:
    assert even_hosts(5, 2) == ((0, 1), (2, 3), (4,))
    assert SwitchCosts(hosts=((1, 2),)).hosts_of(4) == [[1, 2], [0], [3]]
