"""Finds plans of (nearly) the same energy with fewer clock changes, because a GPU needs milliseconds for each."""

from __future__ import annotations

from typing import Any

from pfo_fs.planner.columns import NEVER, Columns, latest_of, starts_of

_ROUNDS = 4


def fewer_changes(columns: Columns, options: Any, deadlines: Any, waiting_w: float, allowed_j: Any) -> Any:
    """Returns assignments with no more clock changes, within the deadlines and of (nearly) the same energy.

    Args:
        columns: The problem.
        options: Assignments, as columns.
        deadlines: The longest makespan of each, in s.
        waiting_w: Power of waiting, in W; 0 where the iteration lasts until the deadline in any case.
        allowed_j: Energy that each may take in addition, in J.
    """
    import numpy as np

    def energies(options: Any) -> Any:
        return columns.cost(options) + waiting_w * columns.makespan(options)

    limit = energies(options) + allowed_j
    best, best_changes = options.copy(), columns.changes(options)
    per_change = allowed_j / np.maximum(1, best_changes) / 4
    going: Any = np.ones(len(deadlines), bool)
    for _ in range(_ROUNDS):
        fewer = _with_fewer_changes(columns, best, deadlines, per_change)
        going &= (energies(fewer) <= limit) & (columns.makespan(fewer) <= deadlines)
        changes = columns.changes(fewer)
        taken = going & (changes < best_changes)
        best[:, taken], best_changes[taken] = fewer[:, taken], changes[taken]
        per_change = per_change * 4
        if not going.any():
            break
    return best


def _with_fewer_changes(columns: Columns, options: Any, deadlines: Any, per_change: Any) -> Any:
    """Walks along the DAG once; a node gets a neighbour's clock if that costs less than the change."""
    import numpy as np

    result = options.copy()
    times = columns.time(result)
    latest = latest_of(columns.forwards, times, deadlines)
    clocks = columns.clocks[columns.kind[:, None], result]
    clocks[-1] = -1
    ends: Any = np.zeros_like(times)
    for level in columns.forwards:
        nodes = level.nodes
        kinds = columns.kind[nodes][:, None]
        start = starts_of(level, ends)
        around = clocks[columns.rank_before[nodes]], clocks[columns.rank_after[nodes]]
        best, least = result[nodes], np.full(start.shape, NEVER)
        for option in (result[nodes], *(columns.option_at[kinds, clock] for clock in around)):
            fits = (option >= 0) & ((start + columns.times[kinds, option] <= latest[nodes]) | (option == result[nodes]))
            clock = columns.clocks[kinds, option]
            changes = sum(((other >= 0) & (other != clock)).astype(float) for other in around)
            value = np.where(fits, columns.costs[kinds, option] + per_change * changes, NEVER)
            better = value < least
            best, least = np.where(better, option, best), np.where(better, value, least)
        result[nodes] = best
        clocks[nodes] = columns.clocks[kinds, best]
        ends[nodes] = start + columns.times[kinds, best]
    return result
