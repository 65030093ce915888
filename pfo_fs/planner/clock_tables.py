"""Times and energies of all nodes at all measured clocks, as arrays, and the cheapest clocks of all ranks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pfo_fs.planner.problem import Problem

_NEVER = float("inf")


@dataclass(frozen=True)
class Prices:
    """What time and changes cost where a problem's ranks are planned apart from each other.

    Attributes:
        node_w: For each node, the price of its duration, in J/s.
        rank_w: For each node, the price of a second between it and the node before it on its rank, in J/s.
        change_j: For each node, the price of a clock change before it beyond its time and its energy, in J.
    """

    node_w: Any
    rank_w: Any
    change_j: Any


class ClockTables:
    """The nodes of a problem at all clocks.

    Attributes:
        clocks_mhz: All measured clocks, rising.
        kind: Kind of each node, as a number.
        times: For each kind and clock, the time in s; infinite where it was not measured.
        costs: The same for effective energies in J.
        rows: For each rank, its nodes; padded with the number of nodes.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        self.problem = problem
        tables = problem.measured_by_kind
        self.clocks_mhz = sorted({mhz for table in tables.values() for mhz in table.frequencies_mhz})
        self.number_of = {mhz: number for number, mhz in enumerate(self.clocks_mhz)}
        kinds = sorted(tables)
        number_of_kind = {kind: number for number, kind in enumerate(kinds)}
        self.kind: Any = np.array([number_of_kind[i.stage, i.name] for i in problem.pipeline.instructions])
        self.times: Any = np.full((len(kinds), len(self.clocks_mhz)), _NEVER)
        self.costs: Any = np.full(self.times.shape, _NEVER)
        for row, kind in enumerate(kinds):
            at = [self.number_of[mhz] for mhz in tables[kind].frequencies_mhz]
            self.times[row, at], self.costs[row, at] = tables[kind].times_s, tables[kind].costs_j
        self.measured = np.isfinite(self.times)
        self.spans = list(pairwise(problem.pipeline.first_nodes))
        nodes = len(self.kind)
        longest = max(end - first for first, end in self.spans)
        self.rows: Any = np.full((len(self.spans), longest), nodes)
        for rank, (first, end) in enumerate(self.spans):
            self.rows[rank, : end - first] = range(first, end)
        self.first: Any = np.zeros(nodes, bool)
        self.first[[first for first, _ in self.spans]] = True
        self._late: Any = self._late_clocks(problem.switch_costs.acts_late_s)
        self._wrong_s = max(0.0, problem.switch_costs.wrong_clock_s - problem.switch_costs.stands_still_s)
        self._pairs: Any = None
        self._energies: Any = None
        if self._wrong_s:
            self._pairs, self._energies = self._change_energies()

    def _late_clocks(self, late_s: float) -> Any:
        """For each kind, clock before and own clock, time in s and energy in J beyond those at its own; else None."""
        import numpy as np

        if not late_s:
            return None
        mhz: Any = np.array(self.clocks_mhz)
        added = np.zeros((2, *self.times.shape, len(mhz)))
        for kind, known in enumerate(map(np.flatnonzero, self.measured)):
            # A clock that was not measured counts like the nearest one.
            nearest = known[np.abs(mhz[:, None] - mhz[known]).argmin(axis=1)]
            share = np.minimum(1.0, late_s / self.times[kind, nearest])[:, None]
            for part, values in enumerate((self.times[kind, nearest], self.costs[kind, nearest])):
                added[part, kind] = share * (values[:, None] - values)
        return added

    def _change_energies(self) -> tuple[Any, Any]:
        """The pair of kinds before and at each node, and for each pair the energy of a change, (before, now) each."""
        import numpy as np

        count = len(self.clocks_mhz)
        times, costs = self.times.copy(), self.costs.copy()
        for k in range(1, count):  # a clock that was not measured counts as the next lower one
            gap = ~self.measured[:, k]
            times[gap, k], costs[gap, k] = times[gap, k - 1], costs[gap, k - 1]
        share = np.minimum(1.0, self._wrong_s / times)  # at the higher clock
        low, high = costs[:, :, None], costs[:, None, :]
        with np.errstate(invalid="ignore"):
            too_much = np.where(np.isfinite(low) & np.isfinite(high), share[:, None, :] * np.maximum(0, high - low), 0)
        too_much = too_much * np.triu(np.ones((count, count)), 1)
        before = np.concatenate([self.kind[:1], self.kind[:-1]])
        pairs, numbers = np.unique(np.stack([before, self.kind]), axis=1, return_inverse=True)
        energies = too_much[pairs[0]] + too_much[pairs[1]].transpose(0, 2, 1)
        return np.append(numbers.reshape(-1), 0), energies

    def numbers(self, frequencies_mhz: Sequence[int]) -> Any:
        """Clocks as positions in `clocks_mhz`."""
        import numpy as np

        return np.array([self.number_of[mhz] for mhz in frequencies_mhz])

    def values(self, prices: Prices) -> Any:
        """Energy and price of time of each node at each clock in J, and a row of zeros."""
        import numpy as np

        times, costs = self.times[self.kind], self.costs[self.kind]
        with np.errstate(invalid="ignore"):
            values = np.where(self.measured[self.kind], costs + prices.node_w[:, None] * times, _NEVER)
        if self._late is not None:  # an iteration begins at the highest clock
            firsts = np.flatnonzero(self.first)
            added_s, added_j = self._late[:, self.kind[firsts], -1]
            values[firsts] += added_j + prices.node_w[firsts, None] * added_s
        return np.vstack([values, np.zeros(len(self.clocks_mhz))])

    def _walk(self, values: Any, prices: Prices, backwards: bool) -> Any:
        """For each node and clock, the least cost of its rank's nodes up to it (or from it), itself included."""
        import numpy as np

        nodes = len(self.kind)
        lost_s = self.problem.switch_costs.stands_still_s
        price: Any = np.append(np.where(self.first, 0.0, prices.rank_w * lost_s + prices.change_j), 0.0)
        most: Any = np.append(prices.rank_w * self._wrong_s, 0.0)
        found: Any = np.zeros((nodes + 1, len(self.clocks_mhz)))
        state: Any = np.zeros((len(self.rows), len(self.clocks_mhz)))
        columns = range(self.rows.shape[1])
        for at in reversed(columns) if backwards else columns:
            here = self.rows[:, at]
            behind = self.rows[:, at + 1] if backwards and at + 1 < self.rows.shape[1] else here
            change = behind if backwards else here  # the node before which the clock changes
            if at == (columns[-1] if backwards else 0):
                arrive = state
            elif self._energies is None and self._late is None:
                arrive = np.minimum(state, state.min(axis=1)[:, None] + price[change][:, None])
            else:
                energy = self._energy_of_changes(change, most, prices)
                if backwards:
                    other = (state[:, None, :] + energy).min(axis=2)
                else:
                    other = (state[:, :, None] + energy).min(axis=1)
                arrive = np.minimum(state, other + price[change][:, None])
            real = (here < nodes)[:, None]
            state = np.where(real, arrive + values[here], arrive if not backwards else state)
            found[here] = state
        return found

    def _energy_of_changes(self, nodes: Any, most_j: Any, prices: Prices) -> Any:
        """For each of these nodes, the clock before and its own: energy and price of time of a change, in J.

        Args:
            nodes: The nodes; their number stands for none.
            most_j: For each node, the most that the wrong clock may cost, in J.
            prices: The prices.
        """
        import numpy as np

        shape = len(nodes), len(self.clocks_mhz), len(self.clocks_mhz)
        energy: Any = np.zeros(shape)
        if self._energies is not None:
            energy += np.minimum(self._energies[self._pairs[nodes]], most_j[nodes][:, None, None])
        if self._late is not None:
            real = nodes < len(self.kind)
            added_s, added_j = self._late[:, self.kind[nodes[real]]]
            energy[real] += added_j + prices.node_w[nodes[real], None, None] * added_s
        return energy

    def least(self, prices: Prices) -> float:
        """The least cost of all ranks together at these prices, in J."""
        forwards = self._walk(self.values(prices), prices, backwards=False)
        return float(sum(forwards[end - 1].min() for _, end in self.spans))

    def through(self, prices: Prices) -> Any:
        """For each node and clock, how much more its rank costs if it runs there than at its cheapest clocks, in J."""
        import numpy as np

        values = self.values(prices)
        both = self._walk(values, prices, False)[:-1] + self._walk(values, prices, True)[:-1]
        with np.errstate(invalid="ignore"):
            both = np.where(self.measured[self.kind], both - values[:-1], _NEVER)
        for first, end in self.spans:
            both[first:end] -= both[first:end].min()
        return both
