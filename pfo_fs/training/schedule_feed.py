"""The sources of a rank's schedules, which go to its switcher: the helper of its host, or a broadcast by rank 0.

From the **helper**, ranks receive a schedule at different times, and all switch at its start step. That is far enough
ahead for all ranks to receive the schedule before it. A rank that receives it later follows it at once. A rank that
sees from the numbers that it has missed a schedule goes to default clocks until the next one starts, because other
ranks may be following the missed one.

A **broadcast** (`schedule_broadcaster.py`), where no daemon schedules, comes into force on all ranks at the step at
which the broadcaster returns it, which is the same step on all of them. A rank whose broadcaster is lost goes to
default clocks and stays there, under every schedule, because it can no longer know whether the others follow the same
one. The others notice at the next exchange and do the same.

A schedule that was made for the pace of a straggler holds while the scheduling process renews its lease. When that
ends, each rank goes to default clocks; with a broadcast, rank 0 sends them as a schedule with the number -1, so that
all ranks leave the pace at one step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from pfo_fs.guard import WarnOnce
from pfo_fs.ipc import transport
from pfo_fs.ipc.messages import ClocksHeld, NewSchedule, PaceLeaseRenewed, SchedulesWithdrawn, ToTraining
from pfo_fs.training.schedule_broadcaster import ScheduleBroadcaster
from pfo_fs.training.schedule_switcher import MOST_PENDING, ScheduleSwitcher

# Reasons for default clocks.
_HELD = "held"
_LEASE_OVER = "lease over"
_SCHEDULE_MISSED = "schedule missed"
_BROADCAST_LOST = "broadcast lost"

_HELD_TEXTS = {
    "off": "pfo-fs is switched off here; default clocks until `pfo-fs on`",
    "removed": "the shared directory, or this job's folder in it, was removed; default clocks",
    "lost": "the shared directory has not answered for a long time; default clocks until it does",
}
_LEASE_OVER_TEXT = (
    "the scheduler has not reported in time, and its schedule was made for a straggler that may be gone; default "
    "clocks until it reports again"
)


class ScheduleFeed:
    """What all sources have in common; by itself the source of a job that could not be made, without schedules.

    Args:
        rank: Global rank of this process.
        switcher: Gets the schedules, and the reasons for default clocks.
        monotonic: Returns the time, in seconds.
    """

    def __init__(self, rank: int, switcher: ScheduleSwitcher, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rank = rank
        self._switcher = switcher
        self._monotonic = monotonic
        self._lease_until_s = math.inf

    def step_begin(self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]) -> None:
        """Gives the switcher what is new at this step. Never raises, and waits for a limited time at most.

        Args:
            step: The step that begins.
            iter_time_s: How long the last step took; None before there was one.
            messages: What the helper of this host has sent since the last step.
        """
        for message in messages:
            if isinstance(message, ClocksHeld):
                self._hold(message)
            elif isinstance(message, PaceLeaseRenewed):
                self._lease_until_s = self._monotonic() + message.lease_s if message.lease_s else math.inf
                self._lease_renewed()
            else:
                self._take(message, step)
        if self._lease_until_s != math.inf and self._monotonic() >= self._lease_until_s:
            self._lease_until_s = math.inf
            self._lease_ended()

    def _hold(self, message: ClocksHeld) -> None:
        if message.why:
            self._switcher.suspend(_HELD, _HELD_TEXTS[message.why])
        else:
            self._switcher.resume(_HELD)

    def _take(self, message: ToTraining, step: int) -> None:
        """Uses another message."""

    def _lease_renewed(self) -> None:
        self._switcher.resume(_LEASE_OVER)

    def _lease_ended(self) -> None:
        self._switcher.suspend(_LEASE_OVER, _LEASE_OVER_TEXT)

    def close(self) -> None:
        """Ends the feed, at the end of training; the optimizer closes the link to the helper."""


class HelperFeed(ScheduleFeed):
    """Schedules from the host's helper; see the module's docstring.

    Args:
        rank, switcher, monotonic: As for `ScheduleFeed`.
        at_once: Follow a schedule from the step at which it is received; for a job of one rank that its own helper
            schedules.
    """

    def __init__(
        self,
        rank: int,
        switcher: ScheduleSwitcher,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        at_once: bool = False,
    ) -> None:
        super().__init__(rank, switcher, monotonic)
        self._at_once = at_once
        self._started = -1  # the newest schedule that was received and has started
        self._pending: dict[int, int] = {}  # number and start step of newer ones
        self._missed = False

    def step_begin(self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]) -> None:
        """See `ScheduleFeed`."""
        super().step_begin(step, iter_time_s, messages)
        if self._pending or self._missed:
            self._look_for_gaps(step)

    def _take(self, message: ToTraining, step: int) -> None:
        if isinstance(message, SchedulesWithdrawn):
            self._started, self._pending = -1, {}
            self._switcher.withdraw()
        elif isinstance(message, NewSchedule) and message.number >= 0:  # others come by a broadcast only
            if self._at_once:
                message = msgspec.structs.replace(message, start_step=step)
            self._switcher.expect(message)
            if message.number > self._started:
                self._pending[message.number] = message.start_step
                if len(self._pending) > MOST_PENDING:
                    del self._pending[min(self._pending)]

    def _look_for_gaps(self, step: int) -> None:
        """Requests default clocks while other ranks may follow a schedule that this rank has not received."""
        due = [number for number, start_step in self._pending.items() if start_step <= step]
        if due:
            self._started = max(due)
            self._pending = {number: start for number, start in self._pending.items() if number > self._started}
        # Numbers have no gaps: if none is missed, the highest pending number is the started one plus the count pending.
        known = not self._pending or max(self._pending) - self._started == len(self._pending)
        self._missed = self._started >= 0 and not known
        if self._missed:
            text = f"rank {self._rank} has missed a schedule after number {self._started}"
            self._switcher.suspend(_SCHEDULE_MISSED, f"{text}; default clocks until the next one starts")
        else:
            self._switcher.resume(_SCHEDULE_MISSED)


class BroadcastFeed(ScheduleFeed):
    """Schedules that rank 0 broadcasts; see the module's docstring.

    Args:
        rank, switcher, monotonic: As for `ScheduleFeed`.
        broadcaster: Sends packets from rank 0 to all ranks; None if there is none, then clocks stay at their default.
        warn: Logs warnings.
    """

    def __init__(
        self,
        rank: int,
        switcher: ScheduleSwitcher,
        broadcaster: ScheduleBroadcaster | None,
        warn: WarnOnce,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(rank, switcher, monotonic)
        self._broadcaster = broadcaster
        self._warn = warn
        self._schedule: NewSchedule | None = None  # rank 0: the newest that its helper has sent
        self._lease_over = False
        self._first: bytes | None = None

    def start_with(self, packet: bytes | None) -> None:
        """Keeps the packet that all ranks received while the job was set up; it comes into force at step 0."""
        self._first = packet

    def step_begin(self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]) -> None:
        """See `ScheduleFeed`."""
        super().step_begin(step, iter_time_s, messages)
        broadcaster = self._broadcaster
        if broadcaster is None:
            return
        first, self._first = self._first, None
        for packet in (first, broadcaster.step_begin(step, iter_time_s)):
            if packet is not None:
                self._unpack(packet, step)
        if broadcaster.lost:
            text = f"rank {self._rank}: schedules can no longer be broadcast; default clocks from here on"
            self._switcher.suspend(_BROADCAST_LOST, text)

    def close(self) -> None:
        """Drops the broadcaster's group."""
        if self._broadcaster is not None:
            self._broadcaster.close()

    def _take(self, message: ToTraining, step: int) -> None:
        # The helper of rank 0's host sends to all ranks there; only rank 0 broadcasts for the job.
        if self._rank == 0 and isinstance(message, NewSchedule) and message.number >= 0:
            self._schedule, self._lease_over = message, False
            self._offer(message)

    def _lease_renewed(self) -> None:
        if self._lease_over and self._schedule is not None:
            self._lease_over = False
            self._offer(self._schedule)

    def _lease_ended(self) -> None:
        if self._rank == 0 and self._schedule is not None:
            self._lease_over = True
            self._offer(NewSchedule(number=-1))

    def _offer(self, schedule: NewSchedule) -> None:
        if self._broadcaster is not None:
            self._broadcaster.offer(transport.encode(schedule))

    def _unpack(self, packet: bytes, step: int) -> None:
        try:
            schedule: NewSchedule = transport.decode(packet, NewSchedule)
        except ValueError as error:  # on all ranks alike, because all have the same bytes
            self._warn(f"a broadcast schedule is dropped: {error}", "broadcast packet")
            return
        if schedule.number < 0:
            self._switcher.suspend(_LEASE_OVER, _LEASE_OVER_TEXT if self._rank == 0 else "")
            return
        if self._schedule is None:
            self._schedule = schedule  # the one that all ranks began with
        self._switcher.resume(_LEASE_OVER)
        self._switcher.expect(msgspec.structs.replace(schedule, start_step=step))
