"""How long iterations take on average when the durations of instructions scatter.

The mean of the longest path is more than the longest path of the means, the more so the more paths are equally long. At
the highest clocks few are; a plan makes many equal, since it slows down whatever has time to spare. So a plan that fits
exactly by mean durations is late on average: by 0.1 to 0.2 % where durations scatter by 0.5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pfo_fs.planner import Plan, Problem

if TYPE_CHECKING:
    from pfo_fs.planner.columns import Level

_DRAWS = 48
"""Iterations that are averaged; the same random numbers for each plan, so that plans compare well."""

_CRITICAL = 1e-9
"""Relative: an instruction that could end later by less lies on the longest path."""


class ExpectedTime:
    """Computes mean iteration times.

    Args:
        problem: The job.
        scatter: Standard deviation of the duration of one instruction, relative.
        changes_act_late: Whether the instruction after a change is longer by the time for which ranks stand still.
            Otherwise they stand still before it, which costs nothing while they wait for others.
    """

    def __init__(self, problem: Problem, scatter: float, changes_act_late: bool = False) -> None:
        import numpy as np

        from pfo_fs.planner.columns import levels_of

        pipeline = problem.pipeline
        ranks = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
        self._levels = levels_of(pipeline.topological, problem.before, problem.after, ranks)
        self._problem = problem
        self._change_s = problem.switch_costs.stands_still_s if changes_act_late else 0.0
        self._ranks: Any = np.array([*ranks, -1])
        random = np.random.default_rng(0)
        self._factors: Any = np.exp(scatter * random.standard_normal((len(ranks), _DRAWS)))

    def of(self, plan: Plan, change_s: float | None = None) -> float:
        """Returns the mean time of an iteration under a plan, in s.

        Args:
            plan: The plan.
            change_s: How much longer an instruction takes after a clock change, in s; None: as the problem says.
        """
        _, ends, _ = self._ends(plan, change_s)
        return float(ends.max(axis=0).mean()) + self._problem.overhead_s

    def critical(self, plan: Plan) -> tuple[float, list[float]]:
        """Returns the mean time in s, and in which share of iterations each instruction lies on the longest path."""
        from pfo_fs.planner.columns import latest_of

        times, ends, levels = self._ends(plan)
        lengths = ends.max(axis=0)
        latest = latest_of(levels, times, lengths)
        shares = ((latest - ends)[:-1] <= _CRITICAL * lengths).mean(axis=1)
        return float(lengths.mean()) + self._problem.overhead_s, shares.tolist()

    def _ends(self, plan: Plan, change_s: float | None = None) -> tuple[Any, Any, Sequence[Level]]:
        """Durations in s of all instructions, and when they end, with a column per iteration; and their levels."""
        import numpy as np

        from pfo_fs.planner.columns import ends_of

        times: Any = np.array(plan.times_s)[:, None] * self._factors
        levels = self._standing_still(plan.changes if change_s is None and not self._change_s else [])
        times[plan.changes] += self._change_s if change_s is None else change_s
        times = np.vstack([times, np.zeros((1, _DRAWS))])
        return times, ends_of(levels, times), levels

    def _standing_still(self, changes: Sequence[int]) -> Sequence[Level]:
        """The levels, with the time for which a rank stands still before each of these instructions."""
        import numpy as np

        seconds = self._problem.switch_costs.stands_still_s
        if not seconds or not changes:
            return self._levels
        lost_s: Any = np.zeros(len(self._ranks))
        lost_s[changes] = seconds
        found = []
        for level in self._levels:
            nodes = level.nodes[:, None]
            own_before = (level.before == nodes - 1) & (self._ranks[level.before] == self._ranks[nodes])
            own_after = (level.after == nodes + 1) & (self._ranks[level.after] == self._ranks[nodes])
            found.append(
                replace(
                    level,
                    before_s=level.before_s + own_before * lost_s[nodes],
                    after_s=level.after_s + own_after * lost_s[level.after],
                )
            )
        return found
