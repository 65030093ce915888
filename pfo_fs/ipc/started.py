"""The first and the common part of every process that `spawn.start_process` starts."""

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from pfo_fs.errors import plain_text

STARTED = "PFO_FS_STARTED_PROCESS"
"""This environment variable is set from the start of such a process until `run`."""

_KEPT = (
    *("SIGKILL", "SIGSTOP", "SIGTERM", "SIGCONT", "SIGCHLD"),  # no process can ignore the first two
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"),  # errors of the process itself
)
_MOST_OUTPUT_BYTES = 1 << 18
_MOST_TOLD_BYTES = 2000
"""At most this much of a process's output is told, from its end: the last lines say why it died."""


def run(module: str, arguments_json: str, outlives: bool) -> None:
    """Runs `main(arguments)` of a module, with no standard input, and ends this process.

    Batch systems, launchers and terminals send signals to all processes of a job: to warn of the time limit, to stop
    and continue it, to change the size of a window. The signals are meant for training, so these processes ignore all
    but those that report an error of their own. SIGTERM stays blocked until `on_sigterm` says what it means here. What
    the training process blocks or ignores itself does not count.
    """
    if outlives:
        _leave_starter()
    os.environ.pop(STARTED, None)
    sys.argv = [module]
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    if nowhere:
        os.close(nowhere)
    kept = {getattr(signal, name, None) for name in _KEPT}
    for number in signal.valid_signals() - kept:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM})
    sys.exit(import_module(module).main(json.loads(arguments_json)))


def _leave_starter() -> None:
    """Goes on in a process that no launcher takes for a child of training; the present process ends.

    The lock shows training that the process runs, and its id (`spawn.Child`). Forking needs a single thread: where a
    hook of the site's packages has started others, or no process can be forked, this process goes on as it is.
    """
    ready = -1
    with suppress(AttributeError, OSError):
        if len(os.listdir("/proc/self/task")) == 1:
            waiting, ready = os.pipe()
            if os.fork():
                os.close(ready)
                os.read(waiting, 1)  # until the lock is held, or the process has ended
                os._exit(0)
            os.close(waiting)
            os.setsid()
    with suppress(AttributeError, OSError):
        fcntl.lockf(2, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(OSError):
        os.close(ready)


def on_sigterm(handler: Callable[..., object]) -> None:
    """Sets what SIGTERM does in this process, also one that has come since its start."""
    signal.signal(signal.SIGTERM, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


class OwnOutput:
    """What this process writes to its standard error: a file in memory, which `new_text` keeps small."""

    def __init__(self) -> None:
        self._seen = 0

    def new_text(self) -> str:
        """Returns the end of what was written since the last call, for a log; empty if nothing was."""
        try:
            size = os.fstat(2).st_size
            if size <= self._seen:
                return ""
            begin = max(self._seen, size - _MOST_TOLD_BYTES)
            text = os.pread(2, size - begin, begin).decode(errors="replace")
            self._seen = size
            if size > _MOST_OUTPUT_BYTES:
                os.ftruncate(2, 0)
                self._seen = 0
        except OSError:
            return ""
        return plain_text(text.strip())
