"""Results that never come: which schedule is measured again for them, and when that is given up."""

from __future__ import annotations

import math

from pfo_fs.coordination.progress import Progress
from pfo_fs.coordination.publication import Publication
from pfo_fs.coordination.rank_registry import list_ranks
from pfo_fs.coordination.results import Results

MOST_REPEATS = 2
"""How often a schedule is measured again at most: a rank may be unable to measure."""


class LostResults:
    """Follows the results of the newest schedule. A helper process that dies takes some along.

    Args:
        profile_steps: Iterations that are measured for each schedule.

    Attributes:
        message: What is missing, for people; empty if nothing is.
    """

    def __init__(self, profile_steps: int) -> None:
        self.message = ""
        self._profile_steps = profile_steps
        self._repeats = 0

    def must_repeat(self, publication: Publication, progress: Progress, results: Results) -> bool:
        """Whether the newest schedule must be measured again: it was followed for long, and results are missing."""
        since = publication.in_force_step
        if since is None and publication.steps and progress.step >= publication.start_step + publication.steps:
            since = publication.start_step  # it is over, and ranks do not report any more that they have followed it
        if since is None or not progress.iteration_s:
            return False
        windows = 4 * (self._profile_steps + 1)
        if progress.step < since + windows + math.ceil(publication.results_take_s / progress.iteration_s):
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
        """The schedule was published again."""
        self._repeats += 1

    def forget(self) -> None:
        """Another schedule is in its place, or its results have come."""
        self._repeats, self.message = 0, ""
