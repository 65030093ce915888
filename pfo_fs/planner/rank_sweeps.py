"""Takes the clocks of one rank after another, while the other ranks keep theirs.

The instructions of the other ranks are pinned somewhere between their earliest and their latest begin. What is left
for one rank is a window of time for each of its instructions, within which `rank_runs.py` finds its best clocks: at
prices of time that fall to nothing for a first plan (`round_plan`), and then without such prices (`improve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_runs import RankRuns, Window
from pfo_fs.planner.scenario_model import Played

_PINS = (1.0, 0.0, 0.5)
"""Where the other ranks are pinned in one sweep after the other: 0 is their earliest begin, 1 their latest."""
_ROUNDS = ((1.0, 0.5), (0.9, 0.5), (0.7, 0.5), (0.4, 0.5), (0.2, 0.5), (0.0, 0.0))
"""Shares of the price of time while mixed clocks become real ones, and where the other ranks are pinned."""
_SAVES = 5e-5
"""Relative: the search ends when a sweep saves less."""
_NO_LIMIT_S = 1e9


class Value(NamedTuple):
    """How good a plan is; the smaller one is better.

    Attributes:
        impossible: Number of things that the drivers cannot do: runs that are too short, hosts with too many changes.
        energy_j: Energy of an iteration in J, with the price of each change; infinite if the plan is late.
    """

    impossible: int
    energy_j: float


LATE = Value(10**9, float("inf"))


class RankSweeps:
    """Makes and improves plans of one problem.

    Args:
        problem: The problem.
        wrong_s: For each rank, for how long a change makes a GPU run at the higher clock without need, in s.
    """

    def __init__(self, problem: Problem, wrong_s: Sequence[float]) -> None:
        self._problem = problem
        self._wrong_s = wrong_s
        self._spans = list(pairwise(problem.pipeline.first_nodes))

    @cached_property
    def _runs(self) -> list[RankRuns]:
        return [RankRuns(self._problem, rank, wrong_s) for rank, wrong_s in enumerate(self._wrong_s)]

    @cached_property
    def _max_clocks(self) -> list[int]:
        kinds = {kind: max(choices.frequencies_mhz) for kind, choices in self._problem.measured_by_kind.items()}
        return [kinds[i.stage, i.name] for i in self._problem.pipeline.instructions]

    @property
    def clock_pairs(self) -> int:
        """Number of pairs of clocks that are tried for all instructions and those before them."""
        return sum(len(runs.kind) * len(runs.clocks_mhz) ** 2 for runs in self._runs)

    def value(
        self, clocks_mhz: Sequence[int], length_s: float, waiting_w: float, change_price_j: Sequence[float]
    ) -> Value:
        """Returns how good a plan is.

        Args:
            clocks_mhz: Clock of each node, in MHz.
            length_s: The longest iteration time, in s.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
            change_price_j: For each rank, the price of a change beyond its energy, in J.
        """
        return self._value(self._problem.played(clocks_mhz), length_s, waiting_w, change_price_j)

    def _value(self, played: Played, length_s: float, waiting_w: float, change_price_j: Sequence[float]) -> Value:
        import numpy as np

        if played.mean_s > length_s:
            return LATE
        changed = self._problem.alike.changed(played.clocks)[:, 0]
        counts = np.add.reduceat(changed, [first for first, _ in self._spans], dtype=int)
        prices_j = float(counts @ np.array(change_price_j))
        return Value(played.impossible, played.effective_j + waiting_w * played.mean_s + prices_j)

    def cheapest(self, price_w: Sequence[float], change_price_j: Sequence[float]) -> list[int]:
        """Returns each rank's cheapest clocks (MHz), wherever other ranks are.

        Args:
            price_w: Price of the duration of each node, in J/s.
            change_price_j: For each rank, the price of a change beyond its energy, in J.
        """
        import numpy as np

        clocks_mhz: list[int] = []
        for rank, (first, end) in enumerate(self._spans):
            anywhere = Window(np.zeros(end - first), np.full(end - first, _NO_LIMIT_S), np.array(price_w[first:end]))
            found = self._runs[rank].best(anywhere, change_price_j[rank])
            clocks_mhz += found or self._max_clocks[first:end]
        return clocks_mhz

    def improve(
        self,
        clocks_mhz: Sequence[int],
        length_s: float,
        waiting_w: float,
        change_price_j: Sequence[float],
        counted_price_j: Sequence[float],
        sweeps: int,
    ) -> list[int]:
        """Returns the clocks in MHz of a plan that is no worse.

        Args:
            clocks_mhz: Clock of each node, in MHz, of a plan within the length.
            length_s: The longest iteration time, in s.
            waiting_w: As in `value`.
            change_price_j: For each rank, the price of a change at which plans are tried, in J.
            counted_price_j: The price at which they are judged.
            sweeps: The most sweeps over all ranks.
        """
        clocks = list(clocks_mhz)
        runs = [
            RankRuns(self._problem, rank, self._wrong_s[rank], clocks[first:end])
            for rank, (first, end) in enumerate(self._spans)
        ]
        present = self._problem.played(clocks)
        best = self._value(present, length_s, waiting_w, counted_price_j)
        for number in range(sweeps):
            last = best
            for rank, (first, end) in enumerate(self._spans):
                pin = _PINS[number % len(_PINS)]
                window = self._window(present.times_s, present.lost_s, first, end, length_s, pin)
                found = runs[rank].best(window, change_price_j[rank])
                if found is None or found == clocks[first:end]:
                    continue
                tried = [*clocks[:first], *found, *clocks[end:]]
                played = self._problem.played(tried)
                value = self._value(played, length_s, waiting_w, counted_price_j)
                if value < best:
                    clocks, best, present = tried, value, played
            if best.impossible == last.impossible and last.energy_j - best.energy_j <= _SAVES * last.energy_j:
                break
        return clocks

    def round_plan(
        self, times_s: Sequence[float], price_w: Any, length_s: float, change_price_j: Sequence[float]
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
        import numpy as np

        alike, spans = self._problem.alike, self._spans
        mixed_s: Any = np.array(times_s)[:, None]
        lost_s: Any = np.zeros(mixed_s.shape)  # for how long ranks with real clocks stand still before nodes
        clocks = list(self._max_clocks)
        rounded: set[int] = set()
        for number, (share, pin) in enumerate(_ROUNDS):
            odd = number % 2
            for rank in (*range(odd, len(spans), 2), *range(1 - odd, len(spans), 2)):
                first, end = spans[rank]
                window = self._window(mixed_s, lost_s, first, end, length_s, pin)
                window = replace(window, price_w=share * price_w[first:end])
                found = self._runs[rank].best(window, change_price_j[rank])
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
        import numpy as np

        problem = self._problem
        end_s = length_s - problem.overhead_s
        earliest = problem.paths.ends(times_s, lost_s=lost_s).ends_s[:, 0]
        latest = problem.paths.latest(times_s, end_s, lost_s)[:, 0]
        pinned = earliest + pin * (latest - earliest)  # when nodes end
        begins = pinned - times_s[:, 0]
        release, due = [], []
        for node in range(first, end):
            before = [pinned[n] + delay_s for n, delay_s in problem.before[node] if not first <= n < end]
            after = [begins[n] - delay_s for n, delay_s in problem.after[node] if not first <= n < end]
            release.append(max(before, default=0.0))
            due.append(min(after, default=end_s))
        return Window(np.array(release), np.array(due), np.zeros(end - first))
