"""Improves a plan by mixed-integer programs: where ranks change their clocks, and to which, for several ranks at once.

A rank may change its clock where the plan does, or where other borders are offered to it. The program decides which of
these changes are worth their time, and which clock each segment between them has. The other ranks keep their clocks,
but their instructions move in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfo_fs.planner.change_program import WHOLE_GAP, Answer, ChangeProgram, Edges, segments_of
from pfo_fs.planner.clock_tables import ClockTables

_SUPPORT = 1e-3
"""A segment may have the clocks with a larger share than this in the linear program, and their neighbours."""
_MIXED, _ALIKE = 0.03, 0.3
"""A clock with a smaller share than the first does not make a mixture; two mixtures are alike if their shares differ by
less than the second in total."""


class SegmentSearch:
    """The programs of one problem, for one deadline.

    Args:
        tables: The problem.
        edges: Its dependencies.
        makespan_s: The longest makespan, in s, without the overhead.
        waiting_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
        change_j: For each node, the price of a clock change before it, in J.
    """

    def __init__(self, tables: ClockTables, edges: Edges, makespan_s: float, waiting_w: float, change_j: Any) -> None:
        import numpy as np

        self._tables, self._edges = tables, edges
        self._makespan_s, self._waiting_w, self._change_j = makespan_s, waiting_w, change_j
        self._rank: Any = np.repeat(np.arange(len(tables.spans)), [end - first for first, end in tables.spans])

    def dived(self, offered: Sequence[Any], seconds: float) -> list[int] | None:
        """Returns the clocks (MHz) of a plan that is good, but not the best; None if none is found.

        Args:
            offered: Clocks of all nodes, as numbers: ranks may change their clocks at the borders between them.
            seconds: Time limit of each program, in s.
        """
        import numpy as np

        segment = segments_of(self._tables, offered)
        everything: Any = np.ones((int(segment[-1]) + 1, len(self._tables.clocks_mhz)), bool)
        known = self._support(segment, everything, seconds)
        answer = None if known is None else self._program(segment, known).dived(seconds)
        return None if answer is None else self._clocks_mhz(answer, segment)

    def improved(
        self, best: Sequence[int], offered: Sequence[Any], ranks: Sequence[int], seconds: float
    ) -> list[int] | None:
        """Returns the clocks (MHz) of a plan that is no worse; None if the solver finds nothing.

        Args:
            best: The clocks (MHz) of a plan within the makespan.
            offered: Clocks of all nodes, as numbers: the borders between them and the clocks are offered, too.
            ranks: The ranks whose clocks may change.
            seconds: Time limit of each program, in s.
        """
        import numpy as np

        tables = self._tables
        free = np.isin(self._rank, ranks)
        numbers = tables.numbers(best)
        segment = segments_of(tables, [numbers, *(np.where(free, clocks, 0) for clocks in offered)])
        firsts = np.flatnonzero(np.diff(segment, prepend=-1))
        present = np.arange(len(firsts)), numbers[firsts]
        known: Any = np.zeros((len(firsts), len(tables.clocks_mhz)), bool)
        known[free[firsts]] = known[present] = True
        support = self._support(segment, known, seconds)
        if support is None:
            return None
        for clocks in offered:
            support[segment, clocks] = True
        known &= support
        known[present] = True
        answer = self._whole(best, segment, known, seconds)
        return None if answer is None else self._clocks_mhz(answer, segment)

    def best(self, plan: Sequence[int], possible: Any, seconds: float, gap: float) -> tuple[list[int], float] | None:
        """Returns the clocks (MHz) of the best plan, and a lower bound of the energy of all plans in J.

        Args:
            plan: The clocks (MHz) of a plan within the makespan.
            possible: For each node and clock, whether a better plan may have it.
            seconds: Time limit, in s: what is found then may not be the best.
            gap: Relative: the best plan may take so much less energy.
        """
        import numpy as np

        segment: Any = np.arange(len(self._rank))
        possible = possible.copy()
        possible[segment, self._tables.numbers(plan)] = True
        answer = self._whole(plan, segment, possible, seconds, gap)
        return None if answer is None else (self._clocks_mhz(answer, segment), answer.lower_bound_j)

    def _whole(
        self, plan: Sequence[int], segment: Any, known: Any, seconds: float, gap: float = WHOLE_GAP
    ) -> Answer | None:
        """Solves the program for whole shares; `plan` (MHz) is where the solver begins."""
        import numpy as np

        tables, problem = self._tables, self._tables.problem
        numbers = tables.numbers(plan)
        times_s = tables.times[tables.kind, numbers]
        timing = problem.timing(times_s.tolist(), problem.changes(plan))
        ends_s = np.array(timing.starts_s) + times_s
        makespan_s = timing.iteration_time_s - problem.overhead_s
        present = numbers[np.flatnonzero(np.diff(segment, prepend=-1))]
        return self._program(segment, known).whole(seconds, present, ends_s, makespan_s, gap)

    def _support(self, segment: Any, known: Any, seconds: float) -> Any:
        """Which clocks segments have in the linear program over those that are known, and their neighbours."""
        relaxed = self._program(segment, known).relaxed(seconds)
        if relaxed is None:
            return None
        has = relaxed.shares > _SUPPORT
        support = has.copy()
        support[:, 1:] |= has[:, :-1]
        support[:, :-1] |= has[:, 1:]
        return support

    def _clocks_mhz(self, answer: Answer, segment: Any) -> list[int]:
        import numpy as np

        clocks_mhz: list[int] = np.array(self._tables.clocks_mhz)[answer.shares.argmax(axis=1)][segment].tolist()
        return clocks_mhz

    def _program(self, segment: Any, known: Any) -> ChangeProgram:
        return ChangeProgram(
            self._tables, self._edges, segment, known, self._makespan_s, self._waiting_w, self._change_j
        )


def ramped(tables: ClockTables, shares: Any, falling: bool = False) -> Any:
    """Returns one clock per node for mixtures, as numbers.

    Where several instructions in a row have alike mixtures, the first ones get the lower clock and the others the
    higher one, in the proportions of the mixture; with `falling`, the other way round.

    Args:
        tables: The problem.
        shares: For each node and clock, its share.
        falling: Whether higher clocks come first.
    """
    import numpy as np

    count = len(shares)
    mixed = (shares > _MIXED).sum(axis=1) > 1
    differs = np.abs(np.diff(shares, axis=0)).sum(axis=1) > _ALIKE
    begins = np.concatenate([[True], tables.first[1:] | differs | (mixed[1:] != mixed[:-1])])
    firsts = np.flatnonzero(begins)
    lengths: Any = np.diff(np.append(firsts, count))
    position = (np.arange(count) - np.repeat(firsts, lengths) + 0.5) / np.repeat(lengths, lengths)
    position = np.where(mixed, 1 - position if falling else position, 0.5)
    return (np.cumsum(shares, axis=1) >= position[:, None] - 1e-12).argmax(axis=1)
