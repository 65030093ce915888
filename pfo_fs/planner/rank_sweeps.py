"""Takes the clocks of one rank after another, while the other ranks keep theirs.

The instructions of the other ranks are pinned somewhere between their earliest and their latest begin. What is left
for one rank is a window of time for each of its instructions, within which `rank_runs.py` finds its best clocks, at
prices of time that fall to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from pfo_fs.arrays import np
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_runs import RankRuns, Window
from pfo_fs.planner.relaxation import Relaxed

_ROUNDS = ((1.0, 0.5), (0.9, 0.5), (0.7, 0.5), (0.4, 0.5), (0.2, 0.5), (0.0, 0.0))
"""Shares of the price of time while mixed clocks become real ones, and where the other ranks are pinned."""
_NO_LIMIT_S = 1e9


class RankSweeps:
    """Makes plans of one problem.

    Args:
        problem: The problem.
        wrong_s: For each rank, for how long a change makes a GPU run at the higher clock without need, in s.
    """

    def __init__(self, problem: Problem, wrong_s: Sequence[float]) -> None:
        self._problem = problem
        self._spans = list(pairwise(problem.pipeline.first_nodes))
        self._runs = [RankRuns(problem, rank, each_s) for rank, each_s in enumerate(wrong_s)]

    @cached_property
    def _max_clocks(self) -> list[int]:
        kinds = {kind: max(choices.frequencies_mhz) for kind, choices in self._problem.measured_by_kind.items()}
        return [kinds[i.stage, i.name] for i in self._problem.pipeline.instructions]

    @property
    def clock_pairs(self) -> int:
        """Number of pairs of clocks that are tried for all instructions and those before them."""
        return sum(len(runs.kind) * len(runs.clocks_mhz) ** 2 for runs in self._runs)

    def cheapest(self, price_w: Any, change_price_j: float) -> list[int]:
        """Returns each rank's cheapest clocks (MHz), wherever other ranks are.

        Args:
            price_w: Price of the duration of each node, in J/s.
            change_price_j: Price of a change beyond its energy, in J.
        """
        clocks_mhz: list[int] = []
        for rank, (first, end) in enumerate(self._spans):
            anywhere = Window(np.zeros(end - first), np.full(end - first, _NO_LIMIT_S), price_w[first:end])
            found = self._runs[rank].best(anywhere, change_price_j)
            clocks_mhz += found or self._max_clocks[first:end]
        return clocks_mhz

    def round_plan(self, relaxed: Relaxed, times_price: float, length_s: float, change_price_j: float) -> list[int]:
        """Returns real clocks (MHz) for mixed ones, late if a rank finds none that fit.

        Rank after rank gets its best clocks at a price of time that falls from the mixture's to nothing, while the
        others are pinned to what they have so far.

        Args:
            relaxed: Mixed clocks: the relaxation's answer.
            times_price: The first price of time, as a multiple of the relaxation's.
            length_s: The longest iteration time, in s.
            change_price_j: Price of a change beyond its energy, in J.
        """
        alike, spans = self._problem.alike, self._spans
        mixed_s, price_w = relaxed.times_s.copy(), times_price * relaxed.prices_w[:, 0]
        lost_s: Any = np.zeros(mixed_s.shape)  # for how long ranks with real clocks stand still before nodes
        clocks = list(self._max_clocks)
        rounded: set[int] = set()
        for number, (share, pin) in enumerate(_ROUNDS):
            odd = number % 2
            for rank in (*range(odd, len(spans), 2), *range(1 - odd, len(spans), 2)):
                first, end = spans[rank]
                window = self._window(mixed_s, lost_s, first, end, length_s, pin)
                window = replace(window, price_w=share * price_w[first:end])
                found = self._runs[rank].best(window, change_price_j)
                if found is None and rank in rounded:
                    continue
                rounded.add(rank)
                clocks[first:end] = found or self._max_clocks[first:end]
                real_s, still_s = alike.times(alike.numbers([clocks]))
                mixed_s[first:end] = real_s[first:end]
                if still_s is not None:
                    lost_s[first:end] = still_s[first:end]
        return clocks

    def _window(self, times_s: Any, lost_s: Any, first: int, end: int, length_s: float, pin: float) -> Window:
        """What the other ranks leave to the rank with the nodes from `first` to `end`."""
        problem = self._problem
        end_s = length_s - problem.overhead_s
        earliest = problem.paths.ends(times_s, lost_s=lost_s).ends_s[:, 0]
        latest = problem.paths.latest(times_s, end_s, lost_s)[:, 0]
        ends: Any = earliest + pin * (latest - earliest)
        begins_s, ends_s = (ends - times_s[:, 0]).tolist(), ends.tolist()
        release, due = [], []
        for node in range(first, end):
            before = [ends_s[n] + delay_s for n, delay_s in problem.before[node] if not first <= n < end]
            after = [begins_s[n] - delay_s for n, delay_s in problem.after[node] if not first <= n < end]
            release.append(max(before, default=0.0))
            due.append(min(after, default=end_s))
        return Window(np.array(release), np.array(due), np.zeros(end - first))
