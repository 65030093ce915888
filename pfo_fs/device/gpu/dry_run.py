"""A GPU on which nothing is changed, and the file that says what would be; simulated GPUs write such a file, too."""

from __future__ import annotations

import os
import time

from pfo_fs.device.gpu.interface import Gpu, ReadThrough


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


class DryRunGpu(ReadThrough):
    """Reads everything from a real GPU and changes nothing on it (`PFO_FS_DRY_RUN=1`).

    It serves machines where clocks may not be changed: it only records the clocks and power limits that it would set.

    Args:
        gpu: The real GPU.
        log_path: File that gets a line for each change that was not made; None for no file.
    """

    def __init__(self, gpu: Gpu, log_path: str | None = None) -> None:
        super().__init__(gpu)
        self.clock_backend = "dry run"
        self._log = ActionLog(log_path or os.devnull)
        self.name = f"{gpu.name} (dry run)"

    def try_reset(self) -> str:
        """Returns an empty string, so that a dry run does everything but the changes."""
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Records the change only."""
        self._log.write("lock", mhz)

    def reset_clocks(self) -> None:
        """Records the reset only."""
        self._log.write("reset", 0)

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns None: no clock was locked."""
        return None

    def set_power_limit_w(self, limit_w: float) -> None:
        """Records the limit only."""
        self._log.write_limit(limit_w)

    def close(self) -> None:
        """Ends the use of the real GPU."""
        super().close()
        self._log.close()
