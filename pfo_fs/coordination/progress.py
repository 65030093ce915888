"""The step that training has reached, as the host of rank 0 reports it."""

from __future__ import annotations

import math

from pfo_fs.coordination.poll_pace import PollPace
from pfo_fs.store import JobFolder, bodies

_READ_EVERY_S = 1.0
_MAY_BE_OLD_S = 8.0
"""A record that was there at the first reading counts as new after this time without a newer one: training waits."""


class Progress:
    """The steps of one job.

    Args:
        pace: Knows how long a new schedule takes to reach all ranks.
        now: Monotonic time, in s.

    Attributes:
        step: The newest step known; -1 for none.
        number: The number of the schedule that the ranks of that host follow at that step.
        iteration_s: How long an iteration takes, in s; 0.0 while that is not known.
    """

    def __init__(self, folder: JobFolder, pace: PollPace, now: float) -> None:
        self.step = self.number = -1
        self.iteration_s = 0.0
        self._folder = folder
        self._pace = pace
        self._since = self._first_seen = now
        self._read = -math.inf
        self._found = -1  # the step in the record that was there at the first reading

    @property
    def is_awaited(self) -> bool:
        """Whether there is a record of progress, but it may be old, so that the step is not known yet."""
        return self.step < 0 <= self._found

    def poll(self, now: float) -> bool:
        """Reads the progress, at most once a second; returns whether training has reached another step.

        Args:
            now: Monotonic time, in s.
        """
        if now - self._read < min(_READ_EVERY_S, self._pace.lead_s(now)):
            return False
        is_first, not_yet_there = math.isinf(self._read), max(self._read, self._first_seen)
        self._read = now
        # By listing: an NFS client remembers for half a minute that a name was not there.
        if self.step < 0 and 0 not in self._folder.numbers(bodies.ProgressBody):
            return False
        body = self._folder.read(bodies.ProgressBody, name=0)
        # All ranks are at the same step; that of a rank whose clock process has died stays as it was.
        mine = max(body.ranks, key=lambda rank: rank.step, default=None) if body else None
        if mine is None or mine.step < 0:
            return False
        self.number = mine.number
        if mine.step == self.step:
            return False
        if is_first:
            self._found = mine.step  # how old the record is, this coordinator cannot know: it replaces another one
        if mine.step == self._found and now - self._first_seen < _MAY_BE_OLD_S:
            return False
        # The record was written between the last reading and this one.
        self.step, self._since = mine.step, not_yet_there - mine.step_age_s
        self.iteration_s = max(0.0, mine.iter_time or 0.0)
        return True

    def start_step(self, now: float) -> int:
        """Returns the first step of a schedule written now: far enough ahead for every rank to receive it before.

        Args:
            now: Monotonic time, in s.
        """
        if self.step < 0:
            return 0
        if not self.iteration_s:
            return self.step + 2
        return self.step + 1 + math.ceil((now - self._since + self._pace.lead_s(now)) / self.iteration_s)
