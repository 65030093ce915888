"""Leaves out profiling results that cannot be true: they come from files that other users can write to."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

from pfo_fs.models import PER_INSTRUCTION, PER_ITERATION, ProfilingResult

log = logging.getLogger(__name__)

_SHORTEST_S, _LONGEST_S = 1e-9, 1e6
_MOST_J = 1e9
_MOST_W = 1e6
"""Times, energies and powers beyond these are errors of a counter: no window takes a billion J, no GPU a million W."""


def plausible_results(results: Sequence[ProfilingResult], ranks: Collection[int]) -> list[ProfilingResult]:
    """Returns the results that can be true, sorted by rank, at most one per rank; the log names the others.

    The n-th iterations of all of them are of the same step: ranks may begin to measure a step apart, or leave one out.

    Args:
        results: The results from the shared directory.
        ranks: The ranks of the job.
    """
    found: dict[int, ProfilingResult] = {}
    for result in results:
        if result.rank not in ranks:
            log.warning("a profiling result of rank %d is left out: the job has no such rank", result.rank)
        elif result.rank in found:
            log.warning("a second profiling result of rank %d is left out", result.rank)
        elif not is_plausible(result):
            log.warning("the profiling result of rank %d is left out: it holds impossible values", result.rank)
        else:
            found[result.rank] = result
    return _of_common_steps([found[rank] for rank in sorted(found)])


def _of_common_steps(results: list[ProfilingResult]) -> list[ProfilingResult]:
    """Leaves out iterations that not all results have; all stay where less than half would, or steps are not known."""
    if len({tuple(result.iter_step) for result in results}) <= 1:
        return results
    common = set.intersection(*(set(result.iter_step) for result in results))
    if any(not _knows_steps(result) or 2 * len(common) < len(result.iter_step) for result in results):
        return results
    return [_of_steps(result, common) for result in results]


def _knows_steps(result: ProfilingResult) -> bool:
    """Returns whether all of its lists have one entry for each of its steps, which are in order."""
    steps = result.iter_step
    rows = [
        result.iter_time,
        result.iter_energy,
        *(row for rows in _breakdowns(result).values() for row in rows.values()),
    ]
    in_order = all(before < after for before, after in pairwise(steps))
    return in_order and len(result.iter_span) in (0, len(steps)) and all(len(row) == len(steps) for row in rows)


def _of_steps(result: ProfilingResult, steps: Collection[int]) -> ProfilingResult:
    """Returns a result with the iterations of these steps only; its powers stay those of all of them."""
    kept = [number for number, step in enumerate(result.iter_step) if step in steps]
    lists = {name: [row[number] for number in kept if row] for name, row in _lists(result).items()}
    breakdowns = {
        name: {instruction: [row[number] for number in kept] for instruction, row in rows.items()}
        for name, rows in _breakdowns(result).items()
    }
    return result.model_copy(update={**lists, **breakdowns})


def _lists(result: ProfilingResult) -> dict[str, list[Any]]:
    """Returns what a result holds for each iteration, by the name of the field."""
    return {name: getattr(result, name) for name in PER_ITERATION}


def _breakdowns(result: ProfilingResult) -> dict[str, dict[str, list[Any]]]:
    """Returns what it holds for each instruction and iteration."""
    return {name: getattr(result, name) for name in PER_INSTRUCTION}


def is_plausible(result: ProfilingResult) -> bool:
    """Returns whether all times, energies and powers are numbers in the range that a training job can have.

    A time of 0 s is plausible: a timer with coarse ticks measures it.
    """
    times = chain(result.iter_time, result.iter_span, _values(result.time_breakdown.values()))
    energies = chain(result.iter_energy, _values(result.energy_breakdown.values()))
    return (
        all(value == 0 or _SHORTEST_S <= value <= _LONGEST_S for value in times)
        and all(abs(value) <= _MOST_J for value in energies)
        and all(
            abs(one.power) <= _MOST_W and one.error <= _MOST_W and 0 <= one.seconds <= _LONGEST_S
            for one in result.powers
        )
    )


def _values(breakdowns: Iterable[list[list[float]]]) -> Iterable[float]:
    return chain.from_iterable(chain.from_iterable(breakdowns))
