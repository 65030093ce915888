"""Least energy within a deadline as a linear program: durations anywhere on the convex hulls of the options.

The variables are: for each node, a finishing time and, per edge of its hull, how far its duration has moved along that
edge; for the iteration, its length. The program minimises the effective energy, plus, where the iteration may end
early, the energy of waiting over its length. Every plan with real clocks is a point of this program, so its optimum is
a lower bound for all of them.

The reported bound does not rely on the solver's precision. It is computed here from the row duals y >= 0 (the prices
of the constraints) by weak duality: for the least of c'x over A x >= b and 0 <= x <= u, it is
b'y + sum_j min(0, r_j u_j) with r = c - A'y. All variables have finite limits u, so every y gives a valid bound; the
closer y is to the optimum, the tighter the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pfo_fs.errors import PlannerError
from pfo_fs.planner.problem import Problem

INTERIOR_POINT_NODES = 5_000
"""From about this many nodes on, the interior-point method is faster: at 8,192 instructions the dual simplex method
takes the same time (8 s), and its time grows with the square of their number."""
INTERIOR_POINT_TOLERANCE = 1e-3
"""The relative error that ends the interior-point method."""


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
    """

    times_s: list[float]
    prices_w: list[float]
    lower_bound_j: float
    makespan_s: float


class Relaxation:
    """The linear program of a problem; it is solved for one deadline after another, each time from the last basis."""

    def __init__(self, problem: Problem) -> None:
        """Builds the program.

        Args:
            problem: The problem. In the program, clock changes cost nothing, so that its bound holds for all plans.
        """
        import highspy
        import numpy as np

        variables = _Variables()
        durations = _durations(problem, variables)
        rows = _Rows(durations)
        self._horizon_s = _horizon(problem)
        finish = [variables.add(0.0, self._horizon_s) for _ in problem.choices]
        self._makespan = variables.add(0.0, self._horizon_s)
        for node, before in enumerate(problem.before):
            for first, delay_s in before:
                rows.add(node, finish[node], finish[first], delay_s)
            if not before:
                rows.add(node, finish[node], None, 0.0)
        self._arrivals = len(rows.lower)
        for node, after in enumerate(problem.after):
            if not after:
                rows.end(self._makespan, finish[node])
        moved = [(node, variable) for node, (_, row) in enumerate(durations) for variable in row]
        self._moved_node: Any = np.array([node for node, _ in moved], np.int64)
        self._moved_variable: Any = np.array([variable for _, variable in moved], np.int64)
        self._fastest_s: Any = np.array([fastest_s for fastest_s, _ in durations])
        self._row_node: Any = np.array(rows.node, np.int32)
        self._starts, self._indices = np.array(rows.starts, np.int32), np.array(rows.indices, np.int32)
        self._values: Any = np.array(rows.values)
        self._row_lower: Any = np.array(rows.lower)
        self._cost, self._upper = np.array(variables.cost), np.array(variables.upper)
        self._offset = variables.offset
        self._highs = self._load(highspy)

    def _load(self, highspy: Any) -> Any:
        import numpy as np

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._cost), len(self._row_lower)
        model.col_cost_, model.col_lower_, model.col_upper_ = self._cost, np.zeros(len(self._cost)), self._upper
        model.row_lower_ = self._row_lower
        model.row_upper_ = np.full(len(self._row_lower), highspy.kHighsInf)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = self._starts, self._indices
        model.a_matrix_.value_ = self._values
        highs = silent_highs()
        if len(self._fastest_s) >= INTERIOR_POINT_NODES:
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

        count = len(self._fastest_s)
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
        moved_s: Any = np.bincount(self._moved_node, weights=x[self._moved_variable], minlength=count)
        return Relaxed(
            (self._fastest_s + moved_s).tolist(),
            prices.tolist(),
            self._bound_j(duals),
            float(x[self._makespan]),
        )

    def _bound_j(self, duals: Any) -> float:
        """The lower bound in J that `duals` prove (see the module's text)."""
        import numpy as np

        y = np.maximum(duals, 0.0)
        spread: Any = np.repeat(y, np.diff(self._starts))
        reduced = self._cost - np.bincount(self._indices, weights=self._values * spread, minlength=len(self._cost))
        return float(self._offset + y @ self._row_lower + np.minimum(0.0, reduced * self._upper).sum())


def _has_hipo() -> bool:
    """Whether HiGHS's newest interior-point method is installed; it comes with `highspy[extras]`."""
    from importlib.util import find_spec

    return find_spec("highspy_extras") is not None


def silent_highs() -> Any:
    """Returns a new `highspy.Highs` that prints nothing.

    From release 1.16 on, HiGHS prints a banner to standard output when `Highs()` enables its callbacks, before its
    caller can set an option. Here the option is set earlier.
    """
    import highspy

    class SilentHighs(highspy.Highs):  # type: ignore[misc]  # highspy has no types in all releases
        def enableCallbacks(self) -> None:  # noqa: N802 - highspy's name
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    highs = SilentHighs()
    highs.setOptionValue("output_flag", False)
    return highs


class _Variables:
    """The program's variables, all at least zero, as lists that grow."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.offset = 0.0

    def add(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1


Duration = tuple[float, list[int]]
"""A node's duration: its fastest time in s, and the variables that say how far it has moved along each edge, in s."""


class _Rows:
    """The program's rows, each `terms >= lower`."""

    def __init__(self, durations: Sequence[Duration]) -> None:
        self.durations = durations
        self.starts = [0]
        self.indices: list[int] = []
        self.values: list[float] = []
        self.lower: list[float] = []
        self.node: list[int] = []

    def add(self, node: int, finish: int, finish_before: int | None, delay_s: float) -> None:
        """The node ends no sooner than its duration after what it waits for."""
        fastest_s, moved = self.durations[node]
        others = moved if finish_before is None else [finish_before, *moved]
        self.indices += [finish, *others]
        self.values += [1.0, *(-1.0 for _ in others)]
        self.node.append(node)
        self._close(fastest_s + delay_s)

    def end(self, makespan: int, finish: int) -> None:
        """The iteration ends no sooner than its last node."""
        self.indices += [makespan, finish]
        self.values += [1.0, -1.0]
        self._close(0.0)

    def _close(self, lower: float) -> None:
        self.starts.append(len(self.indices))
        self.lower.append(lower)


def _durations(problem: Problem, variables: _Variables) -> list[Duration]:
    """Every node's fastest time, and how far it has moved along each edge of its hull."""
    edges_of = {
        kind: [
            ((c.costs_j[b] - c.costs_j[a]) / (c.times_s[b] - c.times_s[a]), c.times_s[b] - c.times_s[a])
            for a, b in pairwise(c.hull)
        ]
        for kind, c in problem.choices_by_kind.items()
    }
    variables.offset = sum(choices.costs_j[0] for choices in problem.choices)
    return [
        (choices.times_s[0], [variables.add(*edge) for edge in edges_of[instruction.stage, instruction.name]])
        for instruction, choices in zip(problem.pipeline.instructions, problem.choices, strict=True)
    ]


def _horizon(problem: Problem) -> float:
    """A makespan in s that no plan exceeds: every node at its slowest, and a clock change before each."""
    slowest = [choices.times_s[-1] for choices in problem.choices]
    return problem.timing(slowest, problem.switch_costs.stands_still_s).iteration_time_s - problem.overhead_s
