"""Least energy within a deadline as a linear program: durations anywhere on the convex hulls of the options.

The variables are: for each node, a finishing time and, per edge of its hull, how far its duration has moved along that
edge; for the iteration, its length. The program minimises the effective energy, plus, where the iteration may end
early, the energy of waiting over its length. Every plan with real clocks is a point of this program, so its optimum is
a lower bound for all of them.

The reported bound does not rely on the solver's precision. It is computed here from the row duals y >= 0 (the prices
of the constraints) by weak duality: for the least of c'x over A x >= b and l <= x <= u, it is
b'y + sum_j min(r_j l_j, r_j u_j) with r = c - A'y. All variables have finite bounds, so every y gives a valid bound;
the closer y is to the optimum, the tighter the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pfo_fs.errors import PlannerError
from pfo_fs.planner.problem import Problem, group_options
from pfo_fs.planner.solver import silent_highs, use_interior_point

INTERIOR_POINT_NODES = 5_000
"""From about this many nodes on, the interior-point method is faster: at 8,192 instructions the dual simplex method
takes the same time (8 s), and its time grows with the square of their number."""
INTERIOR_POINT_COLUMNS = 8_000
"""The same for the number of variables where clocks act late: 27,000 of them take 0.7 s in place of 3 s."""
INTERIOR_POINT_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Relaxed:
    """The linear program's answer.

    Attributes:
        times_s: Duration of each node, possibly between two real options.
        prices_w: For each node, what it costs the other nodes if it takes a second longer, in J/s: the dual of its
            duration.
        lower_bound_j: No plan within the deadline needs less effective energy (plus that of waiting, if `solve` got
            a power of waiting), in J.
        makespan_s: Length of the iteration without its overhead, in s.
        slope_w: Change of the bound per second of a later deadline, in J/s; at most zero.
    """

    times_s: list[float]
    prices_w: list[float]
    lower_bound_j: float
    makespan_s: float
    slope_w: float


def between(first: Relaxed, second: Relaxed, deadlines_s: tuple[float, float, float]) -> tuple[Relaxed, float]:
    """Returns an answer for a deadline between two others, and how far it may be from the optimum, in J.

    The mixed durations are feasible for that deadline, as the program is linear in the deadline; the tangents of both
    bounds are valid bounds.

    Args:
        first: The answer for the shorter deadline.
        second: The answer for the longer one.
        deadlines_s: The shorter deadline, the one in between, the longer one.
    """
    short_s, deadline_s, long_s = deadlines_s
    share = (deadline_s - short_s) / (long_s - short_s)

    def mixed(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    from_first = first.lower_bound_j + first.slope_w * (deadline_s - short_s)
    from_second = second.lower_bound_j + second.slope_w * (deadline_s - long_s)
    bound_j = max(from_first, from_second, second.lower_bound_j)
    answer = Relaxed(
        [mixed(a, b) for a, b in zip(first.times_s, second.times_s, strict=True)],
        [mixed(a, b) for a, b in zip(first.prices_w, second.prices_w, strict=True)],
        bound_j,
        mixed(first.makespan_s, second.makespan_s),
        mixed(first.slope_w, second.slope_w),
    )
    return answer, mixed(first.lower_bound_j, second.lower_bound_j) - bound_j


class Relaxation:
    """The linear program of a problem; it is solved for one deadline after another, each time from the last basis."""

    def __init__(
        self, problem: Problem, groups: Sequence[Sequence[int]] | None = None, *, acts_late: bool = False
    ) -> None:
        """Builds the program.

        Args:
            problem: The problem.
            groups: Sets of nodes that must share one clock, each node in one of them; a rank stands still
                between two groups. Without groups every node is free and changes cost nothing, which gives a lower
                bound for all plans.
            acts_late: Without groups: the clocks of the nodes act as late as the problem says, nearly; then the answer
                has no lower bound.
        """
        import highspy
        import numpy as np

        self._problem = problem
        columns = _Columns()
        if acts_late:
            durations = _late_durations(problem, columns)
        else:
            durations = _free_durations(problem, columns) if groups is None else _shared(problem, groups, columns)
        changes = set() if groups is None else _boundaries(problem, groups)
        rows = _Rows(durations)
        horizon_s = _horizon(problem)
        finish = [columns.add(0.0, 0.0, horizon_s) for _ in problem.choices]
        self._makespan = columns.add(0.0, 0.0, horizon_s)
        for node, before in enumerate(problem.before):
            for first, delay_s in before:
                lost_s = problem.switch_costs.stands_still_s if node in changes and first == node - 1 else 0.0
                rows.add(node, finish[node], finish[first], delay_s + lost_s)
            if not before:
                rows.add(node, finish[node], None, 0.0)
        self._arrivals = len(rows.lower)
        for node, after in enumerate(problem.after):
            if not after:
                rows.end(self._makespan, finish[node])
        for choice_columns in columns.convex:
            rows.one(choice_columns)
        self._horizon_s = horizon_s
        terms = [(node, column, factor) for node, (_, row) in enumerate(durations) for column, factor in row]
        self._term_node = np.array([node for node, _, _ in terms], np.int64)
        self._term_column = np.array([column for _, column, _ in terms], np.int64)
        self._term_factor = np.array([factor for _, _, factor in terms])
        self._constants = np.array([constant for constant, _ in durations])
        self._row_node = np.array(rows.node, np.int32)
        self._starts, self._indices = np.array(rows.starts, np.int32), np.array(rows.indices, np.int32)
        self._values = np.array(rows.values)
        self._row_lower = np.array(rows.lower)
        self._cost, self._lower, self._upper = (np.array(x) for x in (columns.cost, columns.lower, columns.upper))
        self._offset = columns.offset
        self._free_rows: Any = np.zeros(len(rows.lower), bool)
        self._free_rows[len(rows.lower) - len(columns.convex) :] = True
        self.interior_point = len(durations) >= INTERIOR_POINT_NODES
        self._highs = self._load(highspy)
        if acts_late and len(self._cost) >= INTERIOR_POINT_COLUMNS:
            use_interior_point(self._highs, INTERIOR_POINT_TOLERANCE)

    def _load(self, highspy: Any) -> Any:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._cost), len(self._row_lower)
        model.col_cost_, model.col_lower_, model.col_upper_ = self._cost, self._lower, self._upper
        model.row_lower_ = self._row_lower
        row_upper = self._row_lower.copy()
        row_upper[~self._free_rows] = highspy.kHighsInf
        model.row_upper_ = row_upper
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = self._starts, self._indices
        model.a_matrix_.value_ = self._values
        highs = silent_highs()
        if self.interior_point:
            highs.setOptionValue("solver", "hipo" if _has_hipo() else "ipm")
            highs.setOptionValue("run_crossover", "off")
            highs.setOptionValue("ipm_optimality_tolerance", INTERIOR_POINT_TOLERANCE)
            highs.setOptionValue("kkt_tolerance", INTERIOR_POINT_TOLERANCE)
        highs.passModel(model)
        return highs

    def solve(self, deadline_s: float, waiting_power_w: float) -> Relaxed:
        """Solves for one deadline.

        Args:
            deadline_s: The longest makespan, in s, without the overhead.
            waiting_power_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.

        Raises:
            PlannerError: The solver gives no answer, for example because the fastest plan takes longer.
        """
        import numpy as np

        count = len(self._constants)
        deadline_s = min(deadline_s, self._horizon_s)
        self._upper[self._makespan] = deadline_s
        self._cost[self._makespan] = waiting_power_w
        self._highs.changeColBounds(self._makespan, 0.0, deadline_s)
        self._highs.changeColCost(self._makespan, waiting_power_w)
        self._highs.run()
        status = self._highs.getModelStatus()
        solution = self._highs.getSolution()
        if not solution.value_valid or not solution.dual_valid or status.name in ("kInfeasible", "kUnbounded"):
            raise PlannerError(f"HiGHS found no plan within {deadline_s} s: {self._highs.modelStatusToString(status)}")
        x, duals = np.array(solution.col_value), np.array(solution.row_dual)
        arriving = np.maximum(duals[: self._arrivals], 0.0)
        prices = np.bincount(self._row_node[: self._arrivals], weights=arriving, minlength=count)
        weights = self._term_factor * x[self._term_column]
        moved: Any = np.bincount(self._term_node, weights=weights, minlength=count)
        return Relaxed(
            (self._constants + moved).tolist(),
            prices.tolist(),
            *self._bound(duals, float(x[self._makespan])),
        )

    def _bound(self, duals: Any, makespan_s: float) -> tuple[float, float, float]:
        """The lower bound that `duals` prove (see the module's text), the makespan, and the bound's slope."""
        import numpy as np

        y = np.where(self._free_rows, duals, np.maximum(duals, 0.0))
        spread: Any = np.repeat(y, np.diff(self._starts))
        reduced = self._cost - np.bincount(self._indices, weights=self._values * spread, minlength=len(self._cost))
        bound = self._offset + y @ self._row_lower + np.minimum(reduced * self._lower, reduced * self._upper).sum()
        return float(bound), makespan_s, min(0.0, float(reduced[self._makespan]))


def _has_hipo() -> bool:
    """Whether HiGHS's newest interior-point method is installed; it comes with `highspy[extras]`."""
    from importlib.util import find_spec

    return find_spec("highspy_extras") is not None


Terms = list[tuple[int, float]]


class _Columns:
    """The program's variables, as lists that grow."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.offset = 0.0
        self.convex: list[list[int]] = []

    def add(self, cost: float, lower: float, upper: float) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.cost) - 1


class _Rows:
    """The program's rows, each `terms >= lower`, or `= lower` for those of `one`."""

    def __init__(self, durations: Sequence[tuple[float, Terms]]) -> None:
        self.durations = durations
        self.starts = [0]
        self.indices: list[int] = []
        self.values: list[float] = []
        self.lower: list[float] = []
        self.node: list[int] = []

    def add(self, node: int, finish: int, finish_before: int | None, delay_s: float) -> None:
        """The node ends no sooner than its duration after what it waits for."""
        constant, terms = self.durations[node]
        self.indices.append(finish)
        self.values.append(1.0)
        if finish_before is not None:
            self.indices.append(finish_before)
            self.values.append(-1.0)
        for column, coefficient in terms:
            self.indices.append(column)
            self.values.append(-coefficient)
        self.node.append(node)
        self._close(constant + delay_s)

    def end(self, makespan: int, finish: int) -> None:
        """The iteration ends no sooner than its last node."""
        self.indices += [makespan, finish]
        self.values += [1.0, -1.0]
        self._close(0.0)

    def one(self, columns: Sequence[int]) -> None:
        """The shares of a group's clocks add up to one."""
        self.indices += columns
        self.values += [1.0] * len(columns)
        self._close(1.0)

    def _close(self, lower: float) -> None:
        self.starts.append(len(self.indices))
        self.lower.append(lower)


def _free_durations(problem: Problem, columns: _Columns) -> list[tuple[float, Terms]]:
    """Every node on its own: the fastest time, plus how far it has moved along each edge of its hull."""
    durations: list[tuple[float, Terms]] = []
    edges_of: Mapping[object, list[tuple[float, float]]] = {
        kind: [
            ((c.costs_j[b] - c.costs_j[a]) / (c.times_s[b] - c.times_s[a]), c.times_s[b] - c.times_s[a])
            for a, b in pairwise(c.hull)
        ]
        for kind, c in problem.choices_by_kind.items()
    }
    for instruction, choices in zip(problem.pipeline.instructions, problem.choices, strict=True):
        columns.offset += choices.costs_j[0]
        edges = edges_of[instruction.stage, instruction.name]
        durations.append((choices.times_s[0], [(columns.add(slope, 0.0, width), 1.0) for slope, width in edges]))
    return durations


def _late_durations(problem: Problem, columns: _Columns) -> list[tuple[float, Terms]]:
    """Every node at a mixture of clocks that act late.

    What that adds to an instruction is nearly a difference of two numbers, of the clock before and of its own. So the
    clock of a node takes its number off the time and energy of this node, and adds that of the next instruction there.
    """
    durations: list[tuple[float, Terms]] = []
    late_s = problem.switch_costs.acts_late_s
    for first, end in pairwise(problem.pipeline.first_nodes):
        kinds = {id(each): each for each in problem.choices[first:end]}
        useful = {each.frequencies_mhz[k] for each in kinds.values() for k in each.hull}
        highest = max(max(each.frequencies_mhz) for each in kinds.values())
        clocks_mhz = sorted({*useful, highest})
        parts_of = {key: each.late_parts(clocks_mhz, late_s) for key, each in kinds.items()}
        before: list[tuple[int, int]] = []  # columns of the clocks of the node before, and these clocks
        for choices in problem.choices[first:end]:
            parts, at = parts_of[id(choices)], choices.option_at
            own = [mhz for mhz in clocks_mhz if mhz in at]
            share = [columns.add(choices.costs_j[at[mhz]] - parts[mhz][1], 0.0, 1.0) for mhz in own]
            columns.convex.append(share)
            terms = [(c, choices.times_s[at[mhz]] - parts[mhz][0]) for c, mhz in zip(share, own, strict=True)]
            for column, mhz in before:
                terms.append((column, parts[mhz][0]))
                columns.cost[column] += parts[mhz][1]
            columns.offset += 0.0 if before else parts[highest][1]
            durations.append((0.0 if before else parts[highest][0], terms))
            before = list(zip(share, own, strict=True))
    return durations


def _shared(problem: Problem, groups: Sequence[Sequence[int]], columns: _Columns) -> list[tuple[float, Terms]]:
    """Every group at a mixture of the clocks that all of its nodes offer."""
    durations: list[tuple[float, Terms]] = [(0.0, [])] * len(problem.choices)
    for group in groups:
        options = group_options(problem, group)
        if not options:
            raise PlannerError(f"the nodes {list(group)[:5]} have no clock in common")
        choices = [problem.choices[node] for node in group]
        share = [
            columns.add(sum(c.costs_j[k] for c, k in zip(choices, option, strict=True)), 0.0, 1.0) for option in options
        ]
        columns.convex.append(share)
        terms_of: dict[int, Terms] = {}  # nodes of one kind share their terms
        for position, (node, c) in enumerate(zip(group, choices, strict=True)):
            if id(c) not in terms_of:
                terms_of[id(c)] = [
                    (column, c.times_s[option[position]]) for column, option in zip(share, options, strict=True)
                ]
            durations[node] = (0.0, terms_of[id(c)])
    return durations


def _horizon(problem: Problem) -> float:
    """A makespan in s that no plan exceeds: every node at its slowest, and a clock change before each."""
    slowest = [choices.times_s[-1] for choices in problem.choices]
    everywhere = range(len(slowest)) if problem.switch_costs.stands_still_s else ()
    return problem.timing(slowest, everywhere).iteration_time_s - problem.overhead_s


def _boundaries(problem: Problem, groups: Sequence[Sequence[int]]) -> set[int]:
    """The nodes before which the group changes within a rank."""
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    return {
        node
        for first, end in pairwise(problem.pipeline.first_nodes)
        for node in range(first + 1, end)
        if group_of[node] != group_of[node - 1]
    }
