"""Says in one line why a plan changes clocks as often as it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.planner.problem import Problem
from pfo_fs.planner.switch_costs import MOST_BUSY, SwitchCosts, SwitchLoad


@dataclass(frozen=True)
class ChangeLimits:
    """What keeps a plan from more clock changes, as the solver saw it.

    Attributes:
        free_changes: Clock changes of the plan that ignores what they cost; None if there is no such plan.
        free_too_short: Number of its runs of one clock that end before the driver can make the next change.
        limited: Whether more changes were worth it than the driver of a host can make.
    """

    free_changes: int | None = None
    free_too_short: int = 0
    limited: bool = False


def change_limits(problem: Problem, free_mhz: Sequence[int], *, limited: bool) -> ChangeLimits:
    """Returns what keeps a plan from more clock changes.

    Args:
        problem: The problem.
        free_mhz: Clock of each node, in MHz, of the plan that ignores what changes cost; empty if there is none.
        limited: Whether more changes were worth it than the driver of a host can make.
    """
    if not free_mhz:
        return ChangeLimits(limited=limited)
    free = problem.switch_load_of(free_mhz, problem.times_at(free_mhz))
    return ChangeLimits(free.changes, free.too_short, limited)


def reason(costs: SwitchCosts, load: SwitchLoad, limits: ChangeLimits) -> str:
    """Returns the number of clock changes in an iteration, and what keeps the plan from more of them.

    Args:
        costs: What clock changes cost.
        load: The clock changes of the plan.
        limits: What keeps it from more.
    """
    text = f"{load.changes:,} clock change{'' if load.changes == 1 else 's'}"
    if not load.changes:
        text = "one clock for each rank"
    if costs.none:
        return f"{text}: changes cost nothing in this model"
    if limits.limited:
        return f"{text}: {_limit(costs)}"
    if costs.stands_still_s:
        still = f"a rank stands still for {costs.stands_still_s * 1e3:.3g} ms at each"
        return f"{text}: {still}, and more cost more than they save"
    if limits.free_changes is None:
        return f"{text}: more would take more energy than they save"
    if load.changes >= limits.free_changes:
        return f"{text}, as many as without costs: together they take less energy than they save"
    instead = f"{text} instead of {limits.free_changes:,}"
    if limits.free_too_short:
        return (
            f"{instead}: {limits.free_too_short:,} of those come too early for the driver, and more would take more "
            "energy than they save"
        )
    return f"{instead}: more would take more energy than they save"


def _limit(costs: SwitchCosts) -> str:
    by_time = MOST_BUSY / costs.driver_time_s if costs.driver_time_s else float("inf")
    if by_time <= costs.max_calls_per_s / costs.calls:
        return f"more would keep the driver of a host busier than {MOST_BUSY:.0%} of the iteration"
    return f"the driver of a host makes {costs.max_calls_per_s:,.4g} calls per second and has no room for more"
