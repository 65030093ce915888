"""Decides when to poll for a new schedule, and which messages about it the ranks of this host have not received.

A schedule with a lower (generation, number) than the last one is not followed at once: the read may be stale, or a
leader that was stopped and replaced has written it. But what `current.json` says for long was published by the
scheduling process, which puts it back when another user replaces the file. So if the file names an older schedule, or
none, or is gone for long, the ranks drop what they have, and begin anew with what the file says.
"""

from __future__ import annotations

import logging
import math
import random

from pfo_fs.helper.operations import ScheduleFound
from pfo_fs.ipc.messages import Message, PaceLeaseRenewed, SchedulesWithdrawn
from pfo_fs.store import bodies

log = logging.getLogger("pfo_fs.helper")

BELIEVED_AFTER_S = 10.0
"""An older schedule than the last one is followed when `current.json` has said nothing else for this time."""
_EAGER_S, _SOON_S = 5.0, 30.0
"""While the first schedule is awaited: how long to poll very often on a local mount, and often on any mount."""


class ScheduleWatch:
    """Follows `current.json` for the ranks of one host.

    Args:
        interval_s: Seconds between two polls; None: by the kind of file system.
        jitter: Spreads the polls of many hosts.
    """

    def __init__(self, interval_s: float | None, jitter: random.Random, now_s: float) -> None:
        self.known = (-1, -1)
        self._given_interval_s = interval_s
        self._jitter = jitter
        self._since_s = now_s
        self._next_s = now_s
        self._is_polling = self._has_restarted = False
        self._lease: tuple[float, int] | None = None
        self._older_since_s: float | None = None  # since when `current.json` names an older schedule than `known`
        self._message = ""
        self.asked_s = 0.0  # the coordinator asks to poll at most once in this time

    def interval_s(self, *, local_mount: bool) -> float:
        """Returns the seconds between two polls, except while the first schedule is awaited."""
        return self._given_interval_s or max(self.asked_s, 0.25 if local_mount else 2.0)

    def restart(self, now_s: float) -> None:
        """Notes that a rank has joined, which has received no schedule yet."""
        self.known, self._lease = (-1, -1), None
        self._next_s, self._has_restarted = now_s, True

    def due_s(self) -> float:
        """Returns when to poll next; never while a poll is under way."""
        return math.inf if self._is_polling else self._next_s

    def polled(self, now_s: float, *, local_mount: bool) -> None:
        """Sets the time of the next poll: soon while the first schedule is awaited, later after one interval."""
        self._is_polling = False
        if self._has_restarted:  # the new rank has not received what this poll has found
            self._next_s, self._has_restarted = now_s, False
            return
        interval_s, age_s = self.interval_s(local_mount=local_mount), now_s - self._since_s
        if self.known[1] < 0 and age_s < _SOON_S:
            pause_s = 0.02 if local_mount and age_s < _EAGER_S else min(interval_s, 0.2 + age_s / 10)
            pause_s = max(pause_s, self.asked_s * self._jitter.uniform(0.8, 1.2))
        else:
            pause_s = interval_s * self._jitter.uniform(0.8, 1.2)
        self._next_s = now_s + pause_s

    def polling(self) -> None:
        """Notes that a poll is under way."""
        self._is_polling, self._has_restarted = True, False

    def learn(self, found: ScheduleFound, now_s: float, *, local_mount: bool) -> list[Message]:
        """Uses the result of a poll; returns the messages for the ranks of this host."""
        current = found.current
        if current is not None:
            self.asked_s = current.poll_s
        published = (current.generation, current.number) if current is not None and current.number >= 0 else (-1, -1)
        if published < self.known:
            return self._doubt(now_s)
        self._older_since_s = None
        if current is None or current.number < 0:
            return []
        told: list[Message] = []
        lease = current.lease_s, current.heartbeat
        if lease != self._lease:
            self._lease = lease
            told += self.lease(*lease, local_mount=local_mount)
        if found.is_complete and (current.generation, current.number) > self.known:
            if found.schedule is not None:
                told.append(found.schedule)
            if not self._has_restarted:
                self.known = current.generation, current.number
        return told

    def _doubt(self, now_s: float) -> list[Message]:
        """Returns the message that drops the last schedule, if the file has named an older one for long."""
        self._older_since_s = now_s if self._older_since_s is None else self._older_since_s
        if now_s - self._older_since_s < BELIEVED_AFTER_S:
            return []
        log.warning(
            "current.json has named no schedule, or an older one than %d of generation %d, for %.0f s: did another "
            "user write the file before? Default clocks, then what it says now",
            self.known[1],
            self.known[0],
            now_s - self._older_since_s,
        )
        self._older_since_s = None
        self.restart(now_s)
        return [SchedulesWithdrawn()]

    def lease(self, lease_s: float, heartbeat: int, *, local_mount: bool) -> list[Message]:
        """Returns the message that renews the ranks' lease: the time for which they may follow the schedule.

        Heartbeat 0: the coordinator does not follow the straggler yet, so the lease is not renewed.
        """
        if lease_s and not heartbeat:
            return []
        # The helper sees a renewal up to one poll late, and the next one may be missed.
        return [PaceLeaseRenewed(lease_s=lease_s and lease_s + 2 * self.interval_s(local_mount=local_mount))]

    def text_for_log(self, current: bodies.CurrentBody | None) -> str:
        """Returns the coordinator's text about the job for the log of rank 0, if it is new; else an empty string."""
        if current is None or current.state == "ended":
            return ""
        problem = current.yaml_problem and f"schedule.yaml: {current.yaml_problem}"
        text, before = current.message or problem, self._message
        self._message = text
        return text if text != before else ""
