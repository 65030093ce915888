"""Plans in which clock changes cost nothing: real clocks for the relaxation's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pfo_fs.planner.change_reduction import fewer_changes
from pfo_fs.planner.columns import Columns
from pfo_fs.planner.exact import small_enough, solve_exactly
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxed
from pfo_fs.planner.rounding import Rounder
from pfo_fs.planner.switch_costs import SwitchCosts

_CLOSE = 1e-9
"""Relative: a plan that ends later than it should by at most this is on time."""
_CHANGE_SHARE, _CHANGE_ENERGY = 0.1, (1e-6, 1e-4)
"""A plan may take more energy to save clock changes: a tenth of its gap to the bound, but at least and at most these
shares of its energy."""
_SHORTER = 4
"""Where clocks act late, a plan that ignores that is late; it is made so often for less and less time."""


class FreePlans:
    """Plans one problem as if clock changes cost nothing.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._costly = problem
        self._problem = problem if problem.switch_costs.none else without_costs(problem)

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self._problem)

    @cached_property
    def _fastest_s(self) -> float:
        return self._problem.iteration_time_of(self._problem.fastest)

    def clocks_mhz(
        self, relaxed: Sequence[Relaxed], targets_s: Sequence[float], waiting_w: float, *, exactly: bool = True
    ) -> list[list[int]]:
        """Returns the clocks in MHz of each node, for each of several targets.

        Args:
            relaxed: The answers of the relaxation for the targets.
            targets_s: The longest iteration times in s, those of the fastest plan or longer.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the target in any case.
            exactly: Whether small problems are solved exactly, which takes some tenths of a second.
        """
        import numpy as np

        problem, columns = self._problem, self._columns
        overhead_s = problem.overhead_s
        # Without a straggler the relaxation may end before the deadline: waiting longer costs more than it saves.
        lengths: Any = np.array(
            [
                target_s - overhead_s
                if waiting_w == 0
                else min(target_s - overhead_s, answer.makespan_s * (1 + _CLOSE))
                for answer, target_s in zip(relaxed, targets_s, strict=True)
            ]
        )
        lengths = np.maximum(lengths, self._fastest_s - overhead_s)
        options = Rounder(columns).round(relaxed, lengths)
        for column, target_s in enumerate(targets_s if exactly and small_enough(problem) else ()):
            exact = solve_exactly(problem, target_s - overhead_s, waiting_w)
            if exact is not None:
                options[:-1, column], lengths[column] = exact, target_s - overhead_s
        bounds: Any = np.array([answer.lower_bound_j for answer in relaxed])
        energies = columns.cost(options) + waiting_w * columns.makespan(options)
        allowed = np.clip(_CHANGE_SHARE * (energies - bounds), *(share * np.abs(energies) for share in _CHANGE_ENERGY))
        options = fewer_changes(columns, options, lengths, waiting_w, allowed)
        late = columns.makespan(options) + overhead_s > np.array(targets_s)
        options[:-1, late] = np.array(problem.fastest)[:, None]
        return [problem.frequencies_of(column.tolist()) for column in options[:-1].T]

    def sooner(
        self,
        clocks_mhz: Sequence[int],
        target_s: float,
        waiting_w: float,
        solve: Callable[[float, float], Relaxed],
    ) -> list[list[int]]:
        """Returns plans for less and less time until one is on time though its clocks act late.

        Args:
            clocks_mhz: Clock of each node, in MHz, of the plan for the target.
            target_s: The longest iteration time, in s.
            waiting_w: As for `clocks_mhz`.
            solve: Gives the relaxation's answer for a target and a power of waiting.
        """
        costly, within_s = self._costly, target_s
        plans = [list(clocks_mhz)]
        for _ in range(_SHORTER):
            late_s = costly.timing(costly.times_at(plans[-1])).iteration_time_s - target_s
            within_s -= late_s
            if late_s <= _CLOSE * target_s or within_s < self._fastest_s:
                break
            plans += self.clocks_mhz([solve(within_s, waiting_w)], [within_s], waiting_w, exactly=False)
        return plans[1:]


def without_costs(problem: Problem) -> Problem:
    """The same problem, in which clock changes cost nothing."""
    return replace(problem, switch_costs=SwitchCosts())
