"""The clocks of one rank, exactly: runs of one clock within given windows of time, at given prices.

Dynamic programming over the rank's instructions. A state is a clock and when the last instruction ends; of several
ways to a state with about the same end, the cheapest is kept. Ends are kept as they are and not rounded, so that a
result is always within the windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.planner.problem import Problem

BUCKETS = 16
"""Number of different ends that are kept for each clock."""
_EPSILON_S = 1e-12
_NEVER = float("inf")


@dataclass(frozen=True)
class Window:
    """When the instructions of one rank may run, and what time costs; an array with a number per instruction each.

    Attributes:
        release_s: What other ranks send is there at this time, in s.
        due_s: The instruction must have ended at this time, in s.
        price_w: Price of its duration, in J/s.
    """

    release_s: Any
    due_s: Any
    price_w: Any


class RankRuns:
    """Finds the clocks of one rank.

    Attributes:
        clocks_mhz: The clocks that are tried, rising.
        kind: Kind of each instruction, as a number.
        times: For each instruction and clock, the time in s; infinite where it was not measured.
        energies: The same for effective energies in J.
        change_j: For the kinds before and behind a change, and its clocks before and behind, its energy in J.
        needed: For a change up and one down, how many instructions a run must have that begins with each instruction.
        only_up: 0 where a change from one clock to the other is up, else infinite; `only_down`, `only_other` likewise.
        fastest_s: Shortest time of each instruction, in s.
        wrong_s: For how long a change makes a GPU run at the higher clock without need, in s.
        lost_s: For how long a change makes the rank stand still, in s.
        late_s, late_j: For each kind, the clock before and its own, the time and energy that it takes in addition since
            its clock acts late; None if clocks act at its begin.
    """

    def __init__(self, problem: Problem, rank: int, wrong_s: float, present_mhz: Sequence[int] = ()) -> None:
        """Builds the tables.

        Args:
            problem: The problem.
            rank: The rank.
            wrong_s: For how long a change makes a GPU run at the higher clock without need, in s.
            present_mhz: Clocks that are tried in any case.
        """
        import numpy as np

        first, end = problem.pipeline.first_nodes[rank : rank + 2]
        table, costs = problem.table, problem.switch_costs
        tables = [problem.measured_by_kind[i.stage, i.name] for i in dict.fromkeys(problem.pipeline.orders[rank])]
        useful = {c.frequencies_mhz[k] for c in tables for k in c.hull} | {max(c.frequencies_mhz) for c in tables}
        self.clocks_mhz = sorted(useful | set(present_mhz))
        self._costs, self.wrong_s, self.lost_s = costs, wrong_s, costs.stands_still_s
        clocks: Any = np.array([table.number[mhz] for mhz in self.clocks_mhz])
        kinds, kind = np.unique(table.kind[first:end], return_inverse=True)
        self.kind: list[int] = kind.tolist()
        self.times: Any = table.time_s[table.kind[first:end]][:, clocks]
        self.energies: Any = table.cost_j[table.kind[first:end]][:, clocks]
        up: Any = clocks[:, None] < clocks  # from the clock of the row to that of the column
        high_s, more_j = table.wrong(kinds[:, None, None], np.minimum(clocks[:, None], clocks), np.maximum(clocks[:, None], clocks))
        wrong_j = np.minimum(1.0, wrong_s / high_s) * more_j
        # [kind before, kind, clock before, clock]: the instruction at the lower clock runs at the higher one for a while.
        self.change_j = np.where(up, wrong_j[:, None], wrong_j[None])
        self.late_s: Any = None
        self.late_j: Any = None
        if costs.acts_late_s:
            own = table.nearest[kinds[:, None, None], clocks]
            share, more_s, more_j = table.late(kinds[:, None, None], clocks[:, None], own, costs.acts_late_s)
            self.late_s, self.late_j = np.minimum(1.0, share) * more_s, np.minimum(1.0, share) * more_j
        self.only_up, self.only_down = (np.where(which, 0.0, _NEVER)[..., None] for which in (up, up.T))
        self.only_other = np.minimum(self.only_up, self.only_down)
        self.fastest_s: list[float] = self.times.min(axis=1).tolist()
        self.needed = [self._nodes_needed(lowered) for lowered in (False, True)]

    def _nodes_needed(self, lowered: bool) -> list[int]:
        """For each instruction, how many instructions a run must have that begins there, even at the fastest clocks.

        At the end of the iteration a run may be shorter.
        """
        shortest_s = self._costs.shortest_run_s(lowered) - _EPSILON_S
        fastest_s = self.fastest_s
        needed = []
        for begin in range(len(fastest_s)):
            end, total_s = begin + 1, fastest_s[begin]
            while total_s < shortest_s and end < len(fastest_s):
                total_s += fastest_s[end]
                end += 1
            needed.append(end - begin)
        return needed

    def best(self, window: Window, change_price_j: float = 0.0) -> list[int] | None:
        """Returns the clock of each instruction, in MHz, so that they cost least; None if no clocks fit.

        Args:
            window: When instructions may run, and the price of time.
            change_price_j: Price of a change beyond its energy, in J.
        """
        found = _Search(self, window, change_price_j).run()
        return None if found is None else [self.clocks_mhz[number] for number in found]


class _Search:
    """One search. After instruction k there is a state for each clock and bucket of ends, with value, end and origin:
    the state before the run that ends with k began, or before k."""

    def __init__(self, runs: RankRuns, window: Window, change_price_j: float) -> None:
        import numpy as np

        self._runs, self._np = runs, np
        count, clocks = len(runs.kind), len(runs.clocks_mhz)
        self._release = window.release_s.tolist()
        due = window.due_s + _EPSILON_S
        soonest: Any = np.zeros(count)
        end = 0.0
        for k in range(count):
            soonest[k] = end = max(end, self._release[k]) + runs.fastest_s[k]
        for k in range(count - 2, -1, -1):
            due[k] = min(due[k], due[k + 1] - runs.fastest_s[k + 1])
        self._due, self._soonest = due.tolist(), soonest.tolist()
        self._per_s = (BUCKETS / np.maximum(due - soonest, _EPSILON_S)).tolist()
        measured = np.isfinite(runs.times)
        prices = np.where(measured, window.price_w[:, None] * np.where(measured, runs.times, 0.0), 0.0)
        self._values = (runs.energies + prices)[..., None]
        self._prices_j = (change_price_j + runs.lost_s * window.price_w).tolist()
        self._price_w = window.price_w.tolist()
        self._times = runs.times[..., None]
        self._shape = clocks, BUCKETS
        self._states: Any = np.arange(clocks * BUCKETS).reshape(self._shape)
        self._buckets: Any = np.arange(BUCKETS)
        self._ways: list[list[tuple[Any, Any, Any, int]]] = [[] for _ in range(count)]
        self._origins: list[tuple[Any, Any]] = []

    def run(self) -> list[int] | None:
        np, count = self._np, len(self._runs.kind)
        value, end = np.full(self._shape, _NEVER), np.zeros(self._shape)
        value[:, 0] = 0.0
        more_s = 0.0
        if self._runs.late_s is not None:  # an iteration begins at the highest clock
            late_s, late_j = self._late(0)
            value[:, 0] = late_j[-1]
            more_s = late_s[-1][:, None]
        self._begin(0, value, end, np.full(self._shape, -1), self._runs.needed[0][0], more_s)
        for k in range(count):
            if k:
                self._begin(k, value, end, self._states, 1, 0.0)
                self._change(k, value, end)
            value, end = self._collect(k)
        best = int(value.argmin())
        return self._back(best) if np.isfinite(value.flat[best]) else None

    def _change(self, k: int, value: Any, end: Any) -> None:
        """Begins runs with instruction k at each clock, from the best of the other clocks before."""
        np, runs = self._np, self._runs
        energy = runs.change_j[runs.kind[k - 1]][runs.kind[k]][..., None]
        if runs.wrong_s:
            waiting = np.maximum(self._release[k] - end, 0.0)
            if waiting.any():
                energy = energy * np.maximum(1 - waiting / runs.wrong_s, 0.0)[:, None]
        late_s = None
        if runs.late_s is not None:
            late_s, late_j = self._late(k)
            energy = energy + late_j[..., None]
        total = value[:, None] + energy
        raised, lowered = runs.needed[0][k], runs.needed[1][k]
        ways = [(runs.only_other, raised)]
        if raised != lowered:
            ways = [(runs.only_up, raised), (runs.only_down, lowered)]
        for allowed, length in ways:
            options = total + allowed
            before = options.argmin(axis=0)
            cheapest = options.min(axis=0) + self._prices_j[k]
            states = before * BUCKETS + self._buckets
            more_s = 0.0 if late_s is None else late_s[before, np.arange(len(before))[:, None]]
            self._begin(k, cheapest, end.ravel()[states] + runs.lost_s, states, length, more_s)

    def _late(self, k: int) -> tuple[Any, Any]:
        """For the clocks before instruction k and its own, time in addition, and energy, the price of time included."""
        runs, kind = self._runs, self._runs.kind[k]
        return runs.late_s[kind], runs.late_j[kind] + self._price_w[k] * runs.late_s[kind]

    def _begin(self, k: int, value: Any, end: Any, origin: Any, length: int, more_s: Any) -> None:
        """Runs `length` instructions from k on, at each clock; the first one takes `more_s` in addition."""
        np = self._np
        for at in range(k, k + length):
            end = np.maximum(end, self._release[at]) + self._times[at]
            if at == k:
                end = end + more_s
            value = np.where(end <= self._due[at], value + self._values[at], _NEVER)
        self._ways[k + length - 1].append((value, end, origin, length))

    def _collect(self, k: int) -> tuple[Any, Any]:
        """Of all ways that end with instruction k, keeps the cheapest for each clock and about the same end."""
        np, size = self._np, self._states.size
        ways, self._ways[k] = self._ways[k], []
        if not ways:  # within the first run
            self._origins.append((np.full(size, -1), np.zeros(size, int)))
            return np.full(self._shape, _NEVER), np.zeros(self._shape)
        values, ends, origins = (np.concatenate(each, axis=None) for each in list(zip(*ways, strict=True))[:3])
        bucket = np.minimum(np.maximum((ends - self._soonest[k]) * self._per_s[k], 0.0), BUCKETS - 1).astype(int)
        order = np.argsort(-values)
        winner: Any = np.full(size, -1)
        winner[(np.tile(self._states[:, 0].repeat(BUCKETS), len(ways)) + bucket)[order]] = order  # the last one stays
        value = np.where(winner >= 0, values[winner], _NEVER)
        lengths: Any = np.array([way[3] for way in ways])
        self._origins.append((origins[winner], lengths[winner // size]))
        return value.reshape(self._shape), ends[winner].reshape(self._shape)

    def _back(self, state: int) -> list[int]:
        clocks: list[int] = []
        k = len(self._origins) - 1
        while k >= 0:
            origins, lengths = self._origins[k]
            length = int(lengths[state])
            clocks += [state // BUCKETS] * length
            k, state = k - length, int(origins[state])
        return clocks[::-1]
