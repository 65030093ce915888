"""Notes whether a host's helper can read and write the shared directory."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from pfo_fs.errors import AlreadyClaimed, PfoError, RecordError, StoreError

log = logging.getLogger("pfo_fs.helper")

FALLBACK_AFTER_S = 600.0
"""If all reads have failed or one call has hung for this time, the directory is lost: ranks go to default clocks."""
_CALM_S = 10.0
"""A directory counts as working again after this time without an error: on a full disk, some writes still succeed."""

Way: TypeAlias = Literal["read", "write"]


class DirectoryHealth:
    """Follows the calls on the directory: those that fail, those that succeed, and one that hangs.

    Logs once when the directory cannot be read or written any more, and once when it can again. Reading may work where
    writing does not, as on a full disk.

    Args:
        monotonic: Returns the time, in seconds.
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
