"""The one driver of a host, as its clock processes share it: they make one call after the other, and count each other.

The driver makes them wait for each other anyway. With a lock of their own, each process knows how long it has waited
for the others and how long its own call took, which it could not tell apart otherwise.

The file has no content: each process locks a byte of it, and the kernel unlocks the byte when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pfo_fs.device.clocks.driver_calls import FIRST_CALL_NS, DriverCalls
from pfo_fs.ipc.optional_calls import FLOCK, OFD_GETLK, OFD_SETLK

_PLACES = 512
_COUNT_EVERY_NS = 10_000_000_000
_PATIENCE_NS = 200_000_000
"""After this time a call is made without the lock: a process that holds it has a driver that hangs."""
_NAP_S = 0.0002


def driver_file() -> str:
    """Returns the path of the file that all clock processes of this user on this host lock."""
    memory = "/dev/shm"  # noqa: S108  the owner of the file is checked
    folder = os.environ.get("PFO_FS_SIM_DIR") or (memory if os.access(memory, os.W_OK) else "/var/tmp")  # noqa: S108
    return os.path.join(folder, f"pfo-fs-driver-{os.geteuid()}")


class HostDriver(DriverCalls):
    """The calls of this process, and its place at the driver. Where the file cannot be used, each process is alone.

    Args:
        path: The file, `driver_file()`; empty for a process that makes no calls.
        call_ns, calls_per_s: As for `DriverCalls`.

    Attributes:
        waited_ns: How long the last turn was waited for.
    """

    def __init__(self, path: str, call_ns: int = FIRST_CALL_NS, calls_per_s: float | None = None) -> None:
        super().__init__(call_ns, calls_per_s)
        self._fd = -1
        self._place = -1
        self._count_at_ns = 0
        self.waited_ns = 0
        with suppress(OSError):
            self._open(path)

    def _open(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o600)
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or not stat.S_ISREG(info.st_mode):
            os.close(fd)
            return
        self._fd = fd
        for place in range(_PLACES):
            with suppress(OSError):  # another process has this place
                fcntl.fcntl(fd, OFD_SETLK, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
                self._place = place
                return

    def others(self) -> int:
        """Returns how many other processes of this user on this host set clocks."""
        if self._fd < 0:
            return 0
        return sum(self._is_taken(place) for place in range(_PLACES) if place != self._place)

    def _is_taken(self, place: int) -> bool:
        """Returns whether another process has a place."""
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        try:
            found = fcntl.fcntl(self._fd, OFD_GETLK, asked)
        except OSError:
            return False
        return bool(struct.unpack(FLOCK, found)[0] != fcntl.F_UNLCK)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for this process's turn; from time to time, counts the processes that set clocks (`gpus`) before."""
        if time.monotonic_ns() >= self._count_at_ns:
            self._count_at_ns = time.monotonic_ns() + _COUNT_EVERY_NS
            self.gpus = 1 + self.others()
        began_ns = now_ns = time.monotonic_ns()
        locked = False
        while self._fd >= 0 and now_ns - began_ns < _PATIENCE_NS:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
                break
            except BlockingIOError:
                time.sleep(_NAP_S)
                now_ns = time.monotonic_ns()
            except OSError:  # a file system without locks
                self.close()
        self.waited_ns = time.monotonic_ns() - began_ns
        try:
            yield
        finally:
            if locked:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the place up."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
