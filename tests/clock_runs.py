"""Clock processes, what they do to simulated GPUs, and what they tell a helper."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any, TypeVar

from running import HANGS_AFTER_S, Processes, wait_for
from torchrun import clocks_mhz

from pfo_fs.device import shared_page
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.ipc import messages, transport
from pfo_fs.ipc.process_end import is_stopped, start_of

Start = Callable[..., ClockProcess]
Kind = TypeVar("Kind", bound=messages.Message)


def ask(clocks: ClockProcess, mhz: int) -> None:
    clocks.words[shared_page.TARGET] = mhz
    if clocks.words[shared_page.SLEEPING]:
        clocks.ring_doorbell()


def wait_for_end(pid: int) -> None:
    """Waits until a process has ended; its parent may not have waited for it."""
    wait_for(lambda: not start_of(pid), what="its end")


def stop(pid: int, by: signal.Signals = signal.SIGSTOP) -> None:
    os.kill(pid, by)
    wait_for(lambda: is_stopped(pid), what="the stop")


class GpuLog:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.log"

    @property
    def clocks(self) -> list[int]:
        return clocks_mhz(self.path) if self.path.exists() else []

    @property
    def last_ns(self) -> int:
        return int(json.loads(self.path.read_text().splitlines()[-1])["t_ns"])

    def wait(self, mhz: int) -> None:
        wait_for(lambda: self.clocks[-1:] == [mhz], what=f"{mhz} MHz")


_TRAINING = """
import json, os, signal, sys, time
from pfo_fs.device import shared_page
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in the background ignores it
spec, mhz, how, options = json.loads(sys.argv[1])
clocks = ClockProcess(spec, ClockOptions(**options))
assert clocks.message == "", clocks.message
clocks.words[shared_page.TARGET] = mhz
clocks.ring_doorbell()
while how != "does not wait" and clocks.words[shared_page.CLOCK_MHZ] != mhz:
    time.sleep(0.001)
child = os.fork() if how == "forks" else -1
if child:
    print(clocks.pid, child, clocks.info.clock_backend, flush=True)
for _ in range(6000):
    if how == "checks":
        clocks.check()
    time.sleep(0.01)
"""


class Trainer:
    """A process that trains with a clock process, which has set a clock.

    Args:
        how: What it does beside: it `forks` a child that goes on, `checks` its clock process, or `does not wait` until
            the clock is set.
        options: Those of `ClockOptions`.
    """

    def __init__(
        self, processes: Processes, spec: str = "simulated:a", mhz: int = 900, how: str = "", **options: Any
    ) -> None:
        given = json.dumps([spec, mhz, how, options])
        self.process: Popen[str] = processes.python("-c", _TRAINING, given, start_new_session=True)

    def told(self) -> tuple[int, int, str]:
        """Waits until the clock is set; returns the ids of clock process and child, and the way to set clocks."""
        clock_pid, child, way = self.process.stdout.readline().split()  # type: ignore[union-attr]
        return int(clock_pid), int(child), way


class ListeningHelper:
    def __init__(self, name: str) -> None:
        self.address = f"pfo-fs-test-{name}-{os.getpid()}"
        self.messages: list[messages.ToHelper] = []
        self._connection: Any = None

    def __enter__(self) -> ListeningHelper:
        self._server = transport.listen(self.address)
        self._server.settimeout(HANGS_AFTER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        if self._connection is not None:
            self._connection.close()

    def send(self, message: messages.Message) -> None:
        self._connection.send(transport.encode(message))

    def wait(self, kind: type[Kind], fits: Callable[[Kind], object] = lambda m: True) -> Kind:
        if self._connection is None:
            self._connection, _ = self._server.accept()
            self._connection.settimeout(HANGS_AFTER_S)
        while True:
            packet = self._connection.recv(transport.MAX_MESSAGE_BYTES)
            assert packet, f"no {kind.__name__} came: {self.messages}"
            message = transport.decode(packet, messages.ToHelper)
            self.messages.append(message)
            if isinstance(message, kind) and fits(message):
                return message
