"""The calls that set clocks: how long they take, how long they wait for each other, and how many may be made.

The driver of a node makes one call at a time for all its GPUs, so the clock processes of a host take turns at a lock of
their own: by the lock, each process knows how long it has waited for the others, and how long its own call took. Calls
at a high rate also delay NCCL (NVIDIA/nccl#1551: at 20 per second, whatever the clock). A change to a lower clock needs
a change back, so it is made only while there is room for both; a change to a higher clock is always made.
"""

import fcntl
import math
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from pfo_fs.clock_latency import CALL_S
from pfo_fs.ipc.system_calls import FLOCK, OFD_GETLK, OFD_SETLK

BUSY_SHARE = 0.8
"""The driver may be busy with our calls for this share of the time."""
MOST_READS_PER_S = 1000.0
"""The most readings of counters and clocks, of all GPUs of the host: their cost to collectives is not measured yet."""
_BURST = 8
"""Per GPU, at most this many readings that were allowed and not made may be made later."""
_MOST_KEPT = 4096
"""The times of at most this many calls are kept: no driver makes more in a second."""
_CALLS, _WAITS = 15, 64
"""Of the last 15 calls, the median duration counts; of the last 64 waits, the one that nine of ten do not exceed."""
_PLACES = 512
_COUNT_EVERY_NS = 10_000_000_000
_PATIENCE_NS = 200_000_000
"""After this time a call is made without the lock: the driver hangs in the process that holds the lock."""
_NAP_S = 0.0002


class DriverCalls:
    """The calls that set the clock of one GPU; the node has `gpus` GPUs whose clocks are set.

    Args:
        calls_per_s: The most calls per second for all these GPUs; None: as many as take `BUSY_SHARE` of the time.

    Attributes:
        call_ns: Median duration of a call.
        queue_ns: How long a call may have to wait for calls of other GPUs.
    """

    def __init__(self, call_ns: int = round(1e9 * CALL_S), calls_per_s: float | None = None) -> None:
        self.call_ns = call_ns
        self.queue_ns = 0
        self.made = 0
        self.gpus = 1
        self.calls_per_s = calls_per_s
        self._took_ns: deque[int] = deque(maxlen=_CALLS)
        self._waited_ns: deque[int] = deque(maxlen=_WAITS)
        self._made_ns: deque[int] = deque(maxlen=_MOST_KEPT)
        self._read_ns = 0
        self._reads = float(_BURST)

    def called(self, at_ns: int, took_ns: int, waited_ns: int = 0) -> None:
        """Notes a call that returned at `at_ns`, after it had waited for calls of other GPUs."""
        self.made += 1
        self._made_ns.append(at_ns)
        self._took_ns.append(took_ns)
        self._waited_ns.append(waited_ns)
        self.call_ns = _share_of(self._took_ns, 0.5)
        self.queue_ns = _share_of(self._waited_ns, 0.9)

    def allows_down(self, now_ns: int) -> bool:
        """Returns whether the clock may go down, and up again later.

        No second has more calls than allowed. A GPU that may make less than two makes two in a longer time.
        """
        rate = self.calls_per_s
        if rate is None:
            rate = BUSY_SHARE * 1e9 / max(self.call_ns, 1)
        of_gpu = rate / self.gpus
        within_s = max(1.0, 2 / of_gpu) if of_gpu else math.inf
        while self._made_ns and now_ns - self._made_ns[0] >= 1e9 * within_s:
            self._made_ns.popleft()
        return len(self._made_ns) + 2 <= max(2.0, of_gpu)

    def read(self, now_ns: int) -> int:
        """Notes a reading; returns for how long the next one has to wait, in ns."""
        apart_ns = self.gpus / max(MOST_READS_PER_S / 2, MOST_READS_PER_S - _BURST * self.gpus) * 1e9
        self._reads = min(_BURST, self._reads + (now_ns - self._read_ns) / apart_ns) - 1
        self._read_ns = now_ns
        return max(0, round(-self._reads * apart_ns))


def _share_of(values: Iterable[int], share: float) -> int:
    """Returns the value below which this share of the values lies; to import `statistics` would take too long."""
    ordered = sorted(values)
    return ordered[int(len(ordered) * share)]


# ---- taking turns


def driver_file() -> str:
    """Returns the path of the file that all clock processes of this user on this host lock."""
    memory = "/dev/shm"  # noqa: S108  the owner of the file is checked
    folder = os.environ.get("PFO_FS_SIM_DIR") or (memory if os.access(memory, os.W_OK) else "/var/tmp")  # noqa: S108
    return os.path.join(folder, f"pfo-fs-driver-{os.geteuid()}")


class HostDriver(DriverCalls):
    """The calls of this process, in turns with other processes by locks of a file; without the file, no turns.

    Args:
        path: The file, `driver_file()`; empty for a process that makes no calls.

    Attributes:
        waited_ns: How long the last `access` was waited for.
    """

    def __init__(self, path: str, calls_per_s: float | None = None) -> None:
        super().__init__(calls_per_s=calls_per_s)
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
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        try:
            found = fcntl.fcntl(self._fd, OFD_GETLK, asked)
        except OSError:
            return False
        return bool(struct.unpack(FLOCK, found)[0] != fcntl.F_UNLCK)

    @contextmanager
    def access(self) -> Iterator[None]:
        """Waits up to 200 ms while another process calls the driver; now and then, counts the processes (`gpus`)."""
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
