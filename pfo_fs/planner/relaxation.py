"""Least energy within a deadline as a linear program: a duration is any point on the convex hull of its clocks.

There is a copy of the DAG for each pipeline of each scenario; iterations that are all alike are one scenario. The
variables are: for each node, how far its duration has moved along each edge of its hull; for each node of each copy,
when it ends; for each scenario, its length. The program minimises the effective energy, plus, where iterations may end
early, the energy of waiting over their mean length. Every plan with real clocks is a point of this program, so its
optimum is a lower bound for all of them.

The reported bound does not rely on the solver's precision. It is computed here from the row duals y >= 0 (the prices
of the constraints) by weak duality: for the least of c'x over A x >= b and 0 <= x <= u, it is
b'y + sum_j min(0, r_j u_j) with r = c - A'y. All variables have finite limits u, so every y gives a valid bound; the
closer y is to the optimum, the tighter the bound.
"""

from dataclasses import dataclass

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlannerError
from pfo_fs.planner.scenario_model import Scenarios
from pfo_fs.planner.scenario_relaxation import ScenarioAnswer

INTERIOR_POINT_NODES = 5_000
"""From this many nodes on, the interior-point method is used: at 8,192 instructions the dual simplex method
takes the same time (8 s), and its time grows with the square of their number."""
INTERIOR_POINT_TOLERANCE = 1e-3
"""The relative error that ends the interior-point method."""


@dataclass(frozen=True)
class Relaxed:
    """The linear program's answer; a column is a pipeline of a scenario.

    Attributes:
        times_s: Duration of each node, possibly between two real options, (nodes, columns).
        answer: Durations as multiples of those at max clocks, (nodes, groups), and the price of the mean length.
        prices_w: For each node, what it costs the other nodes if it takes a second longer, in J/s: the dual of its
            duration, (nodes, columns).
        lower_bound_j: No plan within the deadline needs less effective energy (plus that of waiting, if `solve` got
            a power of waiting), in J.
        makespan_s: Mean length of an iteration without its overhead, in s.
    """

    times_s: Array
    answer: ScenarioAnswer
    prices_w: Array
    lower_bound_j: float
    makespan_s: float


class Relaxation:
    """The linear program of some scenarios. The simplex method begins each `solve` from the basis of the last one.

    Args:
        scenarios: The scenarios. In the program, clock changes cost nothing, so that its bound holds for all plans.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        self._scenarios = scenarios
        durations_s, busy_s = scenarios.durations_s, scenarios.busy_s.ravel()
        hulls = [scenarios.table.hulls[kind] for kind in scenarios.table.kind.tolist()]
        fastest, slowest = (np.array([ratios[end] for ratios, _ in hulls])[:, None] for end in (0, -1))
        self._fastest = fastest
        self._horizon_s = float(scenarios.paths.ends(durations_s * slowest).ends_s.max())
        # Order of the variables: how far each (node, group) has moved along each edge of its hull, in s, summed over
        # the pipelines of the group; then the ends of nodes; then the lengths of iterations.
        edges = np.array([len(ratios) - 1 for ratios, _ in hulls])
        of_group = [hull for hull in hulls for _ in range(scenarios.count)]
        self._moved = np.arange(len(busy_s)).repeat(edges.repeat(scenarios.count))
        slopes_w = np.concatenate([np.diff(costs_w) / np.diff(ratios) for ratios, costs_w in of_group])
        self._ends = len(slopes_w)
        self._lengths = self._ends + durations_s.size
        self._cost = np.concatenate([slopes_w, np.zeros(durations_s.size + scenarios.iterations)])
        self._upper = np.full(len(self._cost), self._horizon_s)
        self._upper[: self._ends] = busy_s[self._moved] * np.concatenate([np.diff(ratios) for ratios, _ in of_group])
        self._offset = float(busy_s @ np.array([costs_w[0] for _, costs_w in of_group]))
        self._build(edges)
        self._highs = self._new_solver()

    def _build(self, edges: Array) -> None:
        """Makes the rows: a node ends after the nodes it waits for, an iteration after its last nodes, all in time."""
        scenarios, before = self._scenarios, self._scenarios.problem.before
        group_of, columns = scenarios.group_of, len(scenarios.group_of)
        column, last = np.arange(columns), scenarios.paths.last_nodes
        waits = [(node, *one) for node, own in enumerate(before) for one in own or [(-1, 0.0)]]
        node, other, delay_s = (np.array(each) for each in zip(*waits, strict=True))
        arrivals = np.arange(len(node) * columns).reshape(-1, columns)
        closings: Array = arrivals.size + np.arange(len(last) * columns).reshape(-1, columns)
        deadline = np.full(scenarios.iterations, arrivals.size + closings.size)
        cells: list[tuple[Array, ...]] = []

        def add(rows: Array, variables: Array, values: Array) -> None:
            cells.append(tuple(np.broadcast_to(each, rows.shape).ravel() for each in (rows, variables, values)))

        waiting = other >= 0
        add(arrivals, self._ends + node[:, None] * columns + column, 1.0)
        add(arrivals[waiting], self._ends + other[waiting, None] * columns + column, -1.0)
        first = np.searchsorted(self._moved, np.arange(scenarios.busy_s.size)).reshape(scenarios.busy_s.shape)
        for edge in range(int(edges.max())):
            rows = edges[node] > edge
            own = node[rows]
            share = scenarios.durations_s[own] / scenarios.busy_s[own][:, group_of]
            add(arrivals[rows], first[own][:, group_of] + edge, -share)
        add(closings, self._lengths + column // scenarios.pipelines, 1.0)
        add(closings, self._ends + last[:, None] * columns + column, -1.0)
        add(deadline, self._lengths + np.arange(scenarios.iterations), -1.0 / scenarios.iterations)
        row, indices, values = (np.concatenate(each) for each in zip(*cells, strict=True))
        order = row.argsort(kind="stable")
        self._indices, self._values = indices[order].astype(np.int32), values[order]
        self._starts = np.concatenate([[0], np.bincount(row).cumsum()]).astype(np.int32)
        self._row_node = node
        least_s = (delay_s[:, None] + self._fastest[node] * scenarios.durations_s[node]).ravel()
        self._row_lower = np.concatenate([least_s, np.zeros(closings.size), [-self._horizon_s]])

    def _new_solver(self) -> Array:
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._cost), len(self._row_lower)
        model.col_cost_, model.col_lower_, model.col_upper_ = self._cost, np.zeros(len(self._cost)), self._upper
        model.row_lower_ = self._row_lower
        model.row_upper_ = np.full(len(self._row_lower), highspy.kHighsInf)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = self._starts, self._indices
        model.a_matrix_.value_ = self._values
        highs = silent_highs()
        if self._scenarios.durations_s.size >= INTERIOR_POINT_NODES:
            highs.setOptionValue("solver", "hipo" if _has_hipo() else "ipm")
            highs.setOptionValue("run_crossover", "off")
            highs.setOptionValue("ipm_optimality_tolerance", INTERIOR_POINT_TOLERANCE)
            highs.setOptionValue("kkt_tolerance", INTERIOR_POINT_TOLERANCE)
        highs.passModel(model)
        return highs

    def solve(self, deadline_s: float, waiting_power_w: float) -> Relaxed:
        """Solves for one deadline.

        Args:
            deadline_s: The longest mean makespan, in s, without the overhead.
            waiting_power_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.

        Raises:
            PlannerError: The solver gives no answer, for example because the fastest plan takes longer.
        """
        scenarios = self._scenarios
        deadline_s = min(deadline_s, self._horizon_s)
        self._row_lower[-1] = -deadline_s
        self._cost[self._lengths :] = waiting_power_w / scenarios.iterations
        self._highs.changeRowBounds(len(self._row_lower) - 1, -deadline_s, float("inf"))
        for variable in range(self._lengths, len(self._cost)):
            self._highs.changeColCost(variable, self._cost[variable])
        self._highs.run()
        status = self._highs.getModelStatus()
        solution = self._highs.getSolution()
        if not solution.value_valid or not solution.dual_valid or status.name in ("kInfeasible", "kUnbounded"):
            raise PlannerError(f"HiGHS found no plan within {deadline_s} s: {self._highs.modelStatusToString(status)}")
        x, duals = np.array(solution.col_value), np.array(solution.row_dual)
        moved = np.bincount(self._moved, x[: self._ends], scenarios.busy_s.size).reshape(scenarios.busy_s.shape)
        ratios = self._fastest + moved / scenarios.busy_s
        times_s = scenarios.durations_s * ratios[:, scenarios.group_of]
        answer = ScenarioAnswer(ratios, max(0.0, float(duals[-1])) + waiting_power_w)
        arriving = np.maximum(duals[: len(self._row_node) * len(scenarios.group_of)], 0.0)
        prices_w = np.zeros(times_s.shape)
        np.add.at(prices_w, self._row_node, arriving.reshape(-1, len(scenarios.group_of)))
        return Relaxed(times_s, answer, prices_w, self._bound_j(duals), float(x[self._lengths :].mean()))

    def _bound_j(self, duals: Array) -> float:
        """The lower bound in J that `duals` prove (see the module's text)."""
        y = np.maximum(duals, 0.0)
        spread: Array = np.repeat(y, np.diff(self._starts))
        reduced = self._cost - np.bincount(self._indices, weights=self._values * spread, minlength=len(self._cost))
        return float(self._offset + y @ self._row_lower + np.minimum(0.0, reduced * self._upper).sum())


def _has_hipo() -> bool:
    """Whether HiGHS's newest interior-point method is installed; it comes with `highspy[extras]`."""
    from importlib.util import find_spec

    return find_spec("highspy_extras") is not None


def silent_highs() -> Array:
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
