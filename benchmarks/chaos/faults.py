"""The system calls of one simulated process, which may fail, freeze in the middle, or be its last."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from pfo_fs.store.file_systems import SystemCalls

CHANGES = frozenset(("write", "fsync", "fchmod", "replace", "rename", "link", "unlink", "mkdir", "rmdir"))
ERRORS = (
    errno.EIO,
    errno.ESTALE,
    errno.ENOSPC,
    errno.EROFS,
    errno.EACCES,
    errno.EDQUOT,
    errno.ETIMEDOUT,
    errno.EOPNOTSUPP,
)
NEVER = 1 << 60


class Killed(BaseException):
    """The process has been killed: none of its code runs after this, and no handler of errors either."""


class Calls(SystemCalls):
    """What one process asks of the file system.

    Attributes:
        error: The error of failing calls; 0: none fail.
        share: The share of calls that fail.
        forgets: The share of listings that lack their newest name, as of a network client with an old listing.
        dies_in: The process dies at this many changes from now.
        freezes_in: The process is stopped at this many calls from now; `frozen` lets the rest of the world go on.
    """

    def __init__(self, random: Random, frozen: Callable[[], None], *, links: bool) -> None:
        self.error = 0
        self.share = 0.0
        self.forgets = 0.0
        self.dies_in = self.freezes_in = NEVER
        self.dead = False
        self._random = random
        self._frozen = frozen
        self._links = links
        for name in vars(SystemCalls):
            if not name.startswith("_") and name != "close":
                setattr(self, name, self._wrap(name, getattr(SystemCalls, name)))

    @property
    def is_healthy(self) -> bool:
        """Whether no fault is under way."""
        return not self.error and not self.forgets

    def heal(self) -> None:
        """Ends all faults, and those that were to come."""
        self.error, self.share, self.forgets = 0, 0.0, 0.0
        self.dies_in = self.freezes_in = NEVER

    def _wrap(self, name: str, real: Any) -> Any:
        changes = name in CHANGES

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Killed
            self.freezes_in -= 1
            if self.freezes_in <= 0:
                self.freezes_in = NEVER
                self._frozen()
                if self.dead:
                    raise Killed
            if changes:
                self.dies_in -= 1
                if self.dies_in <= 0:
                    self._die(name, real, args)
            if self.error and self._random.random() < self.share:
                if changes and self._random.random() < 0.2 and name not in ("write", "fsync"):
                    with suppress(OSError):  # done on the server; only the answer is lost
                        real(*args, **kwargs)
                raise OSError(self.error, os.strerror(self.error))
            if name == "link" and not self._links:
                raise OSError(errno.EOPNOTSUPP, "no hard links here")
            if name == "fsync":
                return None  # nothing in memory is lost by a death; a real disk's cost is not of interest
            found = real(*args, **kwargs)
            if name == "listdir" and self.forgets and found and self._random.random() < self.forgets:
                return sorted(found)[:-1]
            return found

        return call

    def _die(self, name: str, real: Any, args: Any) -> None:
        if name == "write" and self._random.random() < 0.5:
            real(args[0], args[1][: len(args[1]) // 2])
        self.dead = True
        raise Killed
