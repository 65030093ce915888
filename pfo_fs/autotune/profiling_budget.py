"""The time that profiling takes from training, and whether there may be more of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

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

    def add_window(self, results: Sequence[ProfilingResult], highest_clocks_s: float) -> None:
        """Adds a profiling window.

        Args:
            results: What was measured in it.
            highest_clocks_s: Time of an iteration at the highest clocks, in s; 0.0 while it is not known.
        """
        times = [result.iter_time for result in results if result.iter_time]
        if highest_clocks_s > 0 and times:
            iterations = median(len(row) for row in times) + _MORE_ITERATIONS
            self.lost_s += max(0.0, median(fmean(row) for row in times) - highest_clocks_s) * iterations

    def allows(self, elapsed_s: float) -> bool:
        """Returns whether there may be more profiling, `elapsed_s` seconds after the job's start."""
        return self.lost_s <= self._share * elapsed_s

    def text(self) -> str:
        """Returns what profiling has cost, for the status; empty if nothing yet."""
        return f"profiling took {self.lost_s:.3g} s longer than the highest clocks" if self.lost_s >= 0.005 else ""
