"""What the clock process is for the kernel: which signals stop it, and how soon it runs when it is woken.

`scontrol suspend` and Ctrl-Z stop and continue a job by signals. While a job is stopped, its GPU may be lent to another
job. So the clock process resets the clock before it stops itself, and while its trainer is stopped. After a stop it
sets everything again: the helper may have reset the GPU.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from pfo_fs.ipc.process_end import is_stopped
from pfo_fs.ipc.started import on_sigterm

_LOOK_EVERY_NS = 1_000_000_000
_LOOK_AGAIN_NS = 200_000_000
"""A stopped trainer is looked at this often, so that clocks are set again soon after it goes on."""


class Stops:
    """Receives the signals of the clock process.

    Args:
        terminated: Called, between two bytecodes, when SIGTERM comes.

    Attributes:
        fd: A descriptor that becomes readable when a signal has come.
        asked: Whether SIGTSTP has come, and the process is to stop itself.
        over: Whether the process was stopped, and has gone on since.
        trainer_stopped: Whether the trainer was stopped at the last two looks.
    """

    def __init__(self, terminated: Callable[[], None]) -> None:
        self.fd, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.asked = self.over = self.trainer_stopped = False
        self._trainer_pid = 0
        self._was_stopped = False
        self._next_look_ns = 0
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTSTP, self._on_stop)
        signal.signal(signal.SIGCONT, self._on_continue)
        on_sigterm(lambda *_: terminated())

    def _on_stop(self, *_: object) -> None:
        self.asked = True

    def _on_continue(self, *_: object) -> None:
        self.over = True

    def watch(self, trainer_pid: int, lifeline: int) -> None:
        """Looks at the trainer from now on.

        When the trainer's end of the pipe `lifeline` closes, the kernel makes this process go on if it is stopped.
        """
        self._trainer_pid = trainer_pid
        with suppress(AttributeError, OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGCONT)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)

    def take_signals(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def stop(self) -> None:
        """Stops this process; returns when it goes on."""
        self.asked = False
        os.kill(os.getpid(), signal.SIGSTOP)

    def look(self, now_ns: int) -> None:
        """Looks, from time to time, at the trainer. One look is not enough: a debugger stops it for a moment only."""
        if now_ns >= self._next_look_ns and self._trainer_pid:
            stopped = is_stopped(self._trainer_pid)
            self.trainer_stopped = stopped and self._was_stopped
            self._was_stopped = stopped
            self._next_look_ns = now_ns + (_LOOK_AGAIN_NS if stopped else _LOOK_EVERY_NS)


def has_ended(trainer: socket.socket) -> bool:
    """Returns whether the trainer has closed its socket."""
    try:
        return not trainer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


_NICE = -10
_SLICE_NS = 100_000
"""The clock process runs for some 30 us at a time, and the shortest slice that Linux takes is 100 us."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def raise_priority() -> None:
    """Asks for a short slice (Linux 6.12 and later) and a better nice value; ignores refusals.

    By default Linux lets the process that occupies the processor finish its slice first: a clock was set 8 to 35 ms
    late (99th percentile; 2 cores, 2 other busy processes), and 0.1 to 1 ms with both. Real-time scheduling got 0.1 ms,
    but with it a driver that hangs would block a whole processor.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period, clamps
        attributes = struct.pack("=IIQiIQQQII", 56, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0, 0, 0)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(_NICE))
