"""Longest paths through a pipeline for many sets of durations at once: arrays with a row per node, a column per set.

Of several nodes that another one waits for, the one that is ready last counts. With a blur above zero, two of them
count in part where they are ready at nearly the same time: the length is then a little longer, but smooth in the
durations.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pfo_fs.planner.columns import levels_of
from pfo_fs.planner.problem import Problem

_BEFORE_ALL_S = -1e9
"""When a neighbour that does not exist is ready."""
_LEAST_BLUR_S = 1e-12
"""Without a blur, what is ready at nearly the same time shares alike: rounding errors do not choose."""


class _Side(NamedTuple):
    """One neighbour of each node of a level: those at the same place of the nodes' lists of neighbours.

    Attributes:
        at: Positions of the neighbours; the number of nodes where there is none, (n,).
        delay_s: Delays between the node and this neighbour, (n, 1).
        own: Whether this neighbour is the next one on the same rank, (n, 1).
        place: At which place of that neighbour's list this node is, (n,).
    """

    at: Any
    delay_s: Any
    own: Any
    place: Any


class _Level(NamedTuple):
    """Nodes that do not depend on each other, those at the positions `begin` to `end`, and their neighbours."""

    begin: int
    end: int
    before: list[_Side]
    after: list[_Side]


class Ends(NamedTuple):
    """When nodes end.

    Attributes:
        ends_s: The ends in s, (nodes, columns).
        shares: How much each node that waits counts on each of those it waits for; for `LongestPaths.weights`.
    """

    ends_s: Any
    shares: Any


class LongestPaths:
    """The DAG of a problem.

    Attributes:
        last: The nodes that no other one waits for.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        pipeline = problem.pipeline
        ranks = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
        levels = levels_of(pipeline.topological, problem.before, problem.after)
        self.last: Any = np.array([node for node, after in enumerate(problem.after) if not after])
        self._order: Any = np.concatenate([level.nodes for level in levels])
        self._position: Any = np.empty(len(ranks), int)
        self._position[self._order] = np.arange(len(ranks))
        bounds = pairwise(accumulate([0, *(len(level.nodes) for level in levels)]))
        self._levels = [
            _Level(
                *ends,
                self._sides(level.nodes.tolist(), problem.before, problem.after, ranks),
                self._sides(level.nodes.tolist(), problem.after, problem.before, ranks),
            )
            for level, ends in zip(levels, bounds, strict=True)
        ]
        self._places = max(len(level.before) for level in self._levels)

    def _sides(
        self,
        nodes: list[int],
        neighbours: list[list[tuple[int, float]]],
        back: list[list[tuple[int, float]]],
        ranks: list[int],
    ) -> list[_Side]:
        import numpy as np

        rows = [
            [
                (
                    int(self._position[other]),
                    delay_s,
                    abs(other - node) == 1 and ranks[other] == ranks[node],
                    [node_back for node_back, _ in back[other]].index(node),
                )
                for other, delay_s in neighbours[node]
            ]
            for node in nodes
        ]
        none = (len(ranks), 0.0, False, 0)
        sides = []
        for place in range(max(1, *map(len, rows))):
            column = [row[place] if place < len(row) else none for row in rows]
            at, delays_s, own, places = (np.array(each) for each in zip(*column, strict=True))
            sides.append(_Side(at, delays_s[:, None], own[:, None], places))
        return sides

    def ends(self, times_s: Any, blur_s: float = 0.0, lost_s: Any = None, *, shares: bool = True) -> Ends:
        """Returns when nodes end that begin as early as possible.

        Args:
            times_s: Duration of each node, in s, (nodes, columns).
            blur_s: Two neighbours that are ready within this time of each other both count, in s.
            lost_s: For how long the rank stands still before each node, in s, like `times_s`; None: never.
            shares: Whether `weights` will be asked for.
        """
        import numpy as np

        is_exact, blur_s = blur_s == 0, max(blur_s, _LEAST_BLUR_S)
        nodes, columns = times_s.shape
        times_s = times_s.take(self._order, axis=0)
        lost_s = None if lost_s is None else lost_s[self._order]
        ends: Any = np.empty((nodes + 1, columns))
        ends[-1] = _BEFORE_ALL_S
        counts: Any = np.zeros((self._places, nodes + 1, columns)) if shares else None
        for begin, end, sides, _ in self._levels:
            start: Any = 0.0
            for place, side in enumerate(sides if begin else ()):
                ready = ends.take(side.at, axis=0)
                ready += side.delay_s
                if lost_s is not None:
                    ready += side.own * lost_s[begin:end]
                if place == 0:
                    start = ready
                    if shares:
                        counts[0, begin:end] = 1.0
                    continue
                apart = ready - start
                apart *= 0.5 / blur_s
                np.maximum(start, ready, out=start)
                if shares:
                    share = counts[place, begin:end]
                    np.minimum(np.maximum(apart, -0.5), 0.5, out=share)
                    share += 0.5
                    counts[:place, begin:end] *= 1.0 - share
                if is_exact:
                    continue
                # The smooth maximum is above the larger one of two by (blur - |difference|)^2 / (4 blur).
                np.abs(apart, out=apart)
                np.minimum(apart, 0.5, out=apart)
                apart -= 0.5
                apart *= apart
                apart *= blur_s
                start += apart
            np.add(start, times_s[begin:end], out=ends[begin:end])
        return Ends(ends.take(self._position, axis=0), counts)

    def weights(self, ends: Ends, last: Any) -> Any:
        """Returns by how much something grows per second of each node, (nodes, columns).

        Args:
            ends: What `ends` returned.
            last: By how much it grows per second by which each of the last nodes ends later, (last nodes, columns).
        """
        import numpy as np

        weights: Any = np.zeros(ends.shares.shape[1:])
        weights[self._position[self.last]] = last
        for begin, end, _, sides in reversed(self._levels):
            found = weights[begin:end]
            for side in sides:
                found += weights.take(side.at, axis=0) * ends.shares[side.place, side.at]
        return weights[self._position]

    def latest(self, times_s: Any, deadlines_s: Any, lost_s: Any = None) -> Any:
        """Returns when nodes must have ended so that all end in time, in s, (nodes, columns).

        Args:
            times_s: Duration of each node, in s, (nodes, columns).
            deadlines_s: When the last node of each column must have ended, in s.
            lost_s: As in `ends`.
        """
        import numpy as np

        nodes, columns = times_s.shape
        needs: Any = np.zeros((nodes + 1, columns))
        needs[:-1] = times_s[self._order]
        lost: Any = np.zeros((nodes + 1, 1))
        if lost_s is not None:
            lost = np.vstack([lost_s[self._order], np.zeros((1, columns))])
        latest: Any = np.empty((nodes + 1, columns))
        latest[-1] = deadlines_s
        for begin, end, _, sides in reversed(self._levels):
            must = [
                latest[s.at] - needs[s.at] - s.delay_s - s.own * lost[s.at if lost_s is not None else [-1]]
                for s in sides
            ]
            latest[begin:end] = np.minimum.reduce(must)
        return latest[self._position]
