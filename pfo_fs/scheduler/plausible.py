"""Leaves out profiling results that cannot be true: they come from files that other users can write to."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from pfo_fs.models import ProfilingResult

log = logging.getLogger(__name__)

_SHORTEST_S, _LONGEST_S = 1e-9, 1e6
_MOST_J = 1e9
_MOST_W = 1e6


def plausible_results(results: Sequence[ProfilingResult], ranks: Collection[int]) -> list[ProfilingResult]:
    """Returns the results that can be true, sorted by rank, at most one per rank; the log names the others.

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
    return [found[rank] for rank in sorted(found)]


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
