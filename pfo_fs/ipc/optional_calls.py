"""System calls that not every Python, kernel or container has, each with what takes its place.

Pythons that were built for an old C library (those of uv and conda) lack some names of `os` and `fcntl`; a container
may refuse a call that the kernel has.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress

_IN_MEMORY = "/dev/shm"  # noqa: S108  the file loses its name at once
# Locks of an open file, by their numbers in Linux where Python has no names for them.
OFD_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 36)
OFD_SETLK: int = getattr(fcntl, "F_OFD_SETLK", 37)
FLOCK = "hhqqi4x"
"""A lock, as the kernel takes and tells it: type, whence, start, length, process."""


def after_fork_in_child(do: Callable[[], object]) -> None:
    """Calls `do` in each child that this process forks, where Python can do so."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(after_in_child=do)


def open_memory_file(name: str) -> int:
    """Returns the descriptor of a new, empty file, which is read and written; other processes do not inherit it.

    Pythons that were built for an old C library, as those of uv and conda, have no `os.memfd_create`.

    Args:
        name: Shown by tools that list open files.

    Raises:
        OSError: No file can be made, for example because no descriptor is free.
    """
    with suppress(AttributeError, OSError):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    fd, path = tempfile.mkstemp(prefix=f"{name}-", dir=folder)
    os.unlink(path)
    return fd


def open_memory(name: str, size_bytes: int) -> int:
    """Returns a descriptor of `size_bytes` zeros, which processes can map together.

    Raises:
        OSError: There is no descriptor, or no room.
    """
    fd = open_memory_file(name)
    try:
        os.ftruncate(fd, size_bytes)
        _reserve(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _reserve(fd: int, size_bytes: int) -> None:
    """Makes a full file system an error now: later, a store into the mapped memory would end this process."""
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise


def open_doorbell() -> tuple[int, int]:
    """Returns two descriptors, maybe the same: a write of 8 bytes to the first one wakes who waits for the second one.

    Raises:
        OSError: There is no descriptor.
    """
    try:
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except (AttributeError, OSError):
        waiting, ringing = os.pipe()
        os.set_blocking(waiting, False)
        os.set_blocking(ringing, False)
        return ringing, waiting
    return fd, fd
