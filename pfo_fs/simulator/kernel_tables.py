"""Times, powers and order of one pipeline's instructions at each clock, as arrays for whole iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pfo_fs.arrays import np
from pfo_fs.planner import Pipeline
from pfo_fs.planner.longest_paths import LongestPaths, Neighbours, neighbours
from pfo_fs.simulator.nodes import NodeIteration, SimulatedNodes, Work
from pfo_fs.simulator.truth import Truth


class KernelTables:
    """Times, powers and dependencies of a pipeline's instructions; all constant.

    Nodes are numbered as in `pipeline.instructions`, clocks as in `truth.clocks_mhz` (0 is the highest).

    Args:
        pipeline: The instructions that each pipeline runs.
        truth: Time and energy of each instruction at each clock.
        delay_s: Communication time between two stages, in s.

    Attributes:
        num_ranks: Number of ranks of one pipeline.
    """

    def __init__(self, pipeline: Pipeline, truth: Truth, delay_s: float) -> None:
        self._orders = pipeline.orders
        self.num_ranks = len(pipeline.orders)
        nodes = len(pipeline.instructions)
        ranks = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
        edges = [(first, then, delay_s * (ranks[first] != ranks[then])) for first, then, _ in pipeline.edges]
        self._paths = LongestPaths(pipeline.topological, edges)
        before, after = neighbours(nodes, edges)
        kinds = sorted({(i.stage, i.name) for i in pipeline.instructions})
        number = {kind: n for n, kind in enumerate(kinds)}
        self._kind: Any = np.array([number[i.stage, i.name] for i in pipeline.instructions])
        self._clock_number = {mhz: n for n, mhz in enumerate(truth.clocks_mhz)} | {0: 0}
        table = [[truth.measurement(*kind, mhz) for mhz in truth.clocks_mhz] for kind in kinds]
        self._times: Any = np.array([[m.time_s for m in row] for row in table])
        self._powers: Any = np.array([[m.energy_j / m.time_s for m in row] for row in table])
        firsts = set(pipeline.first_nodes[:-1])
        self._before_in_rank: Any = np.array([node if node in firsts else node - 1 for node in range(nodes)])
        self._work = self._work_of(before, after, ranks, truth)
        self._is_first: Any = np.array([node in firsts for node in range(nodes)])

    def _work_of(self, before: Neighbours, after: Neighbours, ranks: list[int], truth: Truth) -> Work:
        firsts = [ranks.index(rank) for rank in range(self.num_ranks)] + [len(ranks)]
        kinds = self._kind.tolist()
        times, powers = self._times.tolist(), self._powers.tolist()
        return Work(
            [range(first, end) for first, end in pairwise(firsts)],
            [[edge for edge in edges if ranks[edge[0]] != ranks[node]] for node, edges in enumerate(before)],
            [[edge for edge in edges if ranks[edge[0]] != ranks[node]] for node, edges in enumerate(after)],
            [times[kind] for kind in kinds],
            [powers[kind] for kind in kinds],
            truth.clocks_mhz,
            kinds,
            ranks,
        )

    def run_on(self, nodes: SimulatedNodes, clocks: Any, factors: Any) -> NodeIteration:
        """Simulates an iteration of one pipeline event by event.

        Args:
            nodes: The nodes that it runs on.
            clocks: A column of `clocks_of`.
            factors: For each instruction, by how much it takes longer.
        """
        work = self._work
        mhz = [work.clocks_mhz[number] for number in clocks]
        return nodes.run(work, [mhz[order.start : order.stop] for order in work.orders], factors.tolist())

    def clocks_of(self, schedules: Sequence[Mapping[int, Sequence[tuple[str, int]]]]) -> Any:
        """Returns clock numbers, a row per node and a column per pipeline.

        Args:
            schedules: For each pipeline, the (instruction, MHz) of each of its ranks; a rank without one runs at the
                highest clock.
        """
        columns = []
        for of_ranks in schedules:
            column: list[int] = []
            for rank, order in enumerate(self._orders):
                requested = of_ranks.get(rank)
                mhz = [0] * len(order) if not requested else _in_force([clock for _, clock in requested])
                column += [self._clock_number[clock] for clock in mhz]
            columns.append(column)
        return np.array(columns).T

    def times_and_powers(self, clocks: Any, switch_s: float) -> tuple[Any, Any]:
        """Returns the durations in s and the mean powers in W of all instructions at the given clocks.

        Args:
            clocks: From `clocks_of`.
            switch_s: Time that a GPU continues at the old clock after another one was set, in s.
        """
        kind = self._kind[:, None]
        times, powers = self._times[kind, clocks], self._powers[kind, clocks]
        if not switch_s:
            return times, powers
        before = np.where(self._is_first[:, None], 0, clocks[self._before_in_rank])
        changed = clocks != before
        old_s, old_w = self._times[kind, before], self._powers[kind, before]
        late_s = np.where(changed, np.minimum(switch_s, old_s), 0.0)
        rest_s = (1 - late_s / old_s) * times
        powers = (late_s * old_w + rest_s * powers) / (late_s + rest_s)
        return late_s + rest_s, powers

    def at_the_highest_clocks(self) -> tuple[Any, Any]:
        """Returns the durations in s and the powers in W of all instructions at max clocks: (nodes, 1)."""
        return self._times[self._kind, 0][:, None], self._powers[self._kind, 0][:, None]

    def ends(self, times: Any) -> Any:
        """Returns when instructions of the given durations end, in s from the begin of the iteration."""
        return self._paths.ends(times).ends_s


def _in_force(requested: Sequence[int]) -> list[int]:
    """Returns the clock at each instruction: a request of 0 MHz leaves the clock as it is."""
    found, last = [], 0
    for mhz in requested:
        last = mhz or last
        found.append(last)
    return found
