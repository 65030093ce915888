"""Makes a plan fast enough where clocks act late: changes to higher clocks move to earlier instructions."""

from __future__ import annotations

from itertools import pairwise

from pfo_fs.simulator.job_generator import SimulatedJob

Clocks = list[list[int]]
"""For each rank, the clock of each of its instructions, in MHz."""
_LONGEST_MOVE = 6
_AT_ONCE = 0.1
_MOST_ROUNDS = 400


class LateClocks:
    """One iteration of a job without nodes: each clock acts `nuisances.switch_s` after its instruction has begun."""

    def __init__(self, job: SimulatedJob) -> None:
        truth, pipeline = job.truth, job.pipeline.with_delay(job.nuisances.delay_s)
        self._waiting_w = truth.blocking_power_w
        self._late_s = job.nuisances.switch_s
        self._top_mhz = truth.clocks_mhz[0]
        self._kinds = [(i.stage, i.name) for i in pipeline.instructions]
        self._rows = {
            (kind, mhz): truth.measurement(*kind, mhz) for kind in set(self._kinds) for mhz in truth.clocks_mhz
        }
        self._ranks = list(pairwise(pipeline.first_nodes))
        self._first = [first for first, end in self._ranks for _ in range(end - first)]
        self._order = pipeline.topological
        self._edges: list[list[tuple[int, float]]] = [[] for _ in self._kinds]
        for before, after, delay_s in pipeline.edges:
            self._edges[before].append((after, delay_s))

    def repaired(self, clocks: Clocks, deadline_s: float) -> Clocks | None:
        """Returns the plan with as many instructions at higher clocks as the deadline needs; None if that fails.

        In each round, of all changes to a higher clock that delay the end of the iteration, those are moved to earlier
        instructions that cost least energy for the time that they win.

        Args:
            clocks: The plan.
            deadline_s: The time from the begin of the iteration to the end of its last instruction, in s.
        """
        flat = [mhz for rank in clocks for mhz in rank]
        for _ in range(_MOST_ROUNDS):
            moves = self._moves(flat, deadline_s)
            if moves is None:
                return [flat[first:end] for first, end in self._ranks]
            if not moves:
                return None
            for _, begin, end, mhz in sorted(moves)[: max(1, int(_AT_ONCE * len(moves)))]:
                flat[begin:end] = [max(mhz, each) for each in flat[begin:end]]
        return None

    def _moves(self, flat: list[int], deadline_s: float) -> list[tuple[float, int, int, int]] | None:
        """(energy per time won, begin, end, MHz) of the best move of each late change; None: all is on time."""
        times_s = [0.0] * len(flat)
        for first, end in self._ranks:
            for node in range(first, end):
                times_s[node] = self._run(flat, node, first)[0]
        latest = [deadline_s] * len(flat)  # when a node must end
        for node in reversed(self._order):
            for after, delay_s in self._edges[node]:
                latest[node] = min(latest[node], latest[after] - times_s[after] - delay_s)
        starts = [0.0] * len(flat)
        late = False
        found = []
        for node in self._order:
            end_s = starts[node] + times_s[node]
            for after, delay_s in self._edges[node]:
                starts[after] = max(starts[after], end_s + delay_s)
            if end_s > latest[node] + 1e-9:
                late = True
                move = self._move(flat, node, self._first[node])
                if move is not None:
                    found.append(move)
        return found if late else None

    def _move(self, flat: list[int], node: int, first: int) -> tuple[float, int, int, int] | None:
        best = None
        if flat[node] < self._top_mhz:  # the instruction itself at a higher clock
            best = self._priced(flat, node, node + 1, self._higher(flat[node]), first)
        if node > first and flat[node - 1] < flat[node]:
            for begin in range(node - 1, max(first, node - _LONGEST_MOVE) - 1, -1):
                move = self._priced(flat, begin, node, flat[node], first)
                if move is not None and (best is None or move < best):
                    best = move
        return best

    def _higher(self, mhz: int) -> int:
        return min(other for _, other in self._rows if other > mhz)

    def _priced(
        self, flat: list[int], begin: int, end: int, mhz: int, first: int
    ) -> tuple[float, int, int, int] | None:
        last = min(end + 1, len(flat))
        before = [self._run(flat, node, first) for node in range(begin, last)]
        old = flat[begin:end]
        flat[begin:end] = [max(mhz, each) for each in old]
        after = [self._run(flat, node, first) for node in range(begin, last)]
        flat[begin:end] = old
        won_s = sum(time_s for time_s, _ in before) - sum(time_s for time_s, _ in after)
        costs_j = sum(energy_j for _, energy_j in after) - sum(energy_j for _, energy_j in before)
        return (costs_j / won_s, begin, end, mhz) if won_s > 1e-9 else None

    def _run(self, flat: list[int], node: int, first: int) -> tuple[float, float]:
        """Time of a node, and its energy beyond that of a waiting GPU."""
        kind, mhz = self._kinds[node], flat[node]
        row = self._rows[kind, mhz]
        old_mhz = flat[node - 1] if node > first else self._top_mhz
        time_s, energy_j = row.time_s, row.energy_j
        if old_mhz != mhz and self._late_s:
            old = self._rows[kind, old_mhz]
            late_s = min(self._late_s, old.time_s)
            rest = 1 - late_s / old.time_s
            time_s = late_s + rest * row.time_s
            energy_j = (1 - rest) * old.energy_j + rest * row.energy_j
        return time_s, energy_j - self._waiting_w * time_s
