"""What the helper follows in the directory: which schedule its ranks have, and why they must keep default clocks.

A schedule with a lower (generation, number) than the last one is not followed at once: the read may be stale, or a
leader that was stopped and replaced has written it. But what `current.json` says for long was published by the
scheduling process, which puts it back when another user replaces the file. So if for long the file names an older
schedule, names none, or is gone, the ranks drop what they have, and begin anew with what the file says."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from pfo_fs.errors import AlreadyClaimed, PfoError, RecordError, StoreError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import ScheduleFound, SwitchFound
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
    """

    def __init__(self, interval_s: float | None, around: Around) -> None:
        self.known = (-1, -1)
        self._given_interval_s = interval_s
        self._around = around
        self._since_s = self._next_s = around.now()
        self._is_polling = self._has_restarted = False
        self._lease: tuple[float, int] | None = None
        self._older_since_s: float | None = None  # since when `current.json` names an older schedule than `known`
        self._told: dict[int, str] = {}  # the last text for the log of rank 0, by level
        self.asked_s = 0.0  # the coordinator asks to poll at most once in this time

    def interval_s(self, local_mount: bool) -> float:
        """Returns the seconds between two polls, except while the first schedule is awaited."""
        return self._given_interval_s or max(self.asked_s, 0.25 if local_mount else 2.0)

    def restart(self) -> None:
        """Notes that a rank has joined, which has received no schedule yet."""
        self.known, self._lease = (-1, -1), None
        self._next_s, self._has_restarted = self._around.now(), True

    def due_s(self) -> float:
        """Returns when to poll next; never while a poll is under way."""
        return math.inf if self._is_polling else self._next_s

    def polled(self) -> None:
        """Sets the time of the next poll: soon while the first schedule is awaited, then after one interval."""
        self._is_polling, now_s, local_mount = False, self._around.now(), self._around.local_mount
        if self._has_restarted:  # the new rank has not received what this poll has found
            self._next_s, self._has_restarted = now_s, False
            return
        interval_s, age_s = self.interval_s(local_mount), now_s - self._since_s
        if self.known[1] < 0 and age_s < _SOON_S:
            pause_s = 0.02 if local_mount and age_s < _EAGER_S else min(interval_s, 0.2 + age_s / 10)
            pause_s = max(pause_s, self.asked_s * self._around.jitter.uniform(0.8, 1.2))
        else:
            pause_s = interval_s * self._around.jitter.uniform(0.8, 1.2)
        self._next_s = now_s + pause_s

    def polling(self) -> None:
        self._is_polling, self._has_restarted = True, False

    def learn(self, found: ScheduleFound) -> list[Message]:
        """Uses the result of a poll; returns the messages for the ranks of this host."""
        current = found.current
        if current is not None:
            self.asked_s = current.poll_s
        published = (current.generation, current.number) if current is not None and current.number >= 0 else (-1, -1)
        if published < self.known:
            return self._doubt()
        self._older_since_s = None
        if current is None or current.number < 0:
            return []
        told: list[Message] = []
        lease = current.lease_s, current.heartbeat
        if lease != self._lease:
            self._lease = lease
            told += self.lease(*lease)
        if found.is_complete and (current.generation, current.number) > self.known:
            if found.schedule is not None:
                told.append(found.schedule)
            if not self._has_restarted:
                self.known = current.generation, current.number
        return told

    def _doubt(self) -> list[Message]:
        """Returns the message that drops the last schedule, if the file has named an older one for long."""
        now_s = self._around.now()
        self._older_since_s = now_s if self._older_since_s is None else self._older_since_s
        if now_s - self._older_since_s < BELIEVED_AFTER_S:
            return []
        log.warning(
            "current.json has named no schedule, or an older one than %d of generation %d, for %.0f s: did another "
            "user write the file before? Default clocks, then the schedule that it names now",
            self.known[1],
            self.known[0],
            now_s - self._older_since_s,
        )
        self._older_since_s = None
        self.restart()
        return [SchedulesWithdrawn()]

    def lease(self, lease_s: float, heartbeat: int) -> list[Message]:
        """Returns the message that renews the ranks' lease: the time for which they may follow the schedule.

        Heartbeat 0: the coordinator does not follow the straggler yet, so the lease is not renewed.
        """
        if lease_s and not heartbeat:
            return []
        # The helper sees a renewal up to one poll late, and the next one may be missed.
        return [PaceLeaseRenewed(lease_s=lease_s and lease_s + 2 * self.interval_s(self._around.local_mount))]

    def texts_for_log(self, current: bodies.CurrentBody | None) -> list[tuple[int, str]]:
        """Returns new texts for the log of rank 0, each with its level: a problem, and the status of a lasting plan."""
        if current is None or current.state == "ended":
            return []
        problem = current.message or (current.yaml_problem and f"schedule.yaml: {current.yaml_problem}")
        stays = f"schedule {current.number} stays: {current.status_text}" if current.converged else ""
        before, self._told = self._told, {logging.WARNING: problem, logging.INFO: stays}
        return [(level, text) for level, text in self._told.items() if text and text != before.get(level)]


FALLBACK_AFTER_S = 600.0
"""If all reads have failed or one call has hung for this time, the directory is lost (see `HelperState._hold`)."""
_CALM_S = 10.0
"""A directory counts as working again after this time without an error: on a full disk, some writes still succeed."""
_LOCAL_S, _REMOTE_S = 1.0, 5.0
"""Seconds between two looks at the switch, on a file system of this host and of another host."""
_RANKS_PER_S = 2000.0
"""In large jobs, hosts look so rarely that only those of about 2,000 ranks look in a second."""
_THOROUGH_EVERY = 6
"""Every sixth look also checks whether the job's folder is still there."""
_GONE_AFTER_LOOKS = 3
_GONE_AFTER_S = 3.0
"""Something counts as removed after three looks over three seconds, because one listing may be old."""
_LOOK_AGAIN_S = 1.5
"""What seems to be removed is looked at again soon: three looks take the three seconds above."""

Way: TypeAlias = Literal["read", "write"]
Why: TypeAlias = Literal["", "off", "removed"]


class DirectoryHealth:
    """Follows the calls on the directory: those that fail, those that succeed, and one that hangs.

    Logs once when the directory cannot be read or written any more, and once when it can again. Reading may work where
    writing does not, as on a full disk.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._unread_since: float | None = None
        self._problems: dict[Way, tuple[str, float]] = {}  # each with the time when it was seen last
        self._unfinished_since: deque[float] = deque()

    @property
    def error(self) -> str:
        """Text for the status about what is wrong now; empty if nothing is."""
        return "; ".join(text for text, _ in self._problems.values())

    def started(self) -> None:
        """Notes a call that was given to the worker, which makes one call after the other."""
        self._unfinished_since.append(self._monotonic())

    def finished(self) -> None:
        """Notes that the oldest call that has started is over, whether it failed or not."""
        if self._unfinished_since:
            self._unfinished_since.popleft()

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._unfinished_since

    def ended(self, way: Way, error: PfoError | None) -> None:
        """Notes how a call has ended."""
        now = self._monotonic()
        if error is None:
            if way == "read":
                self._unread_since = None
            if way in self._problems and now - self._problems[way][1] >= _CALM_S:
                del self._problems[way]
                log.warning("the shared directory %s again", "answers" if way == "read" else "can be written")
        elif isinstance(error, (StoreError, RecordError)) and not isinstance(error, AlreadyClaimed):
            text = str(error.args[-1])
            if way not in self._problems:
                what = "does not answer" if way == "read" else "cannot be written"
                log.warning("the shared directory %s; training goes on with its present schedule: %s", what, text)
            if way == "read" and self._unread_since is None:
                self._unread_since = now
            self._problems[way] = text, now

    @property
    def is_lost(self) -> bool:
        """Whether reads have failed, or a call has hung, for `FALLBACK_AFTER_S`; `HelperState._hold` uses it."""
        silent_since = [*self._unfinished_since, *([] if self._unread_since is None else [self._unread_since])]
        return bool(silent_since) and self._monotonic() - min(silent_since) > FALLBACK_AFTER_S


class SwitchWatch:
    """Follows the switch for the ranks of one host.

    Attributes:
        why: Why the ranks of this host must keep default clocks; empty: they need not.
    """

    def __init__(self, around: Around) -> None:
        self.why: Why = ""
        self.is_known = False
        self._around = around
        self._next_s = math.inf
        self._is_looking = False
        self._looks = 0
        self._gone_since_s: float | None = None
        self._gone_looks = 0

    def start(self) -> None:
        """Begins to look at the switch: the directory is known now."""
        self._next_s = min(self._next_s, 0.0)

    def due_s(self) -> float:
        """Returns when to look next; never before `start` and while a look is under way."""
        return math.inf if self._is_looking else self._next_s

    def looking(self) -> bool:
        """Notes that a look is under way; returns whether it must be thorough."""
        self._is_looking = True
        self._looks += 1
        return self._looks % _THOROUGH_EVERY == 0 or self._gone_since_s is not None

    def looked(self, found: object, *, highest_rank: int, asked_s: float) -> None:
        """Uses the answer of a look.

        Args:
            found: A `SwitchFound`; otherwise the directory gives no answer, and everything stays as it is.
            highest_rank: The highest rank of this host: the hosts of a large job look more rarely.
            asked_s: The coordinator asks for no more than one poll in this time.
        """
        self._is_looking = False
        pause_s = max(_LOCAL_S if self._around.local_mount else _REMOTE_S, highest_rank / _RANKS_PER_S, asked_s)
        if isinstance(found, SwitchFound):
            self.learn(found)
            if self._gone_since_s is not None and self.why != "removed":
                pause_s = _LOOK_AGAIN_S
        self._next_s = self._around.now() + pause_s * self._around.jitter.uniform(0.8, 1.2)

    def learn(self, found: SwitchFound) -> None:
        """Uses what was found, by a look or by another operation."""
        self.is_known = True
        if not found.gone:
            self._gone_since_s, self._gone_looks = None, 0
            self.why = "off" if found.off else ""
            return
        now_s = self._around.now()
        self._gone_since_s = now_s if self._gone_since_s is None else self._gone_since_s
        self._gone_looks += 1
        if self._gone_looks >= _GONE_AFTER_LOOKS and now_s - self._gone_since_s >= _GONE_AFTER_S:
            self.why = "removed"
