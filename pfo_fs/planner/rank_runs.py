"""The clocks of one rank, exactly: runs of one clock at given values, within windows of time where there are some.

Dynamic programming over the rank's instructions. A state is a clock and when the last instruction ends; of several
ways to a state with about the same end, the cheapest is kept. Ends are kept as they are and not rounded, so that a
result is always within the windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pfo_fs.arrays import np
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


@dataclass(frozen=True)
class Rank:
    """What the clocks of one rank's instructions cost; clocks are positions, rising.

    Attributes:
        values_j: The cost of each instruction at each clock, the price of its time included, in J; infinite where the
            clock cannot be used, (instructions, clocks).
        needed: How many instructions a run must have at least that begins with each instruction at each clock, with a
            change up and with one down, (2, instructions, clocks).
        changes: Returns what changes before an instruction cost in J, from the clock of the row to that of the column
            (the same in a third dimension where it depends on the bucket of ends), and the time in s by which the
            instruction is longer, or None. Given are the instruction and when the one before ends, (clocks, buckets).
        times_s: Time of each instruction at each clock, in s; None: time does not matter.
        lost_s: For how long a change makes the rank stand still, in s.
        begins: For each clock, what the first instruction costs in addition in J, and by how much it is longer in s.
    """

    values_j: Any
    needed: Any
    changes: Callable[[int, Any], tuple[Any, Any]]
    times_s: Any = None
    lost_s: float = 0.0
    begins: tuple[Any, Any] = (0.0, 0.0)


def cheapest(rank: Rank, release_s: Any = None, due_s: Any = None) -> Any:
    """Returns the clock of each instruction as a position, so that they cost least; None if no clocks fit.

    Args:
        rank: What the clocks cost.
        release_s, due_s: As in `Window`; None: instructions may run at any time.
    """
    return _Search(rank, release_s, due_s).run()


def nodes_needed(times_s: Any, shortest_s: Any) -> Any:
    """Returns how many instructions runs must have at least, as `Rank.needed`; waiting makes them only longer.

    Args:
        times_s: Time of each instruction at each clock, in s; infinite where it was not measured: then the shortest
            counts, (instructions, clocks).
        shortest_s: How long a run at each clock lasts at least that begins with a change up, and down, (2, clocks).
    """
    known_s = np.where(np.isfinite(times_s), times_s, times_s.min(axis=1, keepdims=True))
    total_s: Any = np.vstack([np.zeros((1, known_s.shape[1])), known_s.cumsum(axis=0)])
    first: Any = np.arange(len(times_s))
    found: Any = np.empty((2, *times_s.shape), int)
    for at, own_s in enumerate(total_s.T):
        for down in (0, 1):
            ends = np.searchsorted(own_s, own_s[:-1] + shortest_s[down, at] - _EPSILON_S)
            found[down, :, at] = ends.clip(first + 1, len(first)) - first
    return found


class RankRuns:
    """Finds the clocks of one rank of iterations that are all alike.

    Attributes:
        clocks_mhz: The clocks that are tried, rising.
        kind: Kind of each instruction, as a number.
    """

    def __init__(self, problem: Problem, rank: int, wrong_s: float) -> None:
        """Builds the tables.

        Args:
            problem: The problem.
            rank: The rank.
            wrong_s: For how long a change makes a GPU run at the higher clock without need, in s.
        """
        first, end = problem.pipeline.first_nodes[rank : rank + 2]
        table, costs = problem.table, problem.switch_costs
        tables = [problem.measured_by_kind[i.stage, i.name] for i in problem.pipeline.orders[rank]]
        useful = {c.frequencies_mhz[k] for c in tables for k in c.hull} | {max(c.frequencies_mhz) for c in tables}
        self.clocks_mhz = sorted(useful)
        self._wrong_s, self._lost_s = wrong_s, costs.stands_still_s
        clocks: Any = np.array([table.number[mhz] for mhz in self.clocks_mhz])
        kinds, kind = np.unique(table.kind[first:end], return_inverse=True)
        self.kind: list[int] = kind.tolist()
        self._times_s: Any = table.time_s[table.kind[first:end]][:, clocks]
        self._costs_j: Any = table.cost_j[table.kind[first:end]][:, clocks]
        before, own, of_kind = clocks[:, None], clocks, kinds[:, None, None]
        high_s, more_j = table.wrong(of_kind, np.minimum(before, own), np.maximum(before, own))
        wrong_j = np.minimum(1.0, wrong_s / high_s) * more_j
        # For the kinds before and behind a change: the instruction at the lower clock runs at the higher one for a
        # while.
        self._wrong_j = np.where(before < own, wrong_j[:, None], wrong_j[None])
        self._late: Any = None  # by kind, the time in s and energy in J in addition since clocks act late
        if costs.onset_delay_s:
            share, *more = table.late(of_kind, before, table.nearest[of_kind, own], costs.onset_delay_s)
            self._late = np.stack([np.minimum(1.0, share) * each for each in more], axis=1)
        self._needed = nodes_needed(self._times_s, problem.alike.shortest_s[:, clocks])

    def best(self, window: Window, change_price_j: float = 0.0) -> list[int] | None:
        """Returns the clock of each instruction, in MHz, so that they cost least; None if no clocks fit.

        Args:
            window: When instructions may run, and the price of time.
            change_price_j: Price of a change beyond its energy, in J.
        """
        release_s, price_w = window.release_s, window.price_w

        def late(k: int) -> tuple[Any, Any]:
            more_s, more_j = self._late[self.kind[k]]
            return more_s, more_j + price_w[k] * more_s

        def changes(k: int, end_s: Any) -> tuple[Any, Any]:
            energy_j = self._wrong_j[self.kind[k - 1], self.kind[k]][..., None]
            waiting_s = np.maximum(release_s[k] - end_s, 0.0)
            if self._wrong_s and waiting_s.any():
                energy_j = energy_j * np.maximum(1 - waiting_s / self._wrong_s, 0.0)[:, None]
            energy_j = energy_j + change_price_j + self._lost_s * price_w[k]
            if self._late is None:
                return energy_j, None
            more_s, more_j = late(k)
            return energy_j + more_j[..., None], more_s

        known = np.isfinite(self._times_s)
        values_j = np.where(known, self._costs_j + price_w[:, None] * np.where(known, self._times_s, 0.0), _NEVER)
        rank = Rank(values_j, self._needed, changes, self._times_s, self._lost_s)
        if self._late is not None:  # an iteration begins at the max clock
            more_s, more_j = late(0)
            rank = Rank(values_j, self._needed, changes, self._times_s, self._lost_s, (more_j[-1], more_s[-1]))
        found = cheapest(rank, release_s, window.due_s)
        return None if found is None else [self.clocks_mhz[number] for number in found]


class _Search:
    """One search. After instruction k there is a state for each clock and bucket of ends, with value, end and origin:
    the state before the run that ends with k began, or before k."""

    def __init__(self, rank: Rank, release_s: Any, due_s: Any) -> None:
        self._rank, self._np = rank, np
        count, clocks = rank.values_j.shape
        self._buckets = 1 if rank.times_s is None else BUCKETS
        times_s: Any = np.zeros(rank.values_j.shape) if rank.times_s is None else rank.times_s
        self._release: list[float] = [0.0] * count if release_s is None else release_s.tolist()
        due = np.full(count, _NEVER) if due_s is None else due_s + _EPSILON_S
        fastest = times_s.min(axis=1)
        soonest: Any = np.zeros(count)
        end = 0.0
        for k in range(count):
            soonest[k] = end = max(end, self._release[k]) + fastest[k]
        for k in range(count - 2, -1, -1):
            due[k] = min(due[k], due[k + 1] - fastest[k + 1])
        self._due, self._soonest = due.tolist(), soonest.tolist()
        self._per_s = (self._buckets / np.maximum(due - soonest, _EPSILON_S)).tolist()
        self._values, self._times = rank.values_j[..., None], times_s[..., None]
        self._shape = clocks, self._buckets
        self._states: Any = np.arange(clocks * self._buckets).reshape(self._shape)
        place: Any = np.arange(clocks)
        self._only_up = np.where(place[:, None] < place, 0.0, _NEVER)[..., None]
        self._only_down = np.where(place[:, None] > place, 0.0, _NEVER)[..., None]
        self._only_other = np.minimum(self._only_up, self._only_down)
        self._ways: list[list[tuple[Any, Any, Any, int]]] = [[] for _ in range(count)]
        self._origins: list[tuple[Any, Any]] = []

    def run(self) -> Any:
        np, count, rank = self._np, len(self._values), self._rank
        value, end = np.full(self._shape, _NEVER), np.zeros(self._shape)
        more_j, more_s = rank.begins
        value[:, 0] = more_j
        self._begin(0, value, end, np.full(self._shape, -1), rank.needed[0, 0], np.reshape(more_s, (-1, 1)))
        single = np.ones(len(value), int)
        for k in range(count):
            if k:
                self._begin(k, value, end, self._states, single, 0.0)
                self._change(k, value, end)
            value, end = self._collect(k)
        best = int(value.argmin())
        return self._back(best) if np.isfinite(value.flat[best]) else None

    def _change(self, k: int, value: Any, end: Any) -> None:
        """Begins runs with instruction k at each clock, from the best of the other clocks before."""
        np, rank = self._np, self._rank
        energy_j, late_s = rank.changes(k, end)
        total = value[:, None] + energy_j
        raised, lowered = rank.needed[:, k]
        ways = [(self._only_other, raised)]
        if (raised != lowered).any():
            ways = [(self._only_up, raised), (self._only_down, lowered)]
        for allowed, lengths in ways:
            options = total + allowed
            before = options.argmin(axis=0)
            states = before * self._buckets + np.arange(self._buckets)
            more_s = 0.0 if late_s is None else late_s[before, np.arange(len(before))[:, None]]
            self._begin(k, options.min(axis=0), end.ravel()[states] + rank.lost_s, states, lengths, more_s)

    def _begin(self, k: int, value: Any, end: Any, origin: Any, lengths: Any, more_s: Any) -> None:
        """Runs from k on at each clock, of its least number of instructions; the first one takes `more_s` longer."""
        np = self._np
        for length in range(1, int(lengths.max()) + 1):
            at = k + length - 1
            end = np.maximum(end, self._release[at]) + self._times[at]
            if at == k:
                end = end + more_s
            value = np.where(end <= self._due[at], value + self._values[at], _NEVER)
            ready = lengths == length
            if ready.any():
                self._ways[at].append((np.where(ready[:, None], value, _NEVER), end, origin, length))

    def _collect(self, k: int) -> tuple[Any, Any]:
        """Of all ways that end with instruction k, keeps the cheapest for each clock and about the same end."""
        np, size = self._np, self._states.size
        ways, self._ways[k] = self._ways[k], []
        if not ways:  # within the first run
            self._origins.append((np.full(size, -1), np.zeros(size, int)))
            return np.full(self._shape, _NEVER), np.zeros(self._shape)
        values, ends, origins = (np.concatenate(each, axis=None) for each in list(zip(*ways, strict=True))[:3])
        bucket = np.minimum(np.maximum((ends - self._soonest[k]) * self._per_s[k], 0.0), self._buckets - 1).astype(int)
        order = np.argsort(-values)
        winner: Any = np.full(size, -1)
        winner[(np.tile(self._states[:, 0].repeat(self._buckets), len(ways)) + bucket)[order]] = order  # the last stays
        value = np.where(winner >= 0, values[winner], _NEVER)
        lengths: Any = np.array([way[3] for way in ways])
        self._origins.append((origins[winner], lengths[winner // size]))
        return value.reshape(self._shape), ends[winner].reshape(self._shape)

    def _back(self, state: int) -> Any:
        clocks: list[int] = []
        k = len(self._origins) - 1
        while k >= 0:
            origins, lengths = self._origins[k]
            length = int(lengths[state])
            clocks += [state // self._buckets] * length
            k, state = k - length, int(origins[state])
        return self._np.array(clocks[::-1])
