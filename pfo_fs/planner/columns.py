"""Many assignments of one problem at once: arrays with a row per node and a column per assignment.

Walks over the DAG go level by level; nodes of one level do not depend on each other. A level then takes about the same
time for one column as for fifty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.planner.choices import Choices
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.profile import Kind

NEVER = float("inf")


@dataclass(frozen=True)
class Level:
    """Nodes that do not depend on each other; the number of nodes, as a node, means "no neighbour".

    Attributes:
        nodes: The nodes, shape (n,).
        before: The nodes that each of them waits for, shape (n, most neighbours).
        before_s: The delays of `before`, in s.
        after: The nodes that wait for each of them; in column 0 only the next node of the same rank.
        after_s: The delays of `after`, in s.
        rivals: For each column of `after`, the other nodes that this neighbour waits for, with delays.
    """

    nodes: Any
    before: Any
    before_s: Any
    after: Any
    after_s: Any
    rivals: Sequence[tuple[Any, Any]]


class Columns:
    """The tables and the levels of a problem.

    Attributes:
        clock_numbers: For each clock in MHz, its number; numbers rise with the clock.
        forwards: The levels from the first nodes to the last.
        backwards: The same DAG from its end, with `before` and `after` exchanged.
        times: For each kind of instruction its options' times in s, (kinds + 1, most options); padded with infinity.
        costs: The same for effective energies in J.
        clocks: The same for clocks, as numbers from 0; -1 where there is no option.
        counts: Number of options of each kind.
        option_at: For each kind and clock number, the option, or -1.
        kind: Kind of each node, shape (nodes + 1,); the last entry means "no neighbour".
    """

    def __init__(self, problem: Problem, choices_by_kind: Mapping[Kind, Choices] | None = None) -> None:
        """Builds the tables.

        Args:
            problem: The problem.
            choices_by_kind: The options of each kind; those of the problem if None.
        """
        import numpy as np

        choices_by_kind = choices_by_kind or problem.choices_by_kind
        kinds = sorted(choices_by_kind)
        number_of = {kind: number for number, kind in enumerate(kinds)}
        tables = [choices_by_kind[kind] for kind in kinds]
        clocks = sorted({mhz for table in tables for mhz in table.frequencies_mhz})
        self.clock_numbers = numbers = {mhz: number for number, mhz in enumerate(clocks)}
        shape = len(kinds) + 1, max(len(table.times_s) for table in tables)
        self.times: Any = np.full(shape, NEVER)
        self.costs: Any = np.full(shape, NEVER)
        self.clocks: Any = np.full(shape, -1)
        self.option_at: Any = np.full((len(kinds) + 1, len(numbers) + 1), -1)  # the last column is for clock -1
        for row, table in enumerate(tables):
            count = len(table.times_s)
            self.times[row, :count], self.costs[row, :count] = table.times_s, table.costs_j
            self.clocks[row, :count] = [numbers[mhz] for mhz in table.frequencies_mhz]
            self.option_at[row, self.clocks[row, :count]] = np.arange(count)
        self.times[-1, 0], self.costs[-1, 0] = 0.0, 0.0
        self.counts: Any = np.array([*(len(table.times_s) for table in tables), 1])
        self.kind: Any = np.array([*(number_of[i.stage, i.name] for i in problem.pipeline.instructions), len(kinds)])
        ranks = [rank for rank, order in enumerate(problem.pipeline.orders) for _ in order]
        order = problem.pipeline.topological
        self.forwards = levels_of(order, problem.before, problem.after, ranks)
        self.backwards = levels_of(order[::-1], problem.after, problem.before, ranks)
        nodes = len(order)
        self.rank_before: Any = np.array([n - 1 if n and ranks[n - 1] == ranks[n] else nodes for n in range(nodes)])
        self.rank_after: Any = np.array(
            [n + 1 if n + 1 < nodes and ranks[n + 1] == ranks[n] else nodes for n in range(nodes)]
        )

    def time(self, options: Any) -> Any:
        """Durations in s, (nodes + 1, columns)."""
        return self.times[self.kind[:, None], options]

    def cost(self, options: Any) -> Any:
        """Effective energy in J of each column."""
        return self.costs[self.kind[:, None], options].sum(axis=0)

    def changes(self, options: Any) -> Any:
        """Number of clock changes of each column."""
        clocks = self.clocks[self.kind[:, None], options]
        return ((clocks[:-1] != clocks[self.rank_before]) & (self.rank_before < len(clocks) - 1)[:, None]).sum(axis=0)

    def makespan(self, options: Any, switch_time_s: float = 0.0) -> Any:
        """Length of the iteration without its overhead in s, of each column.

        Args:
            options: The assignments.
            switch_time_s: Time that a rank loses when it changes its clock, in s.
        """
        import numpy as np

        if not switch_time_s:
            return ends_of(self.forwards, self.time(options)).max(axis=0)
        times, clocks = self.time(options), self.clocks[self.kind[:, None], options]
        own = self.rank_before
        changed = (clocks[:-1] != clocks[own]) & (own < len(own))[:, None]
        ends: Any = np.zeros_like(times)
        for level in self.forwards:
            nodes = level.nodes
            lost_s = (
                np.where((level.before == own[nodes][:, None])[..., None], changed[nodes][:, None], 0) * switch_time_s
            )
            start = (ends[level.before] + level.before_s[..., None] + lost_s).max(axis=1)
            ends[nodes] = start + times[nodes]
        return ends.max(axis=0)


def starts_of(level: Level, ends: Any) -> Any:
    """When a level's nodes can begin, given when the nodes before them end."""
    return (ends[level.before] + level.before_s[..., None]).max(axis=1)


def ends_of(view: Sequence[Level], times: Any) -> Any:
    """When each node ends, if all nodes begin as early as possible."""
    import numpy as np

    result: Any = np.zeros_like(times)
    for level in view:
        result[level.nodes] = starts_of(level, result) + times[level.nodes]
    return result


def latest_of(view: Sequence[Level], times: Any, deadlines: Any) -> Any:
    """When each node must have ended, so that all nodes behind it can end by the deadlines (one per column)."""
    import numpy as np

    result: Any = np.empty_like(times)
    result[-1] = deadlines
    for level in reversed(view):
        must = result[level.after] - times[level.after] - level.after_s[..., None]
        result[level.nodes] = must.min(axis=1)
    return result


Neighbours = list[list[tuple[int, float]]]


def levels_of(order: Sequence[int], before: Neighbours, after: Neighbours, ranks: Sequence[int]) -> list[Level]:
    """Sorts nodes into levels by the longest path to them.

    Args:
        order: The nodes; each comes after those that it waits for.
        before: For each node, (node, delay in s) of those that it waits for.
        after: For each node, those that wait for it.
        ranks: The rank of each node.
    """
    depth = [0] * len(order)
    for node in order:
        depth[node] = max((depth[first] + 1 for first, _ in before[node]), default=0)
    members: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for node in order:
        members[depth[node]].append(node)
    none = len(order)
    return [_level(nodes, before, after, ranks, none) for nodes in members]


def _level(nodes: list[int], before: Neighbours, after: Neighbours, ranks: Sequence[int], none: int) -> Level:
    import numpy as np

    def padded(rows: Sequence[Sequence[tuple[int, float]]]) -> tuple[Any, Any]:
        width = max(1, *(len(row) for row in rows))
        filled = [[*row, *[(none, 0.0)] * (width - len(row))] for row in rows]
        return np.array([[n for n, _ in row] for row in filled]), np.array([[s for _, s in row] for row in filled])

    behind = []
    for node in nodes:
        own = [edge for edge in after[node] if abs(edge[0] - node) == 1 and ranks[edge[0]] == ranks[node]]
        behind.append([*(own or [(none, 0.0)]), *(edge for edge in after[node] if edge not in own)])
    neighbours, neighbours_s = padded(behind)
    rivals = [
        padded(
            [
                [e for e in (before[n] if n != none else []) if e[0] != node]
                for node, n in zip(nodes, column, strict=True)
            ]
        )
        for column in neighbours.T.tolist()
    ]
    waits, waits_s = padded([before[node] for node in nodes])
    return Level(np.array(nodes), waits, waits_s, neighbours, neighbours_s, rivals)
