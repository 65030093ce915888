"""Decides whether a schedule is measured again because results are missing, and when that is given up."""

from __future__ import annotations

import math

from pfo_fs.coordination.progress import Progress
from pfo_fs.coordination.publication import Publication
from pfo_fs.coordination.rank_registry import list_ranks
from pfo_fs.coordination.results import Results

MOST_REPEATS = 2
"""A schedule is measured again at most this many times, because a rank may be unable to measure."""


class LostResults:
    """Follows the results of the newest schedule. A helper process that dies loses those it has not written.

    Args:
        profile_steps: Iterations that are measured for each schedule.

    Attributes:
        message: Text for the status about missing results; may be empty.
    """

    def __init__(self, profile_steps: int) -> None:
        self.message = ""
        self._profile_steps = profile_steps
        self._repeats = 0

    def must_repeat(self, publication: Publication, progress: Progress, results: Results, now: float) -> bool:
        """Returns whether to measure the newest schedule again: it ran for long enough, but results are missing."""
        since = publication.in_force_step
        if since is None and publication.steps and progress.step >= publication.start_step + publication.steps:
            since = publication.start_step  # the schedule has ended, and ranks no longer report that they follow it
        if since is None or not progress.iteration_s:
            return False
        windows = 4 * (self._profile_steps + 1)
        if progress.step < since + windows + math.ceil(publication.results_take_s(now) / progress.iteration_s):
            return False
        missing = results.missing(publication.number)
        if not missing:
            return False
        self.message = f"{list_ranks(missing)} measured nothing under schedule {publication.number}"
        if self._repeats >= MOST_REPEATS:
            self.message += ", nor when it was repeated. Is a clock process or a helper process dead there?"
            return False
        self.message += "; it is measured again"
        return True

    def repeated(self) -> None:
        """Notes that the schedule was published again."""
        self._repeats += 1

    def forget(self) -> None:
        """Starts afresh: another schedule has replaced this one, or the results have come."""
        self._repeats, self.message = 0, ""
