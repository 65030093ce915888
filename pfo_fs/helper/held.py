"""Why a host's ranks must keep default clocks: pfo-fs was switched off, or the directory was removed or is lost."""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from pfo_fs.errors import AlreadyClaimed, PfoError, RecordError, StoreError
from pfo_fs.helper.operations import SwitchFound

log = logging.getLogger("pfo_fs.helper")

FALLBACK_AFTER_S = 600.0
"""If all reads have failed or one call has hung for this time, the directory is lost: ranks go to default clocks."""
_CALM_S = 10.0
"""A directory counts as working again after this time without an error: on a full disk, some writes still succeed."""
_LOCAL_S, _REMOTE_S = 1.0, 5.0
"""Seconds between two looks at the switch, on a file system of this host and of another one."""
_RANKS_PER_S = 2000.0
"""In large jobs, the hosts of about 2,000 ranks look in a second."""
_THOROUGH_EVERY = 6
"""At every sixth look, also whether the job's folder is still there."""
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
        """Whether the directory has not answered for `FALLBACK_AFTER_S`, so that ranks must go to default clocks."""
        silent_since = [*self._unfinished_since, *([] if self._unread_since is None else [self._unread_since])]
        return bool(silent_since) and self._monotonic() - min(silent_since) > FALLBACK_AFTER_S


class SwitchWatch:
    """Follows the switch for the ranks of one host.

    Args:
        jitter: Spreads the looks of many hosts.

    Attributes:
        why: Why the ranks of this host must keep default clocks; empty: they need not.
        is_known: Whether the switch has been read.
    """

    def __init__(self, jitter: random.Random) -> None:
        self.why: Why = ""
        self.is_known = False
        self._jitter = jitter
        self._next_s = math.inf
        self._is_looking = False
        self._looks = 0
        self._gone_since_s: float | None = None
        self._gone_looks = 0

    def start(self) -> None:
        """Has the switch looked at from now on: the directory is known."""
        self._next_s = min(self._next_s, 0.0)

    def due_s(self) -> float:
        """Returns when to look next; never before `start` and while a look is under way."""
        return math.inf if self._is_looking else self._next_s

    def looking(self) -> bool:
        """Notes that a look is under way; returns whether it must be thorough."""
        self._is_looking = True
        self._looks += 1
        return self._looks % _THOROUGH_EVERY == 0 or self._gone_since_s is not None

    def looked(self, found: object, now_s: float, local_mount: bool, *, highest_rank: int, asked_s: float) -> None:
        """Uses the answer.

        Args:
            found: A `SwitchFound`; otherwise the directory gives no answer, and everything stays as it is.
            highest_rank: Of this host: the hosts of a large job look more rarely.
            asked_s: The coordinator asks for no more than one poll in this time.
        """
        self._is_looking = False
        pause_s = max(_LOCAL_S if local_mount else _REMOTE_S, highest_rank / _RANKS_PER_S, asked_s)
        if isinstance(found, SwitchFound):
            self.learn(found, now_s)
            if self._gone_since_s is not None and self.why != "removed":
                pause_s = _LOOK_AGAIN_S
        self._next_s = now_s + pause_s * self._jitter.uniform(0.8, 1.2)

    def learn(self, found: SwitchFound, now_s: float) -> None:
        """Uses what was found, by a look or by another operation."""
        self.is_known = True
        if not found.gone:
            self._gone_since_s, self._gone_looks = None, 0
            self.why = "off" if found.off else ""
            return
        self._gone_since_s = now_s if self._gone_since_s is None else self._gone_since_s
        self._gone_looks += 1
        if self._gone_looks >= _GONE_AFTER_LOOKS and now_s - self._gone_since_s >= _GONE_AFTER_S:
            self.why = "removed"
