"""System calls that need care.

First, calls of a microsecond that keep the interpreter lock, for training's steps: Python gives the lock up for each
call of its own, and getting it back can cost 5 ms while other Python threads are busy. Second, calls that not every
Python, kernel or container has, each with a replacement: Pythons that were built for an old C library (those of uv and
conda) lack some names of `os` and `fcntl`. Third, descriptors in a program that closes all descriptors, and uses their
numbers for its own files."""

import ctypes
import errno
import fcntl
import os
import socket
import tempfile
from contextlib import suppress

_F_SETSIG, _F_GETSIG = 10, 11
_MARK = 64
_libc = ctypes.PyDLL(None, use_errno=True)

held_write = _libc.write
held_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
held_write.restype = ctypes.c_ssize_t

held_send = _libc.send
held_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
held_send.restype = ctypes.c_ssize_t

held_recv = _libc.recv
held_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
held_recv.restype = ctypes.c_ssize_t

_fcntl = _libc.fcntl
_fcntl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int)


def _mark(fd: int) -> int:
    """Marks an open file by the signal that its owner would get, if it had one; returns the mark, 0 if it has none."""
    _fcntl(fd, _F_SETSIG, _MARK)
    return max(0, int(_fcntl(fd, _F_GETSIG, 0)))


_IN_MEMORY = "/dev/shm"  # noqa: S108  the file loses its name at once
# Locks of an open file, by their numbers in Linux where Python has no names for them.
OFD_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 36)
OFD_SETLK: int = getattr(fcntl, "F_OFD_SETLK", 37)
FLOCK = "hhqqi4x"
"""The form of a lock for the kernel: type, whence, start, length, process."""


def open_memory_file(name: str) -> int:
    """Returns the descriptor of a new, empty file, which is read and written; other processes do not inherit it.

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
    """Returns two descriptors, maybe the same: a write of 8 bytes to the first wakes a process waiting for the second.

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


class OwnFile:
    """A descriptor that is closed once, and only if it still belongs to the file for which it was opened."""

    def __init__(self, fd: int) -> None:
        self._fd, self._file, self._marked = fd, os.fstat(fd), _mark(fd)

    def seems_open(self) -> bool:
        """Returns what `is_open` does, in less than a microsecond and with the interpreter lock: by a mark."""
        return not self._marked or bool(_fcntl(self._fd, _F_GETSIG, 0) == self._marked)

    def is_open(self) -> bool:
        """Returns whether the descriptor still belongs to the file."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._fd), self._file)
        return False

    def close(self) -> None:
        """Closes the file, unless this object or the program has."""
        if self.is_open():
            fd, self._fd = self._fd, -1  # a later file may get this number, and all eventfds look the same to `fstat`
            os.close(fd)

    def close_socket(self, of_file: socket.socket) -> None:
        """Closes the object with this descriptor, and the descriptor unless the program has."""
        if of_file.fileno() >= 0:
            of_file.detach()
            self.close()
