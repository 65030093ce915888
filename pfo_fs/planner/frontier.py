"""The time-energy curve from the fastest plan to the one with least energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pfo_fs.errors import ConfigError
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.planner import Planner
from pfo_fs.planner.problem import Problem

MAX_POINTS = 100_000
_CHUNK_NODES = 50_000
"""A chunk of deadlines is planned in one call and has about this many instructions over all its plans."""
_MOST = 100


def even_deadlines(planner: Planner, points: int) -> list[float]:
    """Returns deadlines in s, evenly spaced from the fastest plan's iteration time to that of least energy.

    Raises:
        ConfigError: `points` is below 2 or beyond `MAX_POINTS`.
    """
    if not 2 <= points <= MAX_POINTS:
        raise ConfigError(f"a frontier has 2 to {MAX_POINTS:,} points, not {points}")
    first, last = planner.fastest_s, planner.least_energy_s
    deadlines = [first + (last - first) * number / (points - 1) for number in range(points)]
    return [first, *deadlines[1:-1], last]


def solve_frontier(problem: Problem, deadlines_s: Sequence[float]) -> Iterator[Plan]:
    """Plans for many deadlines, and yields the plan of each different deadline (s) from the shortest to the longest.

    Raises:
        Impossible: A deadline is shorter than the fastest plan's iteration.
    """
    planner = Planner(problem)
    deadlines_s = sorted(set(deadlines_s))
    size = min(_MOST, max(4, _CHUNK_NODES // len(problem.pipeline.instructions)))
    for start in range(0, len(deadlines_s), size):
        yield from planner.at_each(deadlines_s[start : start + size])
