"""Which schedule a rank follows at which step, and where its schedules come from.

Training and the simulator use the same **rule** (`ScheduleSwitcher`). Ranks receive schedules at different times. So
that all run the same schedule at the same step, the schedule in force depends only on which schedules a rank has
received, not on when. At each step, it is the schedule with the highest number among those whose start step has come.
So a schedule is in force until a newer one starts, even if the newer one was published before the start of the first.
A schedule with an end (`Term`) names the schedule that follows it, so that no rank waits for a message at its end.

From the **helper** of its host, a rank receives a schedule well before its start step; a rank that receives it later
follows it at once. A rank that sees from the numbers that it has missed a schedule goes to default clocks until the
next one starts, because other ranks may be following the missed one.

A **broadcast** by rank 0 (`schedule_broadcaster.py`), where no daemon schedules, comes into force on all ranks at the
step at which the broadcaster returns it, which is the same step on all of them. A rank whose broadcaster is lost goes
to default clocks and stays there, under every schedule, because it can no longer know whether the others follow the
same one. The others notice at the next exchange and do the same.

A schedule that was made for the pace of a straggler holds while the scheduling process renews its lease
(`Publication.lease` says for how long). When the lease ends, each rank goes to default clocks. With a broadcast, rank 0
sends a schedule with the number -1, which stands for default clocks, so that all ranks leave the pace at the same step.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec

from pfo_fs.guard import WarnOnce
from pfo_fs.ipc import transport
from pfo_fs.ipc.messages import ClocksHeld, NewSchedule, PaceLeaseRenewed, SchedulesWithdrawn, ToTraining
from pfo_fs.training.schedule_broadcaster import ScheduleBroadcaster
from pfo_fs.turns import MEASURED_BY_HAND, Turn, follows

log = logging.getLogger(__name__)

_OVER = "over"
"""Reason for default clocks: the schedule in force has ended, and this rank lacks the schedule that follows it."""
MOST_PENDING = 64
"""At most this many schedules wait for their start step: far more than are published while one of them travels."""


@dataclass
class ScheduleSwitcher:
    """Brings schedules into force, each at its step, and suspends them while there is a reason for default clocks.

    Args:
        set_schedule: Makes the next step follow a schedule; None: default clocks.
        warn: Called with a text when a schedule is suspended.
        half: The half of this rank (`turns.half_of`).

    Attributes:
        number: The number of the schedule in force, suspended or not; -1 for none.
    """

    set_schedule: Callable[[NewSchedule | None], None]
    warn: Callable[[str], object]
    half: int = 0

    def __post_init__(self) -> None:
        self.number = -1
        self._stays: NewSchedule | None = None  # the newest schedule without an end that was in force
        self._has_ended = False
        self._turns: list[int] = []
        self._pending: dict[int, NewSchedule] = {}
        self._in_force: NewSchedule | None = None
        self._reasons: set[str] = set()

    @property
    def newest(self) -> int:
        """The number of the newest schedule that has arrived."""
        return max(self.number, *self._pending) if self._pending else self.number

    @property
    def is_suspended(self) -> bool:
        """Whether there is a reason for default clocks."""
        return bool(self._reasons)

    @property
    def measured_number(self) -> int:
        """The number of the schedule that a step measures; -1 for none, also while the schedule is suspended."""
        return -1 if self._reasons or self._in_force is None else self._in_force.number

    @property
    def measured_until(self) -> int:
        """The step before which the result of the schedule in force ends; 0: after the job's number of measured steps.

        It is -1 if the rank must not measure, because the schedule was measured before and is followed again.
        """
        schedule = self._in_force
        if schedule is not None and schedule.number != self.number:
            return -1
        if schedule is None or not schedule.turns:
            return 0
        if not schedule.by_hand:
            return schedule.until
        length = len(schedule.turns)
        until = schedule.start_step + 1 + -(-MEASURED_BY_HAND // length) * length  # measuring leaves out the first step
        return min(until, schedule.until or until)

    def has_turn(self, step: int, half: int | None = None) -> bool:
        """Returns whether ranks of a half (None: of this rank's) follow the schedule in force in a step.

        If not, they have default clocks.
        """
        return follows(self._turns, step, self.half if half is None else half)

    def turn(self, step: int) -> Turn:
        own, others = self.has_turn(step), self.has_turn(step, 1 - self.half)
        return Turn(own, own != others)

    def number_at(self, step: int) -> int:
        """Returns the number of the schedule that will be in force at `step`, the next step."""
        return max(
            (number for number, coming in self._pending.items() if coming.start_step <= step), default=self.number
        )

    def expect(self, coming: NewSchedule) -> None:
        """Adds a schedule. One that can never be in force, or that is known already, is ignored."""
        if coming.number <= self.number or coming.number in self._pending:
            return
        for other in self._pending.values():
            if other.number > coming.number and other.start_step <= coming.start_step:
                return  # when `coming` would start, the newer one is in force
        self._pending = {
            number: other
            for number, other in self._pending.items()
            if number > coming.number or other.start_step < coming.start_step
        }
        self._pending[coming.number] = coming
        if len(self._pending) > MOST_PENDING:
            del self._pending[min(self._pending)]

    def withdraw(self) -> None:
        """Drops all schedules, the one in force too: default clocks until another one comes, whatever its number."""
        self.number, self._in_force, self._stays, self._pending = -1, None, None, {}
        self._turns, self._has_ended = [], False
        self._reasons.discard(_OVER)
        self.set_schedule(None)

    def step_begin(self, step: int) -> NewSchedule | None:
        """Does what is due at this step; returns the schedule that comes into force now, or None."""
        started = None
        number = self.number_at(step)
        if number > self.number:
            started = self._pending[number]
            due = [self._pending.pop(one) for one in sorted(self._pending) if self._pending[one].start_step <= step]
            self._in_force, self.number = started, number
            self._turns, self._has_ended = started.turns, False
            # This can be a schedule whose place a newer one takes at once: the newer one may name it as the next.
            self._stays = next((one for one in reversed(due) if not one.until or one.after == one.number), self._stays)
            self._reasons.discard(_OVER)
            self.set_schedule(None if self._reasons else started)
        if self._in_force is not None and 0 < self._in_force.until <= step and not self._has_ended:
            self._end(self._in_force)
        return started

    def _end(self, ended: NewSchedule) -> None:
        """Goes on with the schedule that is to follow the schedule in force; default clocks if this rank lacks it."""
        self._has_ended, self._turns = True, []
        if ended.after == ended.number:
            return
        if self._stays is not None and self._stays.number == ended.after:
            self._in_force = self._stays
            self._turns = [] if self._stays.until else self._stays.turns
            if not self._reasons:
                self.set_schedule(self._stays)
            return
        log.debug("schedule %d has ended, and no other one has come; default clocks until one comes", ended.number)
        self.suspend(_OVER, "")

    def suspend(self, reason: str, text: str) -> None:
        """Sets default clocks until `resume` for this reason, also under schedules that come into force meanwhile."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self.set_schedule(None)
            if text:
                self.warn(text)

    def resume(self, reason: str) -> None:
        """Ends a suspension; when no reason is left, the schedule in force is followed again.

        A schedule that only measures is not followed again: ranks would measure it from different steps on. A person's
        schedule is followed again, until its end.
        """
        if reason not in self._reasons:
            return
        self._reasons.remove(reason)
        if self._reasons or self._in_force is None:
            return
        if self._in_force is self._stays or (self._in_force.by_hand and not self._has_ended):
            self.set_schedule(self._in_force)
        else:
            self._end(self._in_force)


# Reasons for default clocks.
_HELD, _LEASE_OVER, _SCHEDULE_MISSED, _BROADCAST_LOST = "held", "lease over", "schedule missed", "broadcast lost"

_HELD_TEXTS = {
    "off": "pfo-fs is switched off here; default clocks until `pfo-fs on`",
    "removed": "the shared directory, or this job's folder in it, was removed; default clocks",
    "lost": "the shared directory has not answered for a long time; default clocks until it does",
}
_LEASE_OVER_TEXT = (
    "the scheduler has not reported in time, and its schedule was made for a straggler that may be gone; default "
    "clocks until it reports again"
)


@dataclass
class ScheduleFeed:
    """Schedules from the host's helper; see the module's docstring. A job that could not be made gets none.

    Args:
        switcher: Gets the schedules, and the reasons for default clocks.
        at_once: Follow a schedule from the step at which it is received; for a job of one rank that its own helper
            schedules.
    """

    rank: int
    switcher: ScheduleSwitcher
    _: KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    at_once: bool = False

    def __post_init__(self) -> None:
        self._lease_until_s = math.inf
        self._received: set[int] = set()  # numbers of schedules that have not started

    def step_begin(self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]) -> None:
        """Gives the switcher what the helper has sent until this step; `BroadcastFeed` then adds what rank 0 has sent.

        Never raises, and waits for a limited time at most. `iter_time_s` is None in the first step.
        """
        for message in messages:
            if isinstance(message, ClocksHeld) and message.why:
                self.switcher.suspend(_HELD, _HELD_TEXTS[message.why])
            elif isinstance(message, ClocksHeld):
                self.switcher.resume(_HELD)
            elif isinstance(message, PaceLeaseRenewed):
                self._lease_until_s = self.monotonic() + message.lease_s if message.lease_s else math.inf
                self._lease_renewed()
            else:
                self._take(message, step)
        if self._lease_until_s != math.inf and self.monotonic() >= self._lease_until_s:
            self._lease_until_s = math.inf
            self._lease_ended()
        self._look_for_gaps(step)

    def _take(self, message: ToTraining, step: int) -> None:
        if isinstance(message, SchedulesWithdrawn):
            self._received.clear()
            self.switcher.withdraw()
        elif isinstance(message, NewSchedule) and message.number >= 0:  # negative numbers are only broadcast
            if self.at_once:
                message = _moved(message, step)
            self.switcher.expect(message)
            self._received.add(message.number)
            if len(self._received) > MOST_PENDING:
                self._received.remove(min(self._received))

    def _look_for_gaps(self, step: int) -> None:
        """Requests default clocks while other ranks may follow a schedule that this rank has not received."""
        started = self.switcher.number_at(step)
        self._received = {number for number in self._received if number > started}
        # Numbers have no gaps: if none is missed, the newest number is the started one plus the count of newer ones.
        if started >= 0 and max(self._received, default=started) - started > len(self._received):
            text = f"a schedule after number {started} came too late for rank {self.rank}"
            self.switcher.suspend(_SCHEDULE_MISSED, f"{text}; default clocks until the next one starts")
        else:
            self.switcher.resume(_SCHEDULE_MISSED)

    def _lease_renewed(self) -> None:
        self.switcher.resume(_LEASE_OVER)

    def _lease_ended(self) -> None:
        self.switcher.suspend(_LEASE_OVER, _LEASE_OVER_TEXT)

    def close(self) -> None:
        """Ends the feed, at the end of training; the optimizer closes the link to the helper."""


@dataclass
class BroadcastFeed(ScheduleFeed):
    """Schedules that rank 0 broadcasts; see the module's docstring.

    Args:
        broadcaster: Sends packets from rank 0 to all ranks; None if there is none, then clocks stay at their default.
    """

    broadcaster: ScheduleBroadcaster | None
    warn: WarnOnce

    def __post_init__(self) -> None:
        super().__post_init__()
        self._schedule: NewSchedule | None = None  # on rank 0: the newest schedule that its helper has sent
        self._lease_over = False

    def step_begin(self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]) -> None:
        super().step_begin(step, iter_time_s, messages)
        broadcaster = self.broadcaster
        if broadcaster is None:
            return
        if (packet := broadcaster.step_begin(step, iter_time_s)) is not None:
            self._unpack(packet, step)
        if broadcaster.lost:
            text = f"rank {self.rank}: schedules can no longer be broadcast; default clocks from here on"
            self.switcher.suspend(_BROADCAST_LOST, text)

    def close(self) -> None:
        if self.broadcaster is not None:
            self.broadcaster.close()

    def _take(self, message: ToTraining, step: int) -> None:
        # The helper of rank 0's host sends to all ranks there; only rank 0 broadcasts for the job.
        if self.rank == 0 and isinstance(message, NewSchedule) and message.number >= 0:
            self._schedule, self._lease_over = message, False
            self._offer(message)

    def _lease_renewed(self) -> None:
        if self._lease_over and self._schedule is not None:
            self._lease_over = False
            self._offer(self._schedule)

    def _lease_ended(self) -> None:
        if self.rank == 0 and self._schedule is not None:
            self._lease_over = True
            self._offer(NewSchedule(number=-1))

    def _offer(self, schedule: NewSchedule) -> None:
        if self.broadcaster is not None:
            self.broadcaster.offer(transport.encode(schedule))

    def _unpack(self, packet: bytes, step: int) -> None:
        try:
            schedule: NewSchedule = transport.decode(packet, NewSchedule)
        except ValueError as error:  # on all ranks alike, because all have the same bytes
            self.warn(f"a broadcast schedule is dropped: {error}", "broadcast packet")
            return
        if schedule.number < 0:
            self.switcher.suspend(_LEASE_OVER, _LEASE_OVER_TEXT if self.rank == 0 else "")
            return
        if self._schedule is None:
            self._schedule = schedule  # the schedule that all ranks began with
        self.switcher.resume(_LEASE_OVER)
        self.switcher.expect(_moved(schedule, step))


def _moved(schedule: NewSchedule, step: int) -> NewSchedule:
    """Returns the schedule with its start moved to `step`; it keeps its length, or the end that a person named."""
    is_relative = schedule.until and not schedule.by_hand
    until = max(step + 1, schedule.until + step - schedule.start_step) if is_relative else schedule.until
    return msgspec.structs.replace(schedule, start_step=step, until=until)
