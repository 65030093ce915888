"""Tells the helper that a training process got SIGTERM, also where the signal ends that process at once.

A launcher or a batch system ends ranks by SIGTERM. That is no crash, but from outside it looks like one: the connection
to the helper closes. A Python handler is no way to tell them apart: it runs late or never while a rank waits in a
collective call, and it would keep the rank alive. `faulthandler` writes a traceback from within the signal itself and
then lets the signal do what it did before. It writes here into a file in memory, which the helper opens, too. What the
file holds does not matter, only whether it was written to, and when.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time

from pfo_fs.ipc.optional_calls import after_fork_in_child, open_memory_file
from pfo_fs.ipc.transport import peer_of

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
        except (AttributeError, OSError, RuntimeError, StopIteration, ValueError):
            _trace = -1
    return _trace


def _is_handled_outside_of_python() -> bool:
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _not_in_forked_child() -> None:
    """A data loader's worker that gets SIGTERM must not write into its parent's trace."""
    if _trace is not None and _trace >= 0:
        faulthandler.unregister(signal.SIGTERM)


after_fork_in_child(_not_in_forked_child)


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
