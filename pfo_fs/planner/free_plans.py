"""Plans in which clock changes cost nothing: real clocks for the relaxation's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pfo_fs.planner.columns import Columns
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxed
from pfo_fs.planner.rounding import Rounder
from pfo_fs.planner.switch_costs import SwitchCosts

_CLOSE = 1e-9
"""Relative: a plan that ends later than it should by at most this is on time."""


class FreePlans:
    """Plans one problem as if clock changes cost nothing.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem if problem.switch_costs.none else without_costs(problem)

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self._problem)

    @cached_property
    def _fastest_s(self) -> float:
        return self._problem.iteration_time_of(self._problem.fastest)

    def clocks_mhz(self, relaxed: Sequence[Relaxed], targets_s: Sequence[float], waiting_w: float) -> list[list[int]]:
        """Returns the clocks in MHz of each node, for each of several targets.

        Args:
            relaxed: The answers of the relaxation for the targets.
            targets_s: The longest iteration times in s, those of the fastest plan or longer.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the target in any case.
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
        late = columns.makespan(options) + overhead_s > np.array(targets_s)
        options[:-1, late] = np.array(problem.fastest)[:, None]
        return [problem.frequencies_of(column.tolist()) for column in options[:-1].T]


def without_costs(problem: Problem) -> Problem:
    """The same problem, in which clock changes cost nothing."""
    return replace(problem, switch_costs=SwitchCosts())
