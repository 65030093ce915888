"""Schedules where no daemon schedules: rank 0's helper makes them, and a broadcast carries them to all ranks.

A packet comes into force on all ranks at the step at which the broadcaster returns it, which is the same step on all of
them. When the lease ends (`pace_lease.py`), rank 0 broadcasts default clocks, as a schedule with the number -1, so that
all ranks leave the pace of a straggler at one step.

A rank whose broadcaster is lost goes to default clocks and stays there, under every schedule, because it can
no longer know whether the others follow the same one. The others notice at the next exchange and do the same (see
`schedule_broadcaster.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pfo_fs.ipc import transport
from pfo_fs.ipc.messages import ClocksHeld, NewSchedule, PaceLeaseRenewed, ToTraining
from pfo_fs.training.pace_lease import PaceLease
from pfo_fs.training.schedule_feed import (
    BROADCAST_LOST,
    LEASE_OVER,
    LEASE_OVER_TEXT,
    ScheduleUpdate,
    held,
    pending_for,
)
from pfo_fs.training.schedule_switcher import Resume, Suspend
from pfo_fs.training.warn_once import WarnOnce


class Broadcaster(Protocol):
    """What the feed needs of a `ScheduleBroadcaster`."""

    lost: bool

    def offer(self, packet: bytes) -> None:
        """On rank 0: gives the packet to send next; it replaces one that is not under way yet."""

    def step_begin(self, step: int, iter_time_s: float | None) -> bytes | None:
        """Does what is due at this step; returns the packet that comes into force with it, on all ranks."""

    def close(self) -> None:
        """Drops the group."""


class BroadcastFeed:
    """See the module's docstring.

    Args:
        rank: Global rank of this process.
        broadcaster: Sends packets from rank 0 to all ranks; None if there is none, then clocks stay at their default.
        warn: Logs warnings.
        monotonic: Returns the time, in seconds.
    """

    def __init__(
        self,
        rank: int,
        broadcaster: Broadcaster | None,
        warn: WarnOnce,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._broadcaster = broadcaster
        self._warn = warn
        self._schedule: NewSchedule | None = None  # rank 0: the newest that its helper has sent
        self._lease = PaceLease(monotonic)
        self._lease_over = False
        self._lost_said = False
        self._first: bytes | None = None

    def start_with(self, packet: bytes | None) -> None:
        """Keeps the packet that all ranks received while the job was set up; it comes into force at step 0."""
        self._first = packet

    def step_begin(
        self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]
    ) -> Sequence[ScheduleUpdate]:
        """See `ScheduleFeed`."""
        updates: list[ScheduleUpdate] = []
        for message in messages:
            self._take(message, updates)
        if self._lease.has_just_ended() and self._schedule is not None:
            self._lease_over = True
            self._offer(NewSchedule(number=-1))
        broadcaster = self._broadcaster
        if broadcaster is None:
            return updates
        packet, self._first = self._first, None
        if packet is not None:
            self._unpack(packet, step, updates)
        packet = broadcaster.step_begin(step, iter_time_s)
        if packet is not None:
            self._unpack(packet, step, updates)
        if broadcaster.lost and not self._lost_said:
            self._lost_said = True
            text = f"rank {self._rank}: schedules can no longer be broadcast; default clocks from here on"
            updates.append(Suspend(BROADCAST_LOST, text))
        return updates

    def close(self) -> None:
        """Drops the broadcaster's group."""
        if self._broadcaster is not None:
            self._broadcaster.close()

    def _take(self, message: ToTraining, updates: list[ScheduleUpdate]) -> None:
        if isinstance(message, ClocksHeld):
            updates.append(held(message))
        elif self._rank != 0:
            return  # the helper of rank 0's host sends to all ranks there; only rank 0 broadcasts for the job
        elif isinstance(message, NewSchedule) and message.number >= 0:
            self._schedule = message
            self._lease_over = False
            self._offer(message)
        elif isinstance(message, PaceLeaseRenewed):
            self._lease.renew(message.lease_s)
            if self._lease_over and self._schedule is not None:
                self._lease_over = False
                self._offer(self._schedule)

    def _offer(self, schedule: NewSchedule) -> None:
        if self._broadcaster is not None:
            self._broadcaster.offer(transport.encode(schedule))

    def _unpack(self, packet: bytes, step: int, updates: list[ScheduleUpdate]) -> None:
        try:
            schedule: NewSchedule = transport.decode(packet, NewSchedule)
        except ValueError as error:  # on all ranks alike, because all have the same bytes
            self._warn(f"a broadcast schedule is dropped: {error}", "broadcast packet")
            return
        if schedule.number < 0:
            updates.append(Suspend(LEASE_OVER, LEASE_OVER_TEXT if self._rank == 0 else ""))
        else:
            if self._schedule is None:
                self._schedule = schedule  # the one that all ranks began with
            updates.append(Resume(LEASE_OVER))
            updates.append(pending_for(self._rank, schedule, step))
