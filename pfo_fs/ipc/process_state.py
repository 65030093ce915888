"""Whether another process is stopped, as the kernel tells."""

from __future__ import annotations


def is_stopped(pid: int) -> bool:
    """Returns whether a signal, or a debugger, has stopped a process; False if it does not show."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
