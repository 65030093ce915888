"""A log file of the changes that were made to a GPU."""

from __future__ import annotations

import os
import time


class ActionLog:
    """Appends each change of a GPU to a file, as one JSON line: clocks locked or reset, power limits set."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, action: str, mhz: int) -> None:
        """Appends one line, with the time of the call."""
        os.write(self._fd, b'{"t_ns":%d,"action":"%s","mhz":%d}\n' % (time.monotonic_ns(), action.encode(), mhz))

    def write_limit(self, limit_w: float) -> None:
        """Appends one line about a power limit, in watts, with the time of the call."""
        os.write(self._fd, b'{"t_ns":%d,"action":"limit","watts":%.10g}\n' % (time.monotonic_ns(), limit_w))

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
