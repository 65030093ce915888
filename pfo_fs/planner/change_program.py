"""The program in which clock changes take time: shares of clocks for segments of instructions, and when each one ends.

A segment is a run of instructions of one rank that share a clock. For each segment there are variables for the shares
of its clocks and for the share by which each clock is new there; for each instruction, one for its end. A rank stands
still before a segment for the time of a change, times the share that is new. With one segment per instruction, the
linear program is a relaxation of all plans. With longer segments and whole shares, its answer is a plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from pfo_fs.planner.clock_tables import ClockTables
from pfo_fs.planner.solver import silent_highs, use_interior_point

INTERIOR_POINT_COLUMNS = 600
_TOLERANCE = 1e-4
WHOLE_GAP = 2e-4
_WHOLE, _DIVED, _SHARE = 0.999, 0.15, 1e-4
"""A dive fixes segments with a clock of at least the first share, and this part of the others at once; a clock with a
share smaller than the third is not in a mixture."""


class Edges:
    """The dependencies of a problem, as arrays."""

    def __init__(self, tables: ClockTables) -> None:
        import numpy as np

        problem = tables.problem
        edges = [(j, i, d) for i, before in enumerate(problem.before) for j, d in before]
        self.before: Any = np.array([j for j, _, _ in edges], int)
        self.after: Any = np.array([i for _, i, _ in edges], int)
        self.delay_s: Any = np.array([d for _, _, d in edges], float)
        self.own: Any = (self.before == self.after - 1) & ~tables.first[self.after]  # along a rank
        self.sources: Any = np.array([i for i, before in enumerate(problem.before) if not before], int)
        self.sinks: Any = np.array([i for i, after in enumerate(problem.after) if not after], int)


class Answer(NamedTuple):
    """What the solver found.

    Attributes:
        shares: Shares of clocks, (segments, clocks).
        ends_s: When each node ends, in s.
        makespan_s: Length of the iteration without its overhead, in s.
        energy_j: The optimum, in J; of whole shares, what was found.
        lower_bound_j: No whole shares take less energy, in J; of the linear program, its optimum.
        duals: Duals of the rows of the edges, of the sources and of the sinks; nothing for whole shares.
    """

    shares: Any
    ends_s: Any
    makespan_s: float
    energy_j: float
    lower_bound_j: float
    duals: tuple[Any, ...]


class ChangeProgram:
    """One program.

    Args:
        tables: The problem.
        edges: Its dependencies.
        segment: For each node, the number of its segment; numbers rise along the nodes.
        known: For each segment and clock, whether the segment may have it.
        length_s: The longest makespan, in s, without the overhead.
        waiting_w: Power of waiting, in W; 0 where the iteration lasts until `length_s` in any case.
        change_j: For each node, the price of a clock change before it, in J.
    """

    def __init__(
        self,
        tables: ClockTables,
        edges: Edges,
        segment: Any,
        known: Any,
        length_s: float,
        waiting_w: float,
        change_j: Any,
    ) -> None:
        import highspy
        import numpy as np

        self._tables, self._edges, self._segment = tables, edges, segment
        nodes, lost_s = len(segment), tables.problem.switch_costs.stands_still_s
        costs: Any = np.zeros(known.shape)
        np.add.at(costs, segment, tables.costs[tables.kind])
        known = known & np.isfinite(costs)
        firsts = np.flatnonzero(np.concatenate([[True], segment[1:] != segment[:-1]]))
        begins: Any = np.zeros(nodes, bool)
        begins[firsts] = ~tables.first[firsts]
        self._of, self._clock = np.nonzero(known)
        shares = len(self._of)
        share_of: Any = np.full(known.shape, -1)
        share_of[self._of, self._clock] = np.arange(shares)
        inner = np.flatnonzero(begins[firsts][self._of])
        new: Any = shares + np.arange(len(inner))
        ends: Any = shares + len(inner) + np.arange(nodes)
        self._ends = ends
        self._makespan = int(ends[-1]) + 1
        self._share_of, self._shape, self._inner, self._new = share_of, known.shape, inner, new
        count = np.bincount(self._of, minlength=known.shape[0])
        starts = np.concatenate([[0], np.cumsum(count)])
        rows: list[tuple[Any, Any, Any]] = []

        def add(row: Any, column: Any, value: Any) -> None:
            rows.append((row, column, np.broadcast_to(np.asarray(value, float), np.shape(row))))

        def shares_of(targets: Any) -> tuple[Any, Any]:
            """For nodes, each with each share of its segment: position among `targets`, and share."""
            many = count[segment[targets]]
            where: Any = np.repeat(np.arange(len(targets)), many)
            offset = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
            return where, starts[segment[targets]][where] + offset

        def durations(first_row: int, targets: Any) -> None:
            where, which = shares_of(targets)
            add(first_row + where, which, -tables.times[tables.kind[targets[where]], self._clock[which]])

        add(self._of, np.arange(shares), 1.0)  # the shares of a segment add up to one
        at = known.shape[0]
        row = at + np.arange(len(inner))  # what is new: new - share + share before >= 0
        before = share_of[self._of[inner] - 1, self._clock[inner]]
        there = before >= 0
        add(row, new, 1.0)
        add(row, inner, -1.0)
        add(row[there], before[there], 1.0)
        self._arcs = at = at + len(inner)
        arcs = at + np.arange(len(edges.after))
        add(arcs, ends[edges.after], 1.0)
        add(arcs, ends[edges.before], -1.0)
        durations(at, edges.after)
        stops = np.flatnonzero(edges.own & begins[edges.after])
        if lost_s:
            new_of: Any = np.full(shares, -1)
            new_of[inner] = new
            where, which = shares_of(edges.after[stops])
            add(at + stops[where], new_of[which], -lost_s)
        self._sources = at = at + len(arcs)
        add(at + np.arange(len(edges.sources)), ends[edges.sources], 1.0)
        durations(at, edges.sources)
        self._sinks = at = at + len(edges.sources)
        row = at + np.arange(len(edges.sinks))
        add(row, np.full(len(row), self._makespan), 1.0)
        add(row, ends[edges.sinks], -1.0)
        total = at + len(row)

        row, column, value = (np.concatenate([part[k] for part in rows]) for k in range(3))
        order = np.argsort(row, kind="stable")
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self._makespan + 1, total
        cost: Any = np.zeros(self._makespan + 1)
        cost[:shares] = costs[self._of, self._clock]
        cost[new] = change_j[firsts[self._of[inner]]]
        cost[self._makespan] = waiting_w
        upper: Any = np.full(len(cost), highspy.kHighsInf)
        upper[:shares] = 1.0
        upper[self._makespan] = length_s
        model.col_cost_, model.col_lower_, model.col_upper_ = cost, np.zeros(len(cost)), upper
        lower: Any = np.zeros(total)
        lower[: known.shape[0]] = 1.0
        lower[self._arcs : self._arcs + len(arcs)] = edges.delay_s
        row_upper: Any = np.full(total, highspy.kHighsInf)
        row_upper[: known.shape[0]] = 1.0
        model.row_lower_, model.row_upper_ = lower, row_upper
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=total))]).astype(np.int32)
        model.a_matrix_.index_, model.a_matrix_.value_ = column[order].astype(np.int32), value[order]
        self._model = model

    def relaxed(self, seconds: float) -> Answer | None:
        """Solves the linear program; None if the solver finds nothing within a time in s."""
        import numpy as np

        for presolve in ("choose", "off"):  # without it where interior points fail with it
            highs = silent_highs()
            highs.setOptionValue("time_limit", seconds)
            highs.setOptionValue("presolve", presolve)
            if self._model.num_col_ >= INTERIOR_POINT_COLUMNS:
                use_interior_point(highs, _TOLERANCE)
            highs.passModel(self._model)
            highs.run()
            if highs.getModelStatus().name != "kUnknown":
                break
        solution = highs.getSolution()
        if not solution.value_valid or not solution.dual_valid or highs.getModelStatus().name == "kInfeasible":
            return None
        values = np.array(solution.col_value)
        if not np.bincount(self._of, values[: len(self._of)] > 0, self._shape[0]).all():
            return None  # the time was over before the solver had a first solution
        duals = np.array(solution.row_dual)
        parts = np.split(duals[self._arcs :], [self._sources - self._arcs, self._sinks - self._arcs])
        return self._answer(highs, values, tuple(parts))

    def dived(self, seconds: float) -> Answer | None:
        """Solves for whole shares quickly and not optimally: segment after segment gets the clock of its largest share.

        Each time the linear program is solved again, so that the others adapt. If that is impossible, the last segments
        get the highest clock of their shares.

        Args:
            seconds: Time limit, in s.

        Returns:
            The answer, or None if no plan was found within the time.
        """
        import numpy as np

        until = time.perf_counter() + seconds
        highs = silent_highs()
        highs.passModel(self._model)
        fixed: Any = np.zeros(self._shape[0], bool)
        while self._optimal(highs, until):
            values: Any = np.array(highs.getSolution().col_value)
            shares: Any = np.zeros(self._shape)
            shares[self._of, self._clock] = values[: len(self._of)]
            if fixed.all():
                return self._answer(highs, values, ())
            largest = np.where(fixed, -1.0, shares.max(axis=1))
            count = max(1, int(_DIVED * np.count_nonzero(~fixed & (largest <= _WHOLE))))
            clear = np.sort(largest[~fixed & (largest <= _WHOLE)])[-count:]
            new = ~fixed & (largest >= min([_WHOLE, *clear.tolist()]))
            self._fix(highs, new, shares.argmax(axis=1))
            if not self._optimal(highs, until):
                self._fix(highs, new, shares.shape[1] - 1 - (shares[:, ::-1] > _SHARE).argmax(axis=1))
            fixed |= new
        return None

    def _optimal(self, highs: Any, until: float) -> bool:
        """Solves again, and says whether there is an optimum."""
        highs.setOptionValue("time_limit", highs.getRunTime() + max(0.0, until - time.perf_counter()))
        highs.run()
        return bool(highs.getModelStatus().name == "kOptimal")

    def _fix(self, highs: Any, segments: Any, clocks: Any) -> None:
        """Gives each of these segments one clock, by their numbers."""
        import numpy as np

        shares = np.flatnonzero(segments[self._of])
        bounds = (self._clock[shares] == clocks[self._of[shares]]).astype(float)
        highs.changeColsBounds(len(shares), shares.astype(np.int32), bounds, bounds)

    def whole(
        self, seconds: float, present: Any, ends_s: Any, makespan_s: float, gap: float = WHOLE_GAP
    ) -> Answer | None:
        """Solves for whole shares.

        Args:
            seconds: Time limit, in s.
            present: For each segment, the clock of a plan that is known, as a number.
            ends_s: When each node ends in this plan, in s.
            makespan_s: Its makespan, in s.
            gap: Relative: the answer is at most so far from the optimum, if the time is enough.
        """
        import highspy
        import numpy as np

        highs = silent_highs()
        for option, value in (
            ("time_limit", seconds),
            ("mip_rel_gap", gap),
            ("primal_feasibility_tolerance", 1e-8),
            ("mip_feasibility_tolerance", 1e-7),
        ):
            highs.setOptionValue(option, value)
        self._model.integrality_ = [
            highspy.HighsVarType.kInteger if number < len(self._of) else highspy.HighsVarType.kContinuous
            for number in range(self._model.num_col_)
        ]
        highs.passModel(self._model)
        known: Any = np.zeros(self._model.num_col_)
        known[self._share_of[np.arange(self._shape[0]), present]] = 1.0
        known[self._new] = known[self._inner]
        before = self._share_of[self._of[self._inner] - 1, self._clock[self._inner]]
        known[self._new] -= np.where(before >= 0, known[before], 0.0) * known[self._inner]
        known[self._ends], known[self._makespan] = ends_s, makespan_s
        start = highspy.HighsSolution()
        start.col_value = known.tolist()
        highs.setSolution(start)
        highs.run()
        solution = highs.getSolution()
        if not solution.value_valid or highs.getInfo().primal_solution_status != 2:
            return None
        return self._answer(highs, np.array(solution.col_value), ())

    def _answer(self, highs: Any, values: Any, duals: tuple[Any, ...]) -> Answer:
        import numpy as np

        shares: Any = np.zeros(self._shape)
        shares[self._of, self._clock] = np.clip(values[: len(self._of)], 0.0, 1.0)
        shares /= shares.sum(axis=1)[:, None]
        info = highs.getInfo()
        makespan_s, energy_j = float(values[self._makespan]), float(info.objective_function_value)
        bound_j = energy_j if duals else float(info.mip_dual_bound)
        return Answer(shares, values[self._ends], makespan_s, energy_j, bound_j, duals)


def segments_of(tables: ClockTables, plans: Sequence[Any]) -> Any:
    """Numbers the segments between the changes of all these plans; a plan is the clock of each node, as a number."""
    import numpy as np

    borders: Any = tables.first.copy()
    for clocks in plans:
        borders[1:] |= clocks[1:] != clocks[:-1]
    return np.cumsum(borders) - 1
