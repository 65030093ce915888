"""System calls of a microsecond that keep the interpreter lock, for calls that training makes in a step.

Python gives the lock up for each of its own, and getting it back can cost 5 ms while other Python threads are busy.
"""

from __future__ import annotations

import ctypes

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
