"""A lower bound where clock changes cost something: a linear program over mixtures of clocks, changes included.

Its variables are, for each node, the shares of clocks, the share by which each clock is new at it, and when it ends. A
rank stands still for each share that is new. The program is solved over a few clocks per node; dynamic programming over
all clocks then says which others would help, and those are added.

The bound does not rely on the solver. The duals of the program's rows of time are a flow along the DAG. Whatever the
flow, the sum of each rank's cheapest clocks at its prices, plus what the flow pays for delays, less what it pays for
the deadline, is a lower bound for all plans within the deadline (Lagrange). So the flow is first made exact (what
enters a node leaves it), and each rank's cheapest clocks are found over all measured clocks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from pfo_fs.planner.change_program import ChangeProgram, Edges
from pfo_fs.planner.clock_tables import ClockTables, Prices
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.relaxation import Relaxed

_WEIGHTS = (1.5, 1.0, 0.5, 0.2, 0.0)
"""The first clocks are the cheapest at the prices without changes, with changes at these multiples of their price."""
_FIRST, _ADDED = 3, 3
"""Number of clocks of each node that are taken at first for each weight, and that are added in each round."""
_LEAST_S, _OVERTIME = 0.5, 1.5
"""The solver gets at least this time for a round, in s, and at most so many times what is left."""
_CLOSE = 1e-3


@dataclass(frozen=True)
class MixedClocks:
    """The answer of the program with changes.

    Attributes:
        prices: The prices of time.
        shares: For each node and clock, its share.
        times_s: Duration of each node, in s.
        makespan_s: Length of the iteration without its overhead, in s.
        energy_j: The program's optimum over the clocks that it knows, in J.
        lower_bound_j: No plan within the deadline takes less energy (with that of waiting, if it counts), in J.
    """

    prices: Prices
    shares: Any
    times_s: Any
    makespan_s: float
    energy_j: float
    lower_bound_j: float


class Bound(NamedTuple):
    """A lower bound of the energy of all plans, linear in their deadline.

    Attributes:
        prices: The prices of time that give it.
        constant_j: The bound for a deadline of 0, in J.
        price_w: By how much it falls for each second of a later deadline, in J/s.
    """

    prices: Prices
    constant_j: float
    price_w: float

    def at(self, length_s: float) -> float:
        """Returns the bound in J for plans whose makespan is at most `length_s`."""
        return self.constant_j - self.price_w * length_s


class ChangeRelaxation:
    """The program of a problem, for one deadline after another."""

    def __init__(self, problem: Problem, tables: ClockTables) -> None:
        import numpy as np

        self._problem, self._tables = problem, tables
        self.edges = Edges(tables)
        self._edges_into = [np.flatnonzero(self.edges.after == i) for i in range(len(tables.kind))]

    def solve(
        self,
        length_s: float,
        waiting_w: float,
        start: Relaxed,
        change_j: Any = 0.0,
        rounds: int = 3,
        until: float = float("inf"),
    ) -> MixedClocks | None:
        import numpy as np

        tables = self._tables
        nodes = len(tables.kind)
        change_j = np.broadcast_to(np.asarray(change_j, float), (nodes,))
        prices = Prices(np.array(start.prices_w), np.array(start.prices_w), change_j)
        known: Any = np.zeros((nodes, len(tables.clocks_mhz)), bool)
        always = known.copy()
        for pick in (tables.times.argmin(axis=1), np.where(tables.measured, np.arange(known.shape[1]), -1).max(axis=1)):
            always[np.arange(nodes), pick[tables.kind]] = True
        known |= always
        for weight in _WEIGHTS:
            scaled = Prices(prices.node_w, weight * prices.rank_w, weight * change_j)
            self._add(known, tables.through(scaled), _FIRST)
        best: MixedClocks | None = None
        for number in range(rounds):
            limit_s = max(_LEAST_S, _OVERTIME * (until - time.perf_counter()))
            found = self._solve(known, length_s, waiting_w, prices, limit_s)
            if found is None:
                break
            if best is None or found.lower_bound_j > best.lower_bound_j:
                best = found
            if best.lower_bound_j >= found.energy_j - _CLOSE * abs(found.energy_j) * 0.1:
                break
            if number + 1 == rounds or time.perf_counter() > until:
                break
            prices = found.prices
            known &= always | (found.shares > 1e-4) | (tables.through(prices) < 1e-2 * abs(found.energy_j) / nodes)
            self._add(known, tables.through(prices), _ADDED)
        return best

    def _add(self, known: Any, through: Any, count: int) -> None:
        import numpy as np

        order = np.argsort(through, axis=1)[:, :count]
        rows = np.arange(len(known))[:, None]
        known[rows, order] |= np.isfinite(through[rows, order])

    def _solve(
        self, known: Any, length_s: float, waiting_w: float, prices: Prices, limit_s: float
    ) -> MixedClocks | None:
        import numpy as np

        tables = self._tables
        every = np.arange(len(tables.kind))
        program = ChangeProgram(tables, self.edges, every, known, length_s, waiting_w, prices.change_j)
        answer = program.relaxed(limit_s)
        if answer is None:
            return None
        bound = self.bound(answer.duals[0], answer.duals[2], waiting_w, prices.change_j)
        times = np.where(tables.measured, tables.times, 0.0)[tables.kind]
        times_s = (answer.shares * times).sum(axis=1)
        return MixedClocks(bound.prices, answer.shares, times_s, answer.makespan_s, answer.energy_j, bound.at(length_s))

    def bound(self, arcs: Any, sinks: Any, waiting_w: float, change_j: Any) -> Bound:
        """Returns the lower bound for prices of time, which are first made a flow.

        Args:
            arcs: For each edge, the price of a second on it, in J/s.
            sinks: For each node that none waits for, the price of a later end, in J/s.
            waiting_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
            change_j: For each node, the price of a clock change before it, in J.
        """
        import numpy as np

        nodes = len(self._tables.kind)
        arcs, sinks = np.maximum(np.asarray(arcs), 0.0), np.maximum(np.asarray(sinks), 0.0)
        if sinks.sum() < waiting_w:
            sinks = (
                sinks * (waiting_w / sinks.sum()) if sinks.sum() > 0 else np.full(len(sinks), waiting_w / len(sinks))
            )
        out = np.zeros(nodes)
        out[self.edges.sinks] = sinks
        flow = np.zeros(len(arcs))
        for node in reversed(self._problem.pipeline.topological):
            into = self._edges_into[node]
            if not len(into):
                continue
            total = arcs[into].sum()
            flow[into] = out[node] * (arcs[into] / total if total > 0 else 1 / len(into))
            np.add.at(out, self.edges.before[into], flow[into])
        rank_w = np.zeros(nodes)
        rank_w[self.edges.after[self.edges.own]] = flow[self.edges.own]
        prices = Prices(out, rank_w, np.asarray(change_j))
        constant_j = self._tables.least(prices) + float(flow @ self.edges.delay_s)
        return Bound(prices, constant_j, float(sinks.sum() - waiting_w))
