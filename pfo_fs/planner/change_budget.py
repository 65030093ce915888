"""Plans with fewer clock changes: the least energy for a number of changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pfo_fs.errors import Impossible
from pfo_fs.planner.baselines import one_per_stage
from pfo_fs.planner.change_price import first_price_j, least_price_j
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.planner import Planner

_SEARCHED = 10
"""Number of prices that are tried for one limit."""


class ChangeBudget:
    """Plans for one deadline with few clock changes.

    Args:
        planner: The planner of the problem.
        deadline_s: The longest iteration time, in s.
    """

    def __init__(self, planner: Planner, deadline_s: float) -> None:
        self._planner, self._deadline_s = planner, deadline_s
        self._plans: list[Plan] = []
        with suppress(Impossible):
            self._plans.append(one_per_stage(planner.problem, deadline_s))

    def add(self, price_j: float) -> Plan:
        """Plans at one price of a change, in J, and keeps the plan."""
        plan = self._planner.priced(self._deadline_s, price_j, self._plans)
        self._plans.append(plan)
        return plan

    def within(self, most: int, known: Sequence[Plan] = ()) -> Plan:
        """Returns the plan with least energy of those found that have at most this many changes.

        Args:
            most: The most clock changes within an iteration, all ranks together.
            known: Plans that are known already.

        Raises:
            Impossible: No plan with so few changes was found.
        """
        free = next((plan for plan in known if plan.lower_bound_j is not None), None)
        free = free or self._planner.at(deadline=self._deadline_s)
        self._plans += [*known, free]
        if len(free.changes) <= most:
            return free
        first_j = first_price_j(self._planner.problem)
        least_price_j(first_j, lambda price_j: len(self.add(price_j).changes) <= most, _SEARCHED)
        within = [plan for plan in self._plans if len(plan.changes) <= most]
        if not within:
            fewest = min(len(plan.changes) for plan in self._plans)
            raise Impossible(
                f"no plan found has {most} clock changes or fewer within {self._deadline_s:.6g} s; the fewest are "
                f"{fewest}",
                asked=most,
                best=fewest,
            )
        return min(within, key=lambda plan: plan.energy_j).replace(lower_bound_j=free.lower_bound_j)
