"""Whether the shared directory answers, and takes what is written, as a host's helper sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from pfo_fs.errors import RecordError, StoreError

log = logging.getLogger("pfo_fs.helper.host_helper")

_CALM_S = 10.0
"""A directory is in order again if for so long nothing has failed: a full one takes some writes and others not."""

Way: TypeAlias = Literal["read", "write"]


class DirectoryHealth:
    """Follows what becomes of calls on the directory, and says so once when that changes.

    It may answer and take nothing, as a full disk does, or the other way round.

    Args:
        monotonic: The clock.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._unread_since: float | None = None
        self._failed_at: dict[Way, float] = {}
        self._errors: dict[Way, str] = {}

    @property
    def error(self) -> str:
        """What is wrong now, for people; empty if nothing is."""
        return "; ".join(self._errors.values())

    def failed(self, way: Way, error: StoreError | RecordError) -> None:
        """A call has failed."""
        now = self._monotonic()
        if way not in self._errors:
            what = "does not answer" if way == "read" else "takes nothing"
            log.warning("the shared directory %s; training goes on with what it has: %s", what, error.args[-1])
        if way == "read" and self._unread_since is None:
            self._unread_since = now
        self._failed_at[way] = now
        self._errors[way] = str(error.args[-1])

    def succeeded(self, way: Way) -> None:
        """A call has succeeded."""
        if way == "read":
            self._unread_since = None
        if way in self._errors and self._monotonic() - self._failed_at[way] >= _CALM_S:
            del self._errors[way]
            log.warning("the shared directory %s again", "answers" if way == "read" else "takes what is written")

    def unread_s(self) -> float:
        """For how long the directory has not answered, not even now and then, in s."""
        return 0.0 if self._unread_since is None else self._monotonic() - self._unread_since
