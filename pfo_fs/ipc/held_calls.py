"""System calls of a microsecond that keep the interpreter lock, for calls that training makes in a step.

Python gives the lock up for each of its own, and getting it back can cost 5 ms while other Python threads are busy.
"""

from __future__ import annotations

import ctypes

_F_SETSIG, _F_GETSIG = 10, 11
_MARK = 64
_libc = ctypes.PyDLL(None, use_errno=True)

write = _libc.write
write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
write.restype = ctypes.c_ssize_t

send = _libc.send
send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
send.restype = ctypes.c_ssize_t

recv = _libc.recv
recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
recv.restype = ctypes.c_ssize_t

_fcntl = _libc.fcntl
_fcntl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int)


def mark(fd: int) -> int:
    """Marks an open file by the signal that its owner would get, if it had one; returns the mark, 0 if it has none."""
    _fcntl(fd, _F_SETSIG, _MARK)
    return max(0, int(_fcntl(fd, _F_GETSIG, 0)))


def has_mark(fd: int, marked: int) -> bool:
    """Returns whether a descriptor is still that of a marked file, and not that of one that the program has opened."""
    return not marked or bool(_fcntl(fd, _F_GETSIG, 0) == marked)
