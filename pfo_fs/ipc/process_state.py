"""Whether another process is stopped, and when it began, as the kernel tells."""

from __future__ import annotations


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
