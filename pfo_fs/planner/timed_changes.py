"""Plans where a GPU stands still while its clock changes.

1. The program with changes (`change_relaxation.py`) gives a lower bound, prices of time, and mixtures of clocks.
2. Rank by rank, mixtures become real clocks within windows of time (`rank_sweeps.py`).
3. Mixtures also say where ranks may change their clocks (`ramped`). Dives through the programs of these segments
   (`segment_search.py`) give other plans.
4. Mixed-integer programs improve the best plan, all ranks together in small problems and else two at a time, until they
   do not help any more, or the time is up.
5. Small problems are then solved with all clocks and changes anywhere, which gives a better bound, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pfo_fs.planner.change_relaxation import ChangeRelaxation, MixedClocks
from pfo_fs.planner.clock_tables import ClockTables, Prices
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_sweeps import LATE, RankSweeps, Value
from pfo_fs.planner.relaxation import Relaxed
from pfo_fs.planner.segment_search import SegmentSearch, ramped

_BOUND_ROUNDS, _BOUND_SHARE = 12, 0.4
"""Rounds of the bound, and the share of the time after which no other round begins."""
_TOGETHER, _WIDTH = 600, 2
"""In problems with more nodes than the first number, a program improves only as many ranks as the second one says."""
_PROGRAM_SHARE, _LEAST_PROGRAM_S = 0.2, 0.5
"""Time limit of a program: for all ranks this share of that of the search, for a few half of it, but at least so many
seconds."""
_SWEEPS, _MORE_SWEEPS = 3, 9
"""Sweeps after a mixed-integer program, and after a dive."""
_SAVES = 1e-4
_EXACT, _EXACT_GAP, _EXACT_SHARE = 400, 5e-4, 0.4
"""Problems with no more nodes are solved if the gap is larger than the second number, until it is no larger or this
share of the time is over."""
"""Relative: programs that save less do not help."""
_TOLERANCE = 1e-6
"""Relative: the solver's answers are no more exact."""


class Timed(NamedTuple):
    """What was found.

    Attributes:
        clocks_mhz: Clock of each node, in MHz.
        lower_bound_j: No plan within the length takes less energy, prices of changes included, in J.
    """

    clocks_mhz: list[int]
    lower_bound_j: float


class TimedChanges:
    """Plans one problem in which GPUs stand still at changes.

    Args:
        problem: The problem.
        sweeps: Improves plans rank by rank, and says how good they are.
    """

    def __init__(self, problem: Problem, sweeps: RankSweeps) -> None:
        self._problem, self._sweeps = problem, sweeps

    @cached_property
    def _tables(self) -> ClockTables:
        return ClockTables(self._problem)

    @cached_property
    def _relaxation(self) -> ChangeRelaxation:
        return ChangeRelaxation(self._problem, self._tables)

    def plan(
        self,
        candidates: Sequence[list[int]],
        relaxed: Relaxed,
        length_s: float,
        waiting_w: float,
        prices_j: Sequence[float],
        seconds: float,
    ) -> Timed:
        """Returns the best plan found.

        Args:
            candidates: Plans that are known, at least one of them within the length.
            relaxed: The answer of the relaxation without changes.
            length_s: The longest iteration time, in s.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until `length_s` in any case.
            prices_j: For each rank, the price of a change beyond its time and energy, in J.
            seconds: The search ends about this long after it began, the bound included.
        """
        import numpy as np

        began = time.perf_counter()
        until = began + seconds
        problem, tables, sweeps = self._problem, self._tables, self._sweeps
        change_j: Any = np.repeat(prices_j, [end - first for first, end in tables.spans])
        makespan_s = length_s - problem.overhead_s

        def valued(clocks: list[int]) -> Value:
            value = sweeps.value(clocks, length_s, waiting_w)
            return value._replace(energy_j=value.energy_j + float(change_j[problem.changes(clocks)].sum()))

        def improved(clocks: list[int], most: int) -> list[int]:
            return sweeps.improve(clocks, length_s, waiting_w, prices_j, most)

        bound_until = began + _BOUND_SHARE * seconds
        mixed = self._relaxation.solve(makespan_s, waiting_w, relaxed, change_j, _BOUND_ROUNDS, bound_until)
        mixed = mixed or self._without_changes(relaxed, change_j)
        found = _Found(valued)
        for clocks in candidates:
            found.add(clocks)
        found.add(sweeps.settle(mixed.times_s, mixed.prices.node_w, self._lost_s(mixed), length_s, prices_j, until))
        if time.perf_counter() < until:
            found.add(improved(found.best, 1))
        search = SegmentSearch(tables, self._relaxation.edges, makespan_s, waiting_w, change_j)
        offers = [ramped(tables, mixed.shares, falling) for falling in (False, True)]
        for offered in (offers[:1], offers):
            left_s = until - time.perf_counter()
            dived = search.dived(offered, left_s / 2) if left_s > 0 else None
            if dived is not None:
                found.add(dived)
                found.add(improved(dived, _MORE_SWEEPS))
        self._search(search, offers, found, improved, seconds, until)
        left_s = min(until - time.perf_counter(), _EXACT_SHARE * seconds)
        bound_j = self._solved(search, mixed, found, waiting_w * problem.overhead_s, left_s)
        bound_j = max(relaxed.lower_bound_j, bound_j)
        return Timed(found.best, bound_j)

    def _search(
        self,
        search: SegmentSearch,
        offers: Sequence[Any],
        found: _Found,
        improved: Callable[[list[int], int], list[int]],
        seconds: float,
        until: float,
    ) -> None:
        """Adds plans from mixed-integer programs, until neither of the offers helps or the time is up."""
        count, nodes = len(self._tables.spans), len(self._tables.kind)
        width = count if nodes <= _TOGETHER else _WIDTH
        number = useless = 0
        while useless < len(offers) and time.perf_counter() < until:
            last_j, slow = found.energy_j, False
            for ranks in _groups(count, width, number):
                share = _PROGRAM_SHARE * (1.0 if width >= count else 0.5)
                now = time.perf_counter()
                limit_s = min(until - now, max(_LEAST_PROGRAM_S, share * seconds))
                if limit_s <= 0:
                    break
                others = [self._tables.numbers(found.second)] if found.second else []
                clocks = search.improved(found.best, [offers[number % len(offers)], *others], ranks, limit_s)
                slow |= time.perf_counter() - now > 0.9 * limit_s
                if clocks is not None:
                    found.add(clocks)
            found.add(improved(found.best, _SWEEPS))
            number += 1
            useless = 0 if last_j - found.energy_j > _SAVES * abs(last_j) else useless + 1
            if slow and width > _WIDTH:
                width, useless = _WIDTH, 0

    def _solved(
        self, search: SegmentSearch, mixed: MixedClocks, found: _Found, overhead_j: float, left_s: float
    ) -> float:
        """Adds the best plan of a small problem. Returns a lower bound in J, that of `mixed` or a better one."""
        gap_j = found.energy_j - overhead_j - mixed.lower_bound_j
        # Programs do not count that clocks act late, too.
        small = len(self._tables.kind) <= _EXACT and not self._problem.switch_costs.acts_late_s
        if not small or left_s <= 0 or gap_j <= _EXACT_GAP * abs(mixed.lower_bound_j):
            return mixed.lower_bound_j
        # A better plan has no clock that costs more than the gap at these prices.
        possible = self._tables.through(mixed.prices) <= gap_j
        answer = search.best(found.best, possible, left_s, _EXACT_GAP)
        if answer is None:
            return mixed.lower_bound_j
        clocks, bound_j = answer
        found.add(clocks)
        return max(mixed.lower_bound_j, bound_j - _TOLERANCE * abs(bound_j))

    def _without_changes(self, relaxed: Relaxed, change_j: Any) -> MixedClocks:
        """The relaxation's answer, for problems that are too large for the program with changes."""
        import numpy as np

        times_s, node_w = np.array(relaxed.times_s), np.array(relaxed.prices_w)
        shares: Any = np.zeros((len(times_s), 1))
        bound_j = relaxed.lower_bound_j
        return MixedClocks(Prices(node_w, node_w, change_j), shares, times_s, relaxed.makespan_s, bound_j, bound_j)

    def _lost_s(self, mixed: MixedClocks) -> dict[int, float]:
        import numpy as np

        new = np.maximum(mixed.shares[1:] - mixed.shares[:-1], 0.0).sum(axis=1)
        lost_s = new * self._problem.switch_costs.stands_still_s
        return {node: float(lost_s[node - 1]) for node in np.flatnonzero(~self._tables.first).tolist()}


class _Found:
    """The plans that were found, two of which are kept.

    Attributes:
        best: Clocks of the best one, in MHz.
        second: Clocks of the second best one, in MHz; empty if there is none.
        energy_j: Energy of the best one in J, with the prices of changes.
    """

    def __init__(self, valued: Callable[[list[int]], Value]) -> None:
        self._valued = valued
        self._plans: list[tuple[Value, list[int]]] = []

    def add(self, clocks: list[int]) -> None:
        """Keeps a plan if it is one of the best."""
        self._plans = sorted([*self._plans, (self._valued(clocks), clocks)])
        different = [k for k, plan in enumerate(self._plans) if k == 0 or plan != self._plans[k - 1]]
        self._plans = [self._plans[k] for k in different[:2]]

    @property
    def best(self) -> list[int]:
        return self._plans[0][1]

    @property
    def second(self) -> list[int]:
        value, clocks = self._plans[-1]
        return clocks if len(self._plans) > 1 and value.energy_j < LATE.energy_j else []

    @property
    def energy_j(self) -> float:
        return self._plans[0][0].energy_j


def _groups(count: int, width: int, number: int) -> list[list[int]]:
    """The ranks that are planned together; the groups of the next number overlap with those of this one."""
    if width >= count:
        return [list(range(count))]
    offset = number * (width // 2)
    return [
        [(first + offset + k) % count for k in range(width) if first + k < count] for first in range(0, count, width)
    ]
