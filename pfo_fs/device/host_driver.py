"""The one driver of a host, as its clock processes share it: they make one call after the other, and count each other.

The driver makes them wait for each other anyway. With a lock of their own, each process knows how long it has waited
for the others and how long its own call took, which it could not tell apart otherwise.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SLOTS = 512
_COUNT_EVERY_NS = 10_000_000_000
_PATIENCE_NS = 200_000_000
"""After this time a call is made without the lock: a process that holds it has a driver that hangs."""
_NAP_S = 0.0002


def driver_file() -> str:
    """Returns the path of the file that all clock processes of this user on this host map."""
    memory = "/dev/shm"  # noqa: S108  the owner of the file is checked
    folder = os.environ.get("PFO_FS_SIM_DIR") or (memory if os.access(memory, os.W_OK) else "/var/tmp")  # noqa: S108
    return os.path.join(folder, f"pfo-fs-driver-{os.geteuid()}")


class HostDriver:
    """This process's place at the driver. Where the file cannot be used, each process is alone.

    Args:
        path: The file; `driver_file()`.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._slot = -1
        self._count = 1
        self._count_at_ns = 0
        self.waited_ns = 0
        with suppress(OSError, ValueError):
            self._open(path)

    def _open(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or not stat.S_ISREG(info.st_mode):
            os.close(fd)
            return
        if info.st_size < _SLOTS * 8:
            os.ftruncate(fd, _SLOTS * 8)
        self._map = mmap.mmap(fd, _SLOTS * 8)
        self._fd = fd
        with self.turn():
            self._take_slot()

    def _take_slot(self) -> None:
        assert self._map is not None
        with memoryview(self._map) as view, view.cast("q") as pids:
            for slot in range(_SLOTS):
                if not _lives(pids[slot]):
                    pids[slot] = os.getpid()
                    self._slot = slot
                    return

    @property
    def gpus(self) -> int:
        """Number of clock processes of this user that live on this host."""
        now_ns = time.monotonic_ns()
        if self._map is not None and now_ns >= self._count_at_ns:
            self._count_at_ns = now_ns + _COUNT_EVERY_NS
            with memoryview(self._map) as view, view.cast("q") as pids:
                self._count = max(1, sum(map(_lives, pids.tolist())))
        return self._count

    def others(self) -> list[int]:
        """Returns the ids of the other processes of this user on this host that set clocks."""
        if self._map is None:
            return []
        with memoryview(self._map) as view, view.cast("q") as pids:
            return sorted({pid for pid in pids.tolist() if pid != os.getpid() and _lives(pid)})

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for this process's turn; `waited_ns` is then how long that took."""
        began_ns = now_ns = time.monotonic_ns()
        locked = False
        while self._fd >= 0 and now_ns - began_ns < _PATIENCE_NS:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
                break
            except OSError:
                time.sleep(_NAP_S)
                now_ns = time.monotonic_ns()
        self.waited_ns = time.monotonic_ns() - began_ns
        try:
            yield
        finally:
            if locked:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the place up."""
        if self._map is not None:
            if self._slot >= 0:
                with memoryview(self._map) as view, view.cast("q") as pids:
                    pids[self._slot] = 0
            self._map.close()
            os.close(self._fd)
            self._map, self._fd = None, -1


def _lives(pid: int) -> bool:
    if not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
