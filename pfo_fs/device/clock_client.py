"""The training process's side of its clock process: starts it, holds the page shared with it, rings its doorbell."""

import ctypes
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import weakref
from contextlib import ExitStack, suppress
from typing import Any

from pfo_fs.device import shared_page
from pfo_fs.device.clock_start import ClockInfo, ClockOptions
from pfo_fs.device.clocks.power_limits import SAYS
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.ipc.process_end import in_forked_children, is_stopped
from pfo_fs.ipc.spawn import Child, hold_standard_fds, start_process
from pfo_fs.ipc.system_calls import OwnFile, held_recv, held_write, open_doorbell
from pfo_fs.ipc.transport import refusals_named

log = logging.getLogger("pfo_fs")

_ONE = (1).to_bytes(8, sys.byteorder)

_dying: list[Child] = []
"""Clock processes that have closed their socket and were not seen to end yet."""


class ClockProcess:
    """The clock process of this rank.

    The constructor starts it and does not wait; the first use of `info` waits until it is ready. An error of the clock
    process never stops training: `message` says why clocks are left alone, and one warning reports a later death.

    Attributes:
        loads_fd: A socket for packets about loads (`load_exchange.py`); `loads_file` closes it.

    Args:
        spec: The GPU, as `find_gpu_spec` names it.
    """

    def __init__(
        self,
        spec: str,
        options: ClockOptions = ClockOptions(),  # noqa: B008  it is immutable
        *,
        start_timeout_s: float = 30.0,
    ) -> None:
        hold_standard_fds()
        self.spec = spec
        self._options = _completed(options)
        self.power_limit_before_w: float | None = None  # set again if the process dies
        self._page = SharedPage.create()
        self.words = self._page.words
        self._deadline_s = time.monotonic() + start_timeout_s
        if os.getpid() == 1:
            log.warning(
                "training is process 1 of its container: if it is killed, the kernel kills all others with it, and "
                "no process is left to reset clocks and power limits; start it with an init (docker run --init)"
            )
        self._info: ClockInfo | None = None
        self._lost = self._resetting = False
        self.how_it_ended = ""  # in brackets, for a message
        self._closed = False
        self._answers = b""
        self._peek = ctypes.create_string_buffer(1)
        self._peeks = socket.MSG_PEEK | socket.MSG_DONTWAIT
        self._process: Child | None = None
        with ExitStack() as only_the_childs, refusals_named("socketpair"):
            self._page_file = self._own(self._page.fd)
            self._doorbell, waiting = open_doorbell()
            self._own_doorbell = self._own(self._doorbell)
            if waiting != self._doorbell:
                only_the_childs.callback(os.close, waiting)
            lifeline, ours = os.pipe()
            only_the_childs.callback(os.close, lifeline)
            self._lifeline = self._own(ours)
            self._socket, theirs = socket.socketpair()
            only_the_childs.enter_context(theirs)
            self._fd = self._socket.fileno()
            self._own_socket = OwnFile(self._fd)
            weakref.finalize(self, self._own_socket.close_socket, self._socket).atexit = False
            loads, their_loads = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            only_the_childs.enter_context(their_loads)
            loads.setblocking(False)
            self.loads_fd = loads.detach()
            self.loads_file = self._own(self.loads_fd)
            fds = {
                "page_fd": self._page.fd,
                "doorbell_fd": waiting,
                "lifeline_fd": lifeline,
                "socket_fd": theirs.fileno(),
                "loads_fd": their_loads.fileno(),
            }
            try:
                self._process = self._start(fds, trainer_pid=os.getpid())
            except Exception as error:  # noqa: BLE001  also what subprocess raises where a container refuses its calls
                self._fail(f"the clock process could not be started ({error}); clocks are left alone")
        in_forked_children(self._forget)

    def _own(self, fd: int) -> OwnFile:
        """Returns a file that is closed with this object, unless its number stands for another file by then."""
        file = OwnFile(fd)
        weakref.finalize(self, file.close).atexit = False
        return file

    # ---- the hot path's side

    def name_id(self, name: str) -> int:
        """Returns the number of an instruction's name in marks; 0 after the end, when no process reads marks."""
        return 0 if self._closed else self._page.name_id(name)

    def ring_doorbell(self) -> None:
        """Wakes the clock process; needed only while `SLEEPING` is set. Keeps the interpreter lock; about 5 us."""
        self.words[shared_page.SLEEPING] = 0
        if self._doorbell >= 0 and self._own_doorbell.seems_open():
            held_write(self._doorbell, _ONE, 8)

    def check(self) -> bool:
        """If the clock process has died, warns, has the GPU reset, and reports when it was. About 1 us; keeps the lock.

        Returns:
            Whether `receive_answer` has something to return.
        """
        if not self._is_connected():
            self._tell_reset()
            return False
        size = held_recv(self._fd, self._peek, 1, self._peeks)
        if size == 0:
            self._died()
        elif size == 1 and self._info is None:
            self._info = self._wait_for_hello()  # left unread, it would hide the end of the socket
        elif size == 1 and self._peek.raw == SAYS.encode():
            self._receive()
        else:
            return bool(size == 1) or b"\n" in self._answers
        return b"\n" in self._answers

    def _is_connected(self) -> bool:
        """Returns whether the socket can be used: a program that closes all files may reuse its number."""
        if not self._lost and not self._closed and not self._own_socket.seems_open():
            self._died()
        return not self._lost and not self._closed

    # ---- requests about power limits and energy, which the clock process answers in order

    def send_request(self, request: dict[str, Any]) -> None:
        """Sends a request (see `power_limits.py`) without waiting; `receive_answer` returns its result."""
        _ = self.info  # the first message of the clock process is not an answer
        if self._is_connected():
            with suppress(OSError):
                self._socket.send(json.dumps(request).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def receive_answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns the next answer; None if none comes within `timeout_s` seconds, or the clock process has died."""
        deadline_s = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while self._is_connected():
            line, end, rest = self._answers.partition(b"\n")
            if end:
                self._answers = rest
                return dict(json.loads(line))
            if not poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                return None
            self._receive()
        return None

    def _receive(self) -> None:
        piece = b""
        with refusals_named("recvfrom"), suppress(ConnectionError):
            piece = self._socket.recv(65536, socket.MSG_DONTWAIT)
        if not piece and self._info is None:
            ended = "" if self._process is None else self._process.how_it_ended(within_s=1.0)
            self._fail(f"the clock process ended while it started{ended}; clocks are left alone")
        elif not piece:
            self._died()
        *lines, rest = (self._answers + piece).split(b"\n")
        answers = [line for line in lines if not line.startswith(SAYS.encode())]
        self._answers = b"\n".join([*answers, rest])
        for line in lines:
            if line not in answers:
                log.warning("the clock process says: %s", line[len(SAYS) :].decode(errors="replace"))

    # ---- what it is

    @property
    def info(self) -> ClockInfo:
        """The first message of the clock process; waits for it until the start timeout."""
        if self._info is None:
            self._info = self._wait_for_hello()
        return self._info

    @property
    def message(self) -> str:
        """Why clocks are not set; empty if they are."""
        return self.info.message

    @property
    def pid(self) -> int | None:
        """The clock process's id; None if it is not known yet, or the process could not be started."""
        return None if self._process is None else self._process.pid

    @property
    def lost(self) -> bool:
        return self._lost

    def alive(self) -> bool:
        return not self._lost and not self._closed and self._process is not None and self._process.poll() is None

    # ---- the end

    def leave(self) -> None:
        """Makes the clock process reset the clocks and end, without waiting for that."""
        if not self._closed:
            self._forget()  # the clock process ends when its socket closes
            if self.pid is not None and is_stopped(self.pid):
                os.kill(self.pid, signal.SIGCONT)
            self.words[shared_page.SLEEPING] = 0

    def close(self, timeout_s: float = 5.0) -> None:
        """Makes the clock process reset the clocks and end; waits for that, but no longer than `timeout_s`."""
        self.leave()
        deadline_s = time.monotonic() + timeout_s
        try:
            if self._process is not None:
                self._process.wait(timeout_s)
                if not self._lost and self.words[shared_page.ALL_BACK] != 1:
                    self._died()  # after the last `check`
                    self._process.wait(max(0.0, deadline_s - time.monotonic()))
                self._tell_reset()
        except TimeoutError:
            log.warning(
                "the clock process has not ended yet at the end of training: the GPU's driver hangs, or refuses to put "
                "the clock or the power limit back; the clock process goes on trying for two minutes"
            )
        self._page_file.close()

    def _forget(self) -> None:
        """Closes the sockets, the doorbell and the lifeline.

        In a forked child they are copies: the clock process belongs to the parent, and takes the end of the socket for
        the end of training.
        """
        if not self._closed:
            self._closed = True
            self._own_socket.close_socket(self._socket)
            self._own_doorbell.close()
            self._doorbell = -1
            self._lifeline.close()
            self.loads_file.close()

    def _wait_for_hello(self) -> ClockInfo:
        if self._lost or self._closed:
            return ClockInfo("none", "", [], "the clock process is gone")
        hello = self.receive_answer(self._deadline_s - time.monotonic())
        self.alive()  # takes note of the end of the starter, which the process has left
        if hello is not None:
            return ClockInfo(**hello)
        return self._info or self._fail("the clock process did not get ready in time; clocks are left alone")

    def _fail(self, message: str) -> ClockInfo:
        self._lost = True
        self._info = ClockInfo("none", "", [], message)
        return self._info

    def _died(self) -> None:
        """Warns, and starts another process that resets the clock or power limit that the dead one may have left."""
        self._lost = True
        self.words[shared_page.SLEEPING] = 0
        how = self.how_it_ended = "" if self._process is None else self._process.how_it_ended()
        has = "given up to put back what it has set" if self.words[shared_page.ALL_BACK] < 0 else "died"
        log.warning("the clock process has %s%s; it is not replaced, and nothing is set any more", has, how)
        self.words[shared_page.ALL_BACK] = 0
        _dying[:] = [process for process in _dying if process.poll() is None]
        if self._process is not None and self._process.poll() is None:
            _dying.append(self._process)
        if not self.spec.startswith("none"):
            fds = {"page_fd": self._page.fd} if self._page_file.is_open() else {}
            with suppress(OSError):
                self._process = self._start(fds, reset_only=True, power_limit_w=self.power_limit_before_w)
                self._resetting = True

    def _tell_reset(self) -> None:
        """Says whether the process that was to reset the GPU has done so, once it has ended."""
        if not self._resetting or self._process is None or self._process.poll() is None:
            return
        self._resetting = False
        what = "power limit is what it was before" if self._options.leave_clocks else "clock is back at its default"
        if self.words[shared_page.ALL_BACK]:
            log.info("the %s", what)
        else:
            log.warning(
                "it is not known whether the GPU's %s: the process that was to reset it has ended%s; "
                "`pfo-fs reset-clocks` resets it", what, self._process.how_it_ended(),
            )  # fmt: skip

    def _start(self, fds: dict[str, int], **given: object) -> Child:
        arguments = {"spec": self.spec, "options": self._options._asdict(), **given}
        return start_process("pfo_fs.device.clock_process", arguments, fds=fds, label=self.spec, outlives=True)


def _completed(options: ClockOptions) -> ClockOptions:
    """Returns the options, completed by environment variables."""
    return options._replace(
        clock_backend=options.clock_backend or os.environ.get("PFO_FS_CLOCK_BACKEND") or "auto",
        max_clock_calls_per_s=options.max_clock_calls_per_s or _number("PFO_FS_MAX_CLOCK_CALLS_PER_S") or None,
    )


def _number(variable: str) -> float:
    text = os.environ.get(variable) or "0"
    try:
        return max(0.0, float(text))
    except ValueError:
        log.warning("%s=%r is not a number, and sets no limit", variable, text)
        return 0.0
