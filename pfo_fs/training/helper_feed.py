"""Schedules from the host's helper: ranks receive one at different times, and all switch at its start step.

The start step is far enough ahead for all ranks to receive the schedule before it. A rank that receives it later
follows it at once. A rank that sees from the numbers that it has missed a schedule goes to default clocks until the
next one starts, because other ranks may be following the missed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pfo_fs.ipc.messages import ClocksHeld, NewSchedule, PaceLeaseRenewed, SchedulesWithdrawn, ToTraining
from pfo_fs.training.pace_lease import PaceLease
from pfo_fs.training.schedule_feed import (
    LEASE_OVER,
    LEASE_OVER_TEXT,
    SCHEDULE_MISSED,
    ScheduleUpdate,
    held,
    pending_for,
)
from pfo_fs.training.schedule_switcher import Resume, Suspend, Withdraw

_MOST_PENDING = 64


class HelperFeed:
    """See the module's docstring.

    Args:
        rank: Global rank of this process.
        at_once: Follow a schedule from the step at which it is received; for a job of one rank that its own helper
            schedules.
        monotonic: Returns the time, in seconds.
    """

    def __init__(self, rank: int, *, at_once: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rank = rank
        self._at_once = at_once
        self._lease = PaceLease(monotonic)
        self._started = -1  # the newest schedule that was received and has started
        self._pending: dict[int, int] = {}  # number and start step of newer ones
        self._missed = False

    def step_begin(
        self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]
    ) -> Sequence[ScheduleUpdate]:
        """See `ScheduleFeed`."""
        updates: list[ScheduleUpdate] = []
        for message in messages:
            self._take(message, step, updates)
        if self._lease.has_just_ended():
            updates.append(Suspend(LEASE_OVER, LEASE_OVER_TEXT))
        if self._pending or self._missed:
            self._look_for_gaps(step, updates)
        return updates

    def close(self) -> None:
        """Does nothing: the optimizer closes the link to the helper."""

    def _take(self, message: ToTraining, step: int, updates: list[ScheduleUpdate]) -> None:
        if isinstance(message, NewSchedule):
            if message.number < 0:
                return  # only the broadcast uses it
            start_step = step if self._at_once else message.start_step
            updates.append(pending_for(self._rank, message, start_step))
            if message.number > self._started:
                self._pending[message.number] = start_step
                if len(self._pending) > _MOST_PENDING:
                    del self._pending[min(self._pending)]
        elif isinstance(message, SchedulesWithdrawn):
            self._started, self._pending = -1, {}
            updates.append(Withdraw())
        elif isinstance(message, PaceLeaseRenewed):
            self._lease.renew(message.lease_s)
            updates.append(Resume(LEASE_OVER))
        elif isinstance(message, ClocksHeld):
            updates.append(held(message))

    def _look_for_gaps(self, step: int, updates: list[ScheduleUpdate]) -> None:
        """Requests default clocks while other ranks may follow a schedule that this rank has not received."""
        due = [number for number, start_step in self._pending.items() if start_step <= step]
        if due:
            self._started = max(due)
            self._pending = {number: start for number, start in self._pending.items() if number > self._started}
        # Numbers have no gaps: if none is missed, the highest pending number is the started one plus the count pending.
        known = not self._pending or max(self._pending) - self._started == len(self._pending)
        missed = self._started >= 0 and not known
        if missed and not self._missed:
            text = f"rank {self._rank} has missed a schedule after number {self._started}"
            updates.append(Suspend(SCHEDULE_MISSED, f"{text}; default clocks until the next one starts"))
        elif self._missed and not missed:
            updates.append(Resume(SCHEDULE_MISSED))
        self._missed = missed
