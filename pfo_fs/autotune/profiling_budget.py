"""The time that profiling takes from training, and whether there may be more of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pfo_fs.models import ProfilingResult

_MORE_ITERATIONS = 2
"""The clocks of a window stay in force for about this many iterations after the measured ones, until results arrive."""


class ProfilingBudget:
    """Adds up how much longer iterations in profiling windows take than at the highest clocks.

    The first profile is made whatever it takes, but counts: the job may profile again only while everything so far is
    within its share.

    Args:
        share: Largest share of the time since the job's start that profiling may take from training.

    Attributes:
        lost_s: Time lost to profiling so far, in s.
    """

    def __init__(self, share: float) -> None:
        self.lost_s = 0.0
        self._share = share
        self._highest_clocks_s: dict[int, float] = {}  # the usual time of an iteration at the highest clocks, by rank

    def use_reference(self, results: Sequence[ProfilingResult]) -> None:
        """Compares later windows with what was measured at the highest clocks."""
        self._highest_clocks_s = _usual_s(results)

    def add_window(self, results: Sequence[ProfilingResult]) -> None:
        """Adds a profiling window; without effect while the highest clocks were not measured.

        Each rank is compared with itself, since iterations of ranks may last differently long: a pipeline waits for a
        slower one, or measures less of a step. A single long iteration, as of a process that was stopped, is no part
        of what profiling takes.

        Args:
            results: What was measured in it.
        """
        highest_s = self._highest_clocks_s
        longer_s = [iter_s - highest_s[rank] for rank, iter_s in _usual_s(results).items() if rank in highest_s]
        if longer_s:
            iterations = median(len(result.iter_time) for result in results) + _MORE_ITERATIONS
            self.lost_s += max(0.0, median(longer_s)) * iterations

    def allows(self, elapsed_s: float) -> bool:
        """Returns whether there may be more profiling, `elapsed_s` seconds after the job's start."""
        return self.lost_s <= self._share * elapsed_s

    def text(self) -> str:
        """Returns what profiling has cost, for the status; empty if nothing yet."""
        return f"profiling took {self.lost_s:.3g} s longer than the highest clocks" if self.lost_s >= 0.005 else ""


def _usual_s(results: Sequence[ProfilingResult]) -> dict[int, float]:
    """Returns the median time of an iteration, in s, by rank."""
    return {result.rank: median(result.iter_time) for result in results if result.iter_time}
