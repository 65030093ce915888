"""The end of processes: of this one, of forked children, and of others, as the kernel tells."""

import atexit
import os
import sys
from collections.abc import Callable
from types import FrameType
from weakref import WeakMethod


def is_stopped(pid: int) -> bool:
    """Returns whether a signal, or a debugger, has stopped a process; False if it does not show."""
    return _fields(pid)[:1] in (["T"], ["t"])


def start_of(pid: int) -> str:
    """Returns a process's start time, which tells it from a later one with the same id; '' if it does not run."""
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
    """Returns the frame of a function that has called this one, maybe through others; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame


def _exit_of(bootstrap: FrameType | None) -> SystemExit | None:
    """Returns how a function run by `multiprocessing` has ended: from Python 3.13 on, its exception is gone by then."""
    exit_code = bootstrap.f_locals.get("exitcode") if bootstrap is not None else None
    return SystemExit(exit_code) if exit_code else None


def in_forked_children(method: Callable[[], object]) -> None:
    """Calls a method in each child that this process forks, while the method's object exists."""
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
