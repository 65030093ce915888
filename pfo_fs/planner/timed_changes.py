"""Plans where a GPU stands still while its clock changes.

1. The program with changes (`change_relaxation.py`) gives a lower bound, prices of time, and mixtures of clocks.
2. Rank by rank, mixtures become real clocks within windows of time (`rank_sweeps.py`).
3. A mixed-integer program decides, for the segments between the changes of the best plans, which clock each of them
   has and which of these changes are worth their time (`change_program.py`). It is repeated from what it finds until
   it does not help any more, or the time is up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pfo_fs.planner.change_program import ChangeProgram, segments_of
from pfo_fs.planner.change_relaxation import ChangeRelaxation, MixedClocks
from pfo_fs.planner.clock_tables import ClockTables, Prices
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.rank_sweeps import RankSweeps, Value
from pfo_fs.planner.relaxation import Relaxed

_BOUND_ROUNDS, _BOUND_SHARE = 12, 0.4
"""Rounds of the bound, and the share of the time after which no other round begins."""
_PROGRAM_SHARE, _PROGRAM_S = 0.3, 10.0
"""A mixed-integer program gets this share of the time, and at most so many seconds."""
_SWEEPS = 3
_SAVES = 1e-4
_MERGED = 3
"""Changes of this many of the best plans are offered to a program."""
_SUPPORT = 1e-3


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
        seconds: The search ends about this long after it began, the bound included.
    """

    def __init__(self, problem: Problem, sweeps: RankSweeps, seconds: float) -> None:
        self._problem, self._sweeps = problem, sweeps
        self.seconds = seconds

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
    ) -> Timed:
        """Returns the best plan found.

        Args:
            candidates: Plans that are known, at least one of them within the length.
            relaxed: The answer of the relaxation without changes.
            length_s: The longest iteration time, in s.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until `length_s` in any case.
            prices_j: For each rank, the price of a change beyond its time and energy, in J.
        """
        import numpy as np

        began = time.perf_counter()
        until = began + self.seconds
        problem, tables, sweeps = self._problem, self._tables, self._sweeps
        change_j: Any = np.repeat(prices_j, [end - first for first, end in tables.spans])
        makespan_s = length_s - problem.overhead_s

        def valued(clocks: list[int]) -> tuple[Value, list[int]]:
            value = sweeps.value(clocks, length_s, waiting_w)
            paid_j = float(sum(change_j[node] for node in problem.changes(clocks)))
            return Value(value.impossible, value.energy_j + paid_j), clocks

        bound_until = began + _BOUND_SHARE * self.seconds
        mixed = self._relaxation.solve(makespan_s, waiting_w, relaxed, change_j, _BOUND_ROUNDS, bound_until)
        known = [valued(clocks) for clocks in candidates]
        mixed = mixed or self._without_changes(relaxed, change_j)
        known.append(
            valued(sweeps.settle(mixed.times_s, mixed.prices.node_w, self._lost_s(mixed), length_s, prices_j, until))
        )
        if time.perf_counter() < until:
            known.append(valued(sweeps.improve(min(known)[1], length_s, waiting_w, prices_j, 1)))
        best = min(known)
        merged = 1
        while time.perf_counter() < until:
            found = self._merged(sorted(known)[:merged], makespan_s, waiting_w, change_j, until)
            if found is None:
                break
            known.append(valued(found))
            known.append(valued(sweeps.improve(found, length_s, waiting_w, prices_j, _SWEEPS)))
            saves_j = best[0].energy_j - min(known)[0].energy_j
            best = min(known)
            if saves_j <= _SAVES * abs(best[0].energy_j):
                if merged == _MERGED:
                    break
                merged += 1
        return Timed(best[1], max(relaxed.lower_bound_j, mixed.lower_bound_j))

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

    def _merged(
        self,
        plans: Sequence[tuple[Value, list[int]]],
        makespan_s: float,
        waiting_w: float,
        change_j: Any,
        until: float,
    ) -> list[int] | None:
        """The clocks (MHz) of the best plan that changes clocks only where these plans do; the first is the best."""
        import numpy as np

        tables, problem, edges = self._tables, self._problem, self._relaxation.edges
        optional = len(plans) > 1
        numbers = [tables.numbers(clocks) for _, clocks in plans]
        segment = segments_of(tables, numbers)
        count = int(segment[-1]) + 1
        firsts = np.searchsorted(segment, np.arange(count))
        present = numbers[0][firsts]
        known: Any = np.zeros((count, len(tables.clocks_mhz)), bool)
        for clocks in numbers:
            known[segment, clocks] = True
        everything = np.ones_like(known)
        relaxed = ChangeProgram(tables, edges, segment, everything, makespan_s, waiting_w, change_j, optional).relaxed(
            max(0.1, until - time.perf_counter())
        )
        if relaxed is None:
            return None
        support = relaxed.shares > _SUPPORT
        known |= support
        known[:, 1:] |= support[:, :-1]
        known[:, :-1] |= support[:, 1:]
        program = ChangeProgram(
            tables, self._relaxation.edges, segment, known, makespan_s, waiting_w, change_j, optional
        )
        times_s = tables.times[tables.kind, numbers[0]]
        timing = problem.timing(times_s.tolist(), problem.changes(plans[0][1]))
        limit_s = min(_PROGRAM_S, _PROGRAM_SHARE * self.seconds, max(0.1, until - time.perf_counter()))
        answer = program.whole(
            limit_s, present, np.array(timing.starts_s) + times_s, timing.iteration_time_s - problem.overhead_s
        )
        if answer is None:
            return None
        clocks_mhz: Any = np.array(tables.clocks_mhz)
        chosen: list[int] = clocks_mhz[answer.shares.argmax(axis=1)][segment].tolist()
        return chosen
