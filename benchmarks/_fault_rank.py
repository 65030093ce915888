"""One rank of `faults.py`: spoils its own process as it is told, then trains for as long as it is told, without torch.

    python _fault_rank.py JSON

What it does is in a file of fixed size that `faults.py` maps, too (`Page`): no fault touches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import mmap
import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

STATE, STEPS, ATTACH_S, CLOSE_S, WARNINGS, STOP, SCHEDULE, MIDWAY = range(8)
STARTS, TRAINS, TRAINED, CLOSED = range(4)
_WORDS, _MOST_STEPS, _TEXT = 16, 20_000, 8_192
PAGE_BYTES = 8 * (_WORDS + 3 * _MOST_STEPS) + _TEXT

SYSTEM_CALLS = {
    "memfd_create": 319,
    "eventfd2": 290,
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
    "inotify_init1": 294,
    "flock": 73,
    "linkat": 265,
    "fsync": 74,
    "fadvise64": 221,
    "setpriority": 141,
    "fchmod": 91,
    "fallocate": 285,
    "prctl": 157,
    "close_range": 436,
    "clone3": 435,
    "getrandom": 318,
    "sched_getaffinity": 204,
    "sched_setscheduler": 144,
    "mlock": 149,
    "timerfd_create": 283,
    "signalfd4": 289,
    "socketpair": 53,
    "socket": 41,
    "io_uring_setup": 425,
    "renameat2": 316,
    "statx": 332,
}
"""Numbers on x86-64 of calls that containers and old kernels refuse."""

OPTIONAL_NAMES = {
    "os": "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING eventfd EFD_CLOEXEC EFD_NONBLOCK pidfd_open P_PIDFD "
    "posix_fadvise POSIX_FADV_DONTNEED posix_fallocate sched_getaffinity sched_setaffinity sched_setscheduler "
    "getrandom copy_file_range O_TMPFILE O_PATH setns unshare splice fdatasync",
    "fcntl": "F_OFD_SETLK F_OFD_SETLKW F_OFD_GETLK F_ADD_SEALS F_GET_SEALS F_SEAL_SEAL F_SEAL_SHRINK F_SEAL_GROW "
    "F_SETPIPE_SZ F_GETPIPE_SZ F_DUPFD_CLOEXEC F_SETLEASE F_NOTIFY",
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX SIGPOLL",
    "socket": "SO_PEERCRED SO_PASSCRED SCM_CREDENTIALS SO_DOMAIN SO_PROTOCOL AF_VSOCK SO_INCOMING_CPU",
    "resource": "prlimit",
}
"""Names of the standard library that not each Python on Linux has."""


class Page:
    """What a rank tells and is told."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PAGE_BYTES)

    @staticmethod
    def make(path: Path) -> Page:
        """Returns a new one."""
        path.write_bytes(bytes(PAGE_BYTES))
        return Page(path)

    def __getitem__(self, word: int) -> float:
        return float(struct.unpack_from("d", self._map, 8 * word)[0])

    def __setitem__(self, word: int, value: float) -> None:
        struct.pack_into("d", self._map, 8 * word, value)

    def add_step(self, began_s: float, took_s: float, inside_s: float) -> None:
        """Adds a step: when it began, how long it took, and how much of that was inside of the product's calls."""
        number = int(self[STEPS])
        if number < _MOST_STEPS:
            struct.pack_into("ddd", self._map, 8 * (_WORDS + 3 * number), began_s, took_s, inside_s)
            self[STEPS] = number + 1

    def steps(self) -> list[tuple[float, float, float]]:
        """Returns the steps so far."""
        return list(struct.iter_unpack("ddd", self._map[8 * _WORDS : 8 * (_WORDS + 3 * int(self[STEPS]))]))

    def add_text(self, text: str) -> None:
        """Adds a line; what is beyond some 8,000 bytes is lost."""
        whole = (self.text() + text.replace("\n", " ") + "\n").encode("utf-8", "replace")[: _TEXT - 1]
        self._map[-_TEXT : -_TEXT + len(whole)] = whole

    def text(self) -> str:
        """Returns the lines."""
        return self._map[-_TEXT:].rstrip(b"\0").decode("utf-8", "replace")


class _Warnings(logging.Handler):
    """Counts warnings, and keeps them."""

    def __init__(self, page: Page) -> None:
        super().__init__(logging.WARNING)
        self._page = page

    def emit(self, record: logging.LogRecord) -> None:
        self._page[WARNINGS] += 1
        self._page.add_text(f"{record.levelname}: {record.getMessage()}")


def refuse(names: list[str], number: int) -> None:
    """Has system calls of this process and its children answered with an error, as a container's filter does."""
    steps = [(0x20, 0, 0, 0)]  # load the number of the call
    for name in names:
        steps += [(0x15, 0, 1, SYSTEM_CALLS[name]), (0x06, 0, 0, 0x00050000 | number)]
    steps.append((0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def spoil(given: dict[str, Any]) -> None:
    """Does to this process what the fault wants."""
    for text in given.get("delete", ()):
        module, _, name = text.partition(".")
        with contextlib.suppress(AttributeError):
            delattr(__import__(module), name)
    if "site" in given:  # the package lies in a folder with others, at the end of the path
        sys.path[:] = [*(entry for entry in sys.path if entry != given["checkout"]), given["site"]]
    if given.get("frozen"):
        sys.frozen = True  # type: ignore[attr-defined]
    if "executable" in given:
        sys.executable = given["executable"]
    for number in given.get("handles", ()):
        signal.signal(number, lambda *_: None)
    for name, limit in given.get("limits", {}).items():
        kind = getattr(resource, name)
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    if "closes" in given:
        for fd in given["closes"]:
            os.close(fd)
    if "umask" in given:
        os.umask(given["umask"])
    if "refuses" in given:
        refuse(given["refuses"], getattr(errno, given.get("errno", "EPERM")))


_OPENED: list[int] = []
"""Files of the program, which must stay open."""


def midway(what: str, opt: Any) -> None:
    """Does in the middle of training what programs do."""
    if what == "closes descriptors":
        os.closerange(3, 300)
    elif what == "reuses descriptors":
        os.closerange(3, 300)
        _OPENED.extend(os.open("/dev/zero", os.O_RDONLY) for _ in range(60))
    elif what == "no more descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    elif what == "signals every ms":
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    elif what == "forks":
        for _ in range(4):
            if os.fork() == 0:
                for callback in (opt.on_step_begin, opt.on_step_end, opt.close):
                    callback()
                os._exit(0)
    elif what == "calls out of order":
        for _ in range(3):
            opt.on_step_end()
            opt.on_instruction_end("forward")
            opt.on_instruction_begin("backward")
            opt.on_step_begin()
            opt.on_step_begin()
            opt.on_step_end()
    elif what == "names that are none":
        for name in (None, 3, b"forward", "", "x" * 10_000, "\udcff", "a\nb", ["forward"], float("nan")):
            opt.on_instruction_begin(name)
            opt.on_instruction_end(name)
    elif what == "another directory":
        os.chdir("/")


def keep_descriptors(free: int) -> list[int]:
    """Opens files until only so many descriptors are free."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(min(free, len(held))):
        os.close(held.pop())
    return held


def main() -> None:
    given = json.loads(sys.argv[1])
    page = Page(Path(given["page"]))
    rank, world_size = given["rank"], given["world_size"]
    if rank in given.get("only", [rank]):
        spoil(given)
    from benchmarks.chaos.rank_program import BothRanks
    from pfo_fs import PFOFileOptimizer
    from pfo_fs.ipc.collectives import Collectives

    logging.getLogger().addHandler(_Warnings(page))
    ranks = BothRanks(rank, world_size, given["socket"])
    Collectives.of_job = classmethod(lambda cls, rank, world_size: ranks)  # type: ignore[assignment,method-assign]
    held = keep_descriptors(given["free_descriptors"]) if "free_descriptors" in given else []
    began_s = time.monotonic()
    options = {"local_rank": rank, "pp_degree": world_size, "profile_steps": 2, **given.get("options", {})}
    opt = PFOFileOptimizer(os.fsdecode(given["dir"]), rank=rank, world_size=world_size, **options)
    page[ATTACH_S] = time.monotonic() - began_s
    page[STATE] = TRAINS
    with opt:
        going = True
        while going:
            began_s, inside_s = time.monotonic(), 0.0

            def call(callback: Any, *args: str) -> None:
                nonlocal inside_s
                before_s = time.monotonic()
                callback(*args)
                inside_s += time.monotonic() - before_s

            call(opt.on_step_begin)
            for name in ("forward", "backward"):
                call(opt.on_instruction_begin, name)
                time.sleep(0.005)
                call(opt.on_instruction_end, name)
            call(opt.on_step_end)
            if page[MIDWAY]:
                page[MIDWAY] = 0
                midway(given["midway"], opt)
            going = not any(ranks.all_gather(page[STOP] > 0))
            page.add_step(began_s, time.monotonic() - began_s, inside_s)
            page[SCHEDULE] = opt.schedule_number
        page[STATE] = TRAINED
        signal.setitimer(signal.ITIMER_REAL, 0)
        began_s = time.monotonic()
    page[CLOSE_S] = time.monotonic() - began_s
    for fd in _OPENED:
        os.close(fd)  # an OSError ends the process with another exit code
    page[STATE] = CLOSED
    for fd in held:
        os.close(fd)


if __name__ == "__main__":
    main()
