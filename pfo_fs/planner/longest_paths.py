"""Longest paths through a DAG for many sets of durations at once: arrays with a row per node and a column per set.

Walks go level by level; nodes of one level do not depend on each other. A level takes about the same time for one
column as for fifty. If a node waits for several nodes, the one that is ready last decides. With a blur above zero, two
nodes that are ready at nearly the same time both decide in part: the length is then a little longer, but smooth in the
durations.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pfo_fs.arrays import Array, np

Neighbours = list[list[tuple[int, float]]]
"""For each node, its neighbours as (node, delay in s)."""

_BEFORE_ALL_S = -1e9
"""A missing neighbour counts as ready at this time, before all others."""
_LEAST_BLUR_S = 1e-12
"""Without a blur, neighbours that are ready this close together count alike, so that rounding errors do not decide."""


class _Side(NamedTuple):
    """Column k of the lists of neighbours of a level's nodes: the k-th neighbour of each node.

    Attributes:
        at: The neighbours, (n,); where a node has none, the number of nodes of the DAG.
        delay_s: Delays between the node and this neighbour, (n, 1).
        place: The node's index in that neighbour's own list, (n,).
    """

    at: Array
    delay_s: Array
    place: Array


class Level(NamedTuple):
    """Nodes that do not depend on each other; an index that equals the number of nodes means "no neighbour".

    Attributes:
        nodes: The nodes, (n,).
        before: The neighbours that each node waits for: its first one, its second one, ...
        after: The neighbours that wait for each node, likewise.
    """

    nodes: Array
    before: list[_Side]
    after: list[_Side]


class Ends(NamedTuple):
    """When nodes end.

    Attributes:
        ends_s: The ends in s, (nodes, columns).
        shares: The share with which each neighbour decides when the node begins, for `LongestPaths.weights`; None if
            they were not asked for.
    """

    ends_s: Array
    shares: Array


class LongestPaths:
    """A DAG.

    Args:
        order: The nodes; each comes after the nodes that it waits for.
        edges: (node, node that waits for it, delay in s between them).

    Attributes:
        levels: The nodes, by the number of nodes on the longest path to them.
        last_nodes: The nodes that no other node waits for.
    """

    def __init__(self, order: Sequence[int], edges: Iterable[tuple[int, int, float]]) -> None:
        before, after = neighbours(len(order), edges)
        depth = [0] * len(order)
        for node in order:
            depth[node] = max((depth[first] + 1 for first, _ in before[node]), default=0)
        members: list[list[int]] = [[] for _ in range(max(depth) + 1)]
        for node in order:
            members[depth[node]].append(node)
        self.levels = [
            Level(np.array(nodes), _sides(nodes, before, after), _sides(nodes, after, before)) for nodes in members
        ]
        self.last_nodes = np.array([node for node, waiting in enumerate(after) if not waiting])
        self._places = max(len(level.before) for level in self.levels)

    def ends(self, times_s: Array, blur_s: float = 0.0, *, shares: bool = False) -> Ends:
        """Returns when each node ends if all nodes begin as early as they can.

        Args:
            blur_s: Two neighbours that are ready within this time of each other both count, in s.
            shares: Whether `weights` will be asked for.
        """
        is_exact, blur_s = blur_s == 0, max(blur_s, _LEAST_BLUR_S)
        nodes, columns = times_s.shape
        ends = np.empty((nodes + 1, columns))
        ends[-1] = _BEFORE_ALL_S
        counts: Array = np.zeros((self._places, nodes + 1, columns)) if shares else None
        for number, (own, sides, _) in enumerate(self.levels):
            start = 0.0
            counted: list[Array] = []
            for place, side in enumerate(sides if number else ()):
                ready = ends.take(side.at, axis=0)
                ready += side.delay_s
                if place == 0:
                    start = ready
                    counted = [np.ones_like(ready)] if shares else []
                    continue
                if is_exact and not shares:
                    np.maximum(start, ready, out=start)
                    continue
                apart = ready - start
                apart *= 0.5 / blur_s
                np.maximum(start, ready, out=start)
                if shares:
                    share = np.minimum(np.maximum(apart, -0.5), 0.5)
                    share += 0.5
                    rest = 1.0 - share
                    for earlier in counted:
                        earlier *= rest
                    counted.append(share)
                if is_exact:
                    continue
                # The smooth maximum is above the larger one of two by (blur - |difference|)^2 / (4 blur).
                np.abs(apart, out=apart)
                np.minimum(apart, 0.5, out=apart)
                apart -= 0.5
                apart *= apart
                apart *= blur_s
                start += apart
            for place, share in enumerate(counted):
                counts[place, own] = share
            ends[own] = start + times_s[own]
        return Ends(ends[:-1], counts)

    def walk(self, durations_s: Callable[[Array, Array], Array], nodes: int, columns: int) -> None:
        """Walks from the first nodes to the last, and gives each node a duration that depends on when it can begin.

        Args:
            durations_s: Returns the durations in s, given some nodes and when they can begin in s, (n, columns).
        """
        ends = np.zeros((nodes + 1, columns))
        for own, sides, _ in self.levels:
            start = np.maximum.reduce([ends[side.at] + side.delay_s for side in sides])
            ends[own] = start + durations_s(own, start)

    def weights(self, ends: Ends, last: Array) -> Array:
        """Returns the derivative of a quantity by each node's duration, per s, (nodes, columns).

        Args:
            last: The quantity's derivative by the end of each of `last_nodes`, per s, (last nodes, columns).
        """
        weights = np.zeros(ends.shares.shape[1:])
        weights[self.last_nodes] = last
        for own, _, sides in reversed(self.levels):
            found = weights[own]
            for side in sides:
                found += weights.take(side.at, axis=0) * ends.shares[side.place, side.at]
            weights[own] = found
        return weights[:-1]

    def latest(self, times_s: Array, deadlines_s: Array) -> Array:
        """Returns for each node the latest end with which all nodes end in time, in s, (nodes, columns).

        Args:
            deadlines_s: When the last node of each column must have ended, in s.
        """
        none = np.zeros((1, times_s.shape[1]))
        needs = np.vstack([times_s, none])
        latest = np.empty(needs.shape)
        latest[-1] = deadlines_s
        for own, _, sides in reversed(self.levels):
            latest[own] = np.minimum.reduce([latest[side.at] - needs[side.at] - side.delay_s for side in sides])
        return latest[:-1]


def neighbours(nodes: int, edges: Iterable[tuple[int, int, float]]) -> tuple[Neighbours, Neighbours]:
    """Returns for each node the nodes that it waits for, and the nodes that wait for it."""
    before: Neighbours = [[] for _ in range(nodes)]
    after: Neighbours = [[] for _ in range(nodes)]
    for first, then, delay_s in edges:
        before[then].append((first, delay_s))
        after[first].append((then, delay_s))
    return before, after


def _sides(nodes: list[int], towards: Neighbours, back: Neighbours) -> list[_Side]:
    """The neighbours of some nodes: `towards` lists those in this direction, `back` those in the other."""
    rows = [
        [(other, delay_s, [there for there, _ in back[other]].index(node)) for other, delay_s in towards[node]]
        for node in nodes
    ]
    none = (len(towards), 0.0, 0)
    sides = []
    for place in range(max(1, *map(len, rows))):
        column = [row[place] if place < len(row) else none for row in rows]
        at, delays_s, places = (np.array(each) for each in zip(*column, strict=True))
        sides.append(_Side(at, delays_s[:, None], places))
    return sides
