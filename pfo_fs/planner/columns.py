"""Many assignments of one problem at once: arrays with a row per node and a column per assignment.

Walks over the DAG go level by level; nodes of one level do not depend on each other. A level then takes about the same
time for one column as for fifty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.planner.problem import Problem

NEVER = float("inf")


@dataclass(frozen=True)
class Level:
    """Nodes that do not depend on each other; the number of nodes, as a node, means "no neighbour".

    Attributes:
        nodes: The nodes, shape (n,).
        before: The nodes that each of them waits for, shape (n, most neighbours).
        before_s: The delays of `before`, in s.
        after: The nodes that wait for each of them.
        after_s: The delays of `after`, in s.
    """

    nodes: Any
    before: Any
    before_s: Any
    after: Any
    after_s: Any


class Columns:
    """The tables and the levels of a problem.

    Attributes:
        forwards: The levels from the first nodes to the last.
        backwards: The same DAG from its end, with `before` and `after` exchanged.
        times: For each kind of instruction its options' times in s, (kinds + 1, most options); padded with infinity.
        costs: The same for effective energies in J.
        kind: Kind of each node, shape (nodes + 1,); the last entry means "no neighbour".
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        kinds = list(problem.choices_by_kind)
        number_of = {kind: number for number, kind in enumerate(kinds)}
        tables = list(problem.choices_by_kind.values())
        shape = len(kinds) + 1, max(len(table.times_s) for table in tables)
        self.times: Any = np.full(shape, NEVER)
        self.costs: Any = np.full(shape, NEVER)
        for row, table in enumerate(tables):
            self.times[row, : len(table.times_s)], self.costs[row, : len(table.times_s)] = table.times_s, table.costs_j
        self.times[-1, 0], self.costs[-1, 0] = 0.0, 0.0
        self.kind: Any = np.array([*(number_of[i.stage, i.name] for i in problem.pipeline.instructions), len(kinds)])
        order = problem.pipeline.topological
        self.forwards = levels_of(order, problem.before, problem.after)
        self.backwards = levels_of(order[::-1], problem.after, problem.before)

    def time(self, options: Any) -> Any:
        """Durations in s, (nodes + 1, columns)."""
        return self.times[self.kind[:, None], options]

    def cost(self, options: Any) -> Any:
        """Effective energy in J of each column."""
        return self.costs[self.kind[:, None], options].sum(axis=0)

    def makespan(self, options: Any) -> Any:
        """Length of the iteration without its overhead in s, of each column."""
        return ends_of(self.forwards, self.time(options)).max(axis=0)


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


def levels_of(order: Sequence[int], before: Neighbours, after: Neighbours) -> list[Level]:
    """Sorts nodes into levels by the longest path to them.

    Args:
        order: The nodes; each comes after those that it waits for.
        before: For each node, (node, delay in s) of those that it waits for.
        after: For each node, those that wait for it.
    """
    import numpy as np

    depth = [0] * len(order)
    for node in order:
        depth[node] = max((depth[first] + 1 for first, _ in before[node]), default=0)
    members: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for node in order:
        members[depth[node]].append(node)

    def padded(rows: Neighbours) -> tuple[Any, Any]:
        width = max(1, *(len(row) for row in rows))
        filled = [[*row, *[(len(order), 0.0)] * (width - len(row))] for row in rows]
        return np.array([[n for n, _ in row] for row in filled]), np.array([[s for _, s in row] for row in filled])

    return [
        Level(np.array(nodes), *padded([before[node] for node in nodes]), *padded([after[node] for node in nodes]))
        for nodes in members
    ]
