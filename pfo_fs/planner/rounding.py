"""Turns the relaxation's durations, which lie between two options, into real clocks within the deadline.

First each node gets, in the order of the DAG, the option that is cheapest at the relaxation's price of time of those
that end in time for the relaxed schedule; the time by which it ends early is passed on to the nodes behind it. Then the
DAG is walked forwards and backwards in turn at a price of time that falls to nothing. Of the options that fit between
the nodes before and behind it, each node gets the cheapest one at that price, so that free time goes first to the nodes
where it saves most.

This begins once in each direction, and the better result is kept. All of it is deterministic, and done for many
deadlines at once: a frontier of 100 plans takes a few times as long as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfo_fs.planner.columns import NEVER, Columns, Level, latest_of, starts_of
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxed

FALLING_SHARES = (0.97, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0)
"""Shares of the relaxation's price of time."""
_CLOSE = 1e-9
"""Relative: what the relaxation's makespan may be exceeded by."""
_EPSILON_S = 1e-12
_SHORTENINGS = (1e-13, 1e-12, 1e-10, 1e-8)
"""Relative: assignments that exceed the deadline by rounding errors are planned for a deadline that is shorter by
this."""


class Rounder:
    """Finds real clocks for a problem as if clock changes cost nothing, for many deadlines at once.

    Args:
        problem: A problem in which they cost nothing.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._columns = problem, Columns(problem)
        self._fastest_s = problem.iteration_time_of(problem.fastest)

    def clocks_mhz(self, relaxed: Sequence[Relaxed], targets_s: Sequence[float], waiting_w: float) -> list[list[int]]:
        """Returns the clocks in MHz of each node, for each of several targets.

        Args:
            relaxed: The answers of the relaxation for the targets.
            targets_s: The longest iteration times in s, those of the fastest plan or longer.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the target in any case.
        """
        overhead_s = self._problem.overhead_s
        # Without a straggler the relaxation may end before the deadline: waiting longer costs more than it saves.
        useful_s = [
            target_s if waiting_w == 0 else min(target_s, answer.makespan_s * (1 + _CLOSE) + overhead_s)
            for answer, target_s in zip(relaxed, targets_s, strict=True)
        ]
        options = self.round(relaxed, [max(length_s, self._fastest_s) - overhead_s for length_s in useful_s])
        assignments = options[:-1].T.tolist()
        for number, (assignment, target_s) in enumerate(zip(assignments, targets_s, strict=True)):
            if self._problem.iteration_time_of(assignment) > target_s:
                assignments[number] = self._problem.fastest
        return [self._problem.frequencies_of(assignment) for assignment in assignments]

    def round(self, relaxed: Sequence[Relaxed], deadlines_s: Sequence[float]) -> Any:
        """Returns an assignment for each deadline, as columns of options, with a makespan within it.

        Args:
            relaxed: The relaxation's answers, one per deadline.
            deadlines_s: The longest makespans in s, without the overhead; the fastest plan's or longer.
        """
        import numpy as np

        columns = self._columns
        deadlines: Any = np.array(deadlines_s)
        prices: Any = np.array([answer.prices_w for answer in relaxed]).T
        targets = self._within(np.array([answer.times_s for answer in relaxed]).T, deadlines)
        starts = []
        for view in (columns.forwards, columns.backwards):
            options: Any = np.zeros((len(columns.kind), len(deadlines_s)), int)
            self._walk(view, options, latest_of(view, targets, deadlines), prices)
            starts.append(options)
        options = np.hstack(starts)
        limits, prices = np.tile(deadlines, len(starts)), np.tile(prices, len(starts))
        for number, share in enumerate(FALLING_SHARES):
            view = columns.backwards if number % 2 else columns.forwards
            self._walk(view, options, latest_of(view, columns.time(options), limits), share * prices)
        self._repair(options, limits)
        costs = columns.cost(options).reshape(len(starts), -1)
        return options[:, costs.argmin(axis=0) * len(deadlines_s) + np.arange(len(deadlines_s))]

    def _within(self, times: Any, deadlines: Any) -> Any:
        """Returns the relaxed durations, shortened where the solver's tolerance has let them exceed the deadline."""
        import numpy as np

        columns = self._columns
        fastest: Any = np.repeat(columns.times[columns.kind, 0][:, None], len(deadlines), axis=1)
        latest = latest_of(columns.forwards, fastest, deadlines)  # behind a node, everything at its fastest
        ends: Any = np.zeros_like(fastest)
        targets: Any = np.zeros_like(fastest)
        for level in columns.forwards:
            nodes = level.nodes
            start = starts_of(level, ends)
            targets[nodes] = np.maximum(fastest[nodes], np.minimum(times[nodes], latest[nodes] - start))
            ends[nodes] = start + targets[nodes]
        return targets

    def _walk(self, view: Sequence[Level], options: Any, latest: Any, prices: Any) -> None:
        """Gives each node, of the options that end by `latest`, the cheapest at its price of time."""
        import numpy as np

        columns = self._columns
        ends: Any = np.zeros_like(latest)
        slower: Any = 1e-10 * np.arange(columns.times.shape[1])[None, :, None]  # prefers the slower of equals
        for level in view:
            start = starts_of(level, ends)
            kinds = columns.kind[level.nodes]
            times, costs = columns.times[kinds][..., None], columns.costs[kinds][..., None]
            room = latest[level.nodes] - start + _EPSILON_S
            with np.errstate(invalid="ignore"):
                values = np.where(times <= room[:, None], costs + prices[level.nodes][:, None] * times - slower, NEVER)
            best = values.argmin(axis=1)  # the fastest where nothing fits
            options[level.nodes] = best
            ends[level.nodes] = start + columns.times[kinds[:, None], best]

    def _repair(self, options: Any, deadlines: Any) -> None:
        """Shortens assignments that exceed the deadline by rounding errors of the walks."""
        import numpy as np

        columns = self._columns
        for shortening in _SHORTENINGS:
            late = columns.makespan(options) > deadlines
            if not late.any():
                return
            some = options[:, late]
            latest = latest_of(columns.forwards, columns.time(some), deadlines[late] * (1 - shortening))
            self._walk(columns.forwards, some, latest, np.zeros_like(latest))
            options[:, late] = some
        options[:, columns.makespan(options) > deadlines] = 0
