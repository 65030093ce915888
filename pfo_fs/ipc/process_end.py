"""The end of processes: of this one, of forked children, and of others, as the kernel tells.

A launcher or a batch system ends ranks by SIGTERM. That is no crash, but from outside it looks like one: the connection
to the helper closes. A Python handler is no way to tell them apart: it runs late or never while a rank waits in a
collective call, and it would keep the rank alive. `faulthandler` writes a traceback from within the signal itself and
then lets the signal do what it did before. It writes here into a file in memory, which the helper opens, too. What the
file holds does not matter, only whether it was written to, and when.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from weakref import WeakMethod

from pfo_fs.ipc.system_calls import open_memory_file
from pfo_fs.ipc.transport import peer_of


def is_stopped(pid: int) -> bool:
    """Returns whether a signal, or a debugger, has stopped a process; False if it does not show."""
    return _fields(pid)[:1] in (["T"], ["t"])


def start_of(pid: int) -> str:
    """Returns a process's start time, which a later one with the same id does not share; '' if it does not run."""
    fields = _fields(pid)
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _fields(pid: int) -> list[str]:
    """Returns what `/proc/<pid>/stat` says after the program's name, which may hold spaces; empty if nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def at_process_end(method: Callable[[BaseException | None], object]) -> None:
    """Calls a method when this process ends, with the exception that ends it, or None.

    A process that `multiprocessing` has started runs finalizers of its own, and no `atexit` before Python 3.13.
    """
    alive, bootstrap = WeakMethod(method), _frame_of("_bootstrap")

    def end() -> None:
        if (told := alive()) is not None:
            told(sys.exc_info()[1] or getattr(sys, "last_value", None) or _exit_of(bootstrap))

    atexit.register(end)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)


def _frame_of(function: str) -> FrameType | None:
    """Returns the frame of a function that has called this one, through others; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame


def _exit_of(bootstrap: FrameType | None) -> SystemExit | None:
    """Returns how what `multiprocessing` runs has ended: from Python 3.13 on, its exception is gone by then."""
    exit_code = bootstrap.f_locals.get("exitcode") if bootstrap is not None else None
    return SystemExit(exit_code) if exit_code else None


def in_forked_children(method: Callable[[], object]) -> None:
    """Calls a method in each child that this process forks, while its object is there."""
    alive = WeakMethod(method)
    os.register_at_fork(after_in_child=lambda: (told := alive()) and told())


def how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Returns reason and message of the end of training, for the job's record."""
    if error is None:
        return "finished", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return ("crashed", f"exit code {error.code}") if error.code else ("finished", "")
    text = " ".join(str(error).split())
    return "crashed", f"{type(error).__name__}{': ' if text else ''}{text}"[:300]


_trace: int | None = None


def trace_sigterm() -> int:
    """Makes SIGTERM leave a trace in this process; returns its file descriptor, or -1 where that is not possible.

    A handler that the program installs later takes the place of this one, and one that is no Python function stays: it
    may be faulthandler's, for a dump that the user wants.
    """
    global _trace
    if _trace is None:
        try:
            if _is_handled_outside_of_python():
                _trace = -1
                return _trace
            _trace = open_memory_file("pfo-fs-sigterm")
            faulthandler.register(signal.SIGTERM, file=_trace, all_threads=False, chain=True)
            # A data loader's worker that gets SIGTERM must not write into its parent's trace.
            os.register_at_fork(after_in_child=lambda: faulthandler.unregister(signal.SIGTERM))
        except (AttributeError, OSError, RuntimeError, StopIteration, ValueError):
            _trace = -1
    return _trace


def _is_handled_outside_of_python() -> bool:
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def open_trace_of_peer(connection: socket.socket, trace: int) -> int | None:
    """Opens the trace of the process at the other end of a connection; None if it has none that this one may open."""
    pid, _ = peer_of(connection)
    try:
        return os.open(f"/proc/{pid}/fd/{trace}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None


def got_sigterm_within(trace: int, seconds: float) -> bool:
    """Whether the traced process got SIGTERM in the last `seconds`."""
    info = os.fstat(trace)
    return info.st_size > 0 and time.time() - info.st_mtime <= seconds
