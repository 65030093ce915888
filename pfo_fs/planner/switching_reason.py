"""Says in one line why a plan changes clocks as often as it does."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.planner.problem import Problem
from pfo_fs.planner.switch_costs import MOST_BUSY, SwitchCosts


def reason(problem: Problem, clocks_mhz: Sequence[int], free_mhz: Sequence[int] = (), *, limited: bool = False) -> str:
    """Returns the number of clock changes in an iteration, and what keeps the plan from more of them.

    Args:
        problem: The problem.
        clocks_mhz: Clock of each node of the plan, in MHz.
        free_mhz: The same of the plan that ignores what changes cost; empty if it is not known.
        limited: Whether more changes were worth it than the driver of a host can make.
    """
    costs = problem.switch_costs
    load = problem.switch_load_of(clocks_mhz, problem.times_at(clocks_mhz))
    text = f"{load.changes:,} clock change{'' if load.changes == 1 else 's'}"
    if not load.changes:
        text = "one clock for each rank"
    if costs.none:
        return f"{text}: changes cost nothing in this model"
    if limited:
        return f"{text}: {_limit(costs)}"
    if costs.stands_still_s:
        still = f"a rank stands still for {costs.stands_still_s * 1e3:.3g} ms at each"
        return f"{text}: {still}, and more cost more than they save"
    if not free_mhz:
        return f"{text}: more would take more energy than they save"
    free = problem.switch_load_of(free_mhz, problem.times_at(free_mhz))
    if load.changes >= free.changes:
        return f"{text}, as many as without costs: together they take less energy than they save"
    instead = f"{text} instead of {free.changes:,}"
    if free.too_short:
        return (
            f"{instead}: {free.too_short:,} of those come too early for the driver, and more would take more energy "
            "than they save"
        )
    return f"{instead}: more would take more energy than they save"


def _limit(costs: SwitchCosts) -> str:
    by_time = MOST_BUSY / costs.driver_time_s if costs.driver_time_s else float("inf")
    if by_time <= costs.max_calls_per_s / costs.calls:
        return f"more would keep the driver of a host busier than {MOST_BUSY:.0%} of the iteration"
    return f"the driver of a host makes {costs.max_calls_per_s:,.4g} calls per second and has no room for more"
