"""Improves a plan rank by rank, without leaving its deadline.

The instructions of the other ranks are pinned somewhere between their earliest and their latest begin. What is left
for one rank is a window of time for each of its instructions, within which `rank_runs.py` finds its best clocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_runs import RankRuns, Window

_PINS = (1.0, 0.0, 0.5)
"""Where the other ranks are pinned in one sweep after the other: 0 is their earliest begin, 1 their latest."""
_SETTLING = ((1.0, 0.5), (0.9, 0.5), (0.7, 0.5), (0.4, 0.5), (0.2, 0.5), (0.0, 0.0))
"""Shares of the price of time while mixed clocks become real ones, and where the other ranks are pinned."""
_SAVES = 5e-5
"""Relative: the search ends when a sweep saves less."""


class Value(NamedTuple):
    """How good a plan is; the smaller one is better.

    Attributes:
        impossible: Number of things that the drivers cannot do: runs that are too short, hosts with too many changes.
        energy_j: Energy of an iteration in J; infinite if the plan is late.
    """

    impossible: int
    energy_j: float


LATE = Value(10**9, float("inf"))


class RankSweeps:
    """Improves plans of one problem.

    Args:
        problem: The problem.
        wrong_s: For each rank, for how long a change makes a GPU run at the higher clock without need, in s.
    """

    def __init__(self, problem: Problem, wrong_s: Sequence[float]) -> None:
        self._problem = problem
        self._wrong_s = wrong_s

    @cached_property
    def _tables(self) -> list[dict[int, tuple[float, float]]]:
        """For each node and clock, time in s and effective energy in J."""
        tables = {
            kind: dict(zip(c.frequencies_mhz, zip(c.times_s, c.costs_j, strict=True), strict=True))
            for kind, c in self._problem.measured_by_kind.items()
        }
        return [tables[i.stage, i.name] for i in self._problem.pipeline.instructions]

    def value(self, clocks_mhz: Sequence[int], length_s: float, waiting_w: float) -> Value:
        """Returns how good a plan is.

        Args:
            clocks_mhz: Clock of each node, in MHz.
            length_s: The longest iteration time, in s.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
        """
        problem = self._problem
        costs_j = [table[mhz][1] for table, mhz in zip(self._tables, clocks_mhz, strict=True)]
        times_s = self._times_s(clocks_mhz)
        timing = problem.timing(times_s, problem.changes(clocks_mhz))
        if timing.iteration_time_s > length_s:
            return LATE
        load = problem.switch_load_of(clocks_mhz, times_s, timing)
        energy_j = sum(costs_j) + load.energy_j + waiting_w * timing.iteration_time_s
        return Value(len(load.overloaded) + load.too_short, energy_j)

    def with_prices(self, value: Value, clocks_mhz: Sequence[int], change_price_j: Sequence[float]) -> Value:
        """Returns the value with the price in J of each clock change, by rank, as part of the energy."""
        changes = self._problem.changes(clocks_mhz)
        first_nodes = self._problem.pipeline.first_nodes
        prices_j = [change_price_j[bisect_right(first_nodes, node) - 1] for node in changes]
        return value._replace(energy_j=value.energy_j + sum(prices_j))

    def _times_s(self, clocks_mhz: Sequence[int]) -> list[float]:
        times_s = [table[mhz][0] for table, mhz in zip(self._tables, clocks_mhz, strict=True)]
        for node, (more_s, _) in self._problem.late(clocks_mhz).items():
            times_s[node] += more_s
        return times_s

    def improve(
        self,
        clocks_mhz: Sequence[int],
        length_s: float,
        waiting_w: float,
        change_price_j: Sequence[float],
        sweeps: int,
        *,
        priced: bool = False,
    ) -> list[int]:
        """Returns the clocks in MHz of a plan that is no worse.

        Args:
            clocks_mhz: Clock of each node, in MHz, of a plan within the length.
            length_s: The longest iteration time, in s.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
            change_price_j: For each rank, the price of a change beyond its energy, in J.
            sweeps: The most sweeps over all ranks.
            priced: Whether a plan is better if its energy and the prices of its changes together are less; otherwise
                prices only say which plans are tried.
        """
        clocks = list(clocks_mhz)
        spans = list(pairwise(self._problem.pipeline.first_nodes))
        runs = [
            RankRuns(self._problem, rank, self._wrong_s[rank], clocks[first:end])
            for rank, (first, end) in enumerate(spans)
        ]

        def valued(clocks: list[int]) -> Value:
            value = self.value(clocks, length_s, waiting_w)
            return self.with_prices(value, clocks, change_price_j) if priced else value

        best = valued(clocks)
        for number in range(sweeps):
            last = best
            for rank, (first, end) in enumerate(spans):
                times_s = self._times_s(clocks)
                changes = self._problem.changes(clocks)
                window = self._window(times_s, changes, first, end, length_s, _PINS[number % len(_PINS)])
                found = runs[rank].best(window, change_price_j[rank])
                if found is None or found == clocks[first:end]:
                    continue
                tried = [*clocks[:first], *found, *clocks[end:]]
                value = valued(tried)
                if value < best:
                    clocks, best = tried, value
            if best.impossible == last.impossible and last.energy_j - best.energy_j <= _SAVES * last.energy_j:
                break
        return clocks

    def settle(
        self,
        times_s: Sequence[float],
        price_w: Any,
        length_s: float,
        change_price_j: Sequence[float],
    ) -> list[int]:
        """Returns real clocks (MHz) for mixed ones, late if a rank finds none that fit.

        Rank after rank gets its best clocks at a price of time that falls from the mixture's to nothing, while the
        others are pinned to what they have so far.

        Args:
            times_s: Duration of each node at its mixed clocks, in s.
            price_w: Price of its duration, in J/s; an array.
            length_s: The longest iteration time, in s.
            change_price_j: For each rank, the price of a change beyond its energy, in J.
        """
        problem = self._problem
        spans = list(pairwise(problem.pipeline.first_nodes))
        runs = [RankRuns(problem, rank, self._wrong_s[rank]) for rank in range(len(spans))]
        highest = [max(table) for table in self._tables]
        times_s = list(times_s)
        lost: dict[int, float] = {}  # for how long ranks stand still before each node, in s
        clocks: list[int] = [0] * len(times_s)
        for number, (share, pin) in enumerate(_SETTLING):
            odd = number % 2
            for rank in (*range(odd, len(spans), 2), *range(1 - odd, len(spans), 2)):
                first, end = spans[rank]
                window = self._window(times_s, lost, first, end, length_s, pin)
                window = replace(window, price_w=share * price_w[first:end])
                found = runs[rank].best(window, change_price_j[rank])
                if found is None:
                    if clocks[first]:
                        continue
                    found = highest[first:end]
                clocks[first:end] = found
                times_s[first:end] = [self._tables[node][clocks[node]][0] for node in range(first, end)]
                for node, (more_s, _) in problem.late(clocks, rank).items():
                    times_s[node] += more_s
                for node in range(first + 1, end):
                    changes = clocks[node] != clocks[node - 1]
                    lost[node] = problem.switch_costs.stands_still_s if changes else 0.0
        return clocks

    def _window(
        self,
        times_s: Sequence[float],
        changes: Sequence[int] | Mapping[int, float],
        first: int,
        end: int,
        length_s: float,
        pin: float,
    ) -> Window:
        """What the other ranks leave to the rank with the nodes from `first` to `end`."""
        import numpy as np

        problem = self._problem
        end_s = length_s - problem.overhead_s
        earliest = problem.timing(times_s, changes).starts_s
        latest = problem.latest_starts(times_s, changes, end_s)
        pinned = [soon + pin * (late - soon) for soon, late in zip(earliest, latest, strict=True)]
        release, due = [], []
        for node in range(first, end):
            before = [pinned[n] + times_s[n] + delay_s for n, delay_s in problem.before[node] if not first <= n < end]
            after = [pinned[n] - delay_s for n, delay_s in problem.after[node] if not first <= n < end]
            release.append(max(before, default=0.0))
            due.append(min(after, default=end_s))
        return Window(np.array(release), np.array(due), np.zeros(end - first))
