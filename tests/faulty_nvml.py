"""A clock process over a fake `pynvml` in virtual time."""

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
from clock import VirtualTime
from fake_nvml import UUIDS, FakeNvml, Fault
from running import open_fds

from pfo_fs import device
from pfo_fs.device import clock_process, shared_page
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.device.shared_page import SharedPage

UUID = UUIDS[0]
CODES = (1, 2, 3, 4, 6, 9, 10, 13, 15, 16, 17, 18, 19, 27, 999, 777)


class FaultyNvml(FakeNvml):
    """GPUs whose power grows by 10 W every second."""

    def __init__(self, now_s: Callable[[], float], *faults: Fault) -> None:
        super().__init__()
        self.now_s = now_s
        self.resets_without_effect = 0
        self.arbitrated: Callable[[int], int] = lambda mhz: mhz
        """What others make of the clock that is locked."""
        self.fails.update({fault.function: fault for fault in faults})
        self.reasons = 0

    @property
    def set_mhz(self) -> list[int]:
        return [mhz for _, mhz in self.locked]

    def power_w(self) -> float:
        return 100 + 10 * self.now_s()

    def nvmlDeviceResetGpuLockedClocks(self, handle: object) -> None:
        if self.resets_without_effect:
            self.resets_without_effect -= 1
        else:
            self.real.nvmlDeviceResetGpuLockedClocks(handle)

    def nvmlDeviceGetClockInfo(self, handle: object, which: int) -> int:
        return self.arbitrated(self.lock_mhz or 1410)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        now_s = self.now_s()
        return round(1000 * (50_000 + 100 * now_s + 5 * now_s**2))

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        return round(1000 * self.power_w())


class Bench:
    """A clock process, run by `run`, in virtual time.

    Attributes:
        answers: What the clock process has sent on its socket: the hello, then the answers to requests.
        metrics: (time in s, what `opt.metrics()` shows then), once a second.
        ended_s: When the clock process has stopped serving.
    """

    def __init__(self, folder: Path, *faults: Fault) -> None:
        patch = self._patch = pytest.MonkeyPatch()
        for module in walk_packages(device.__path__, "pfo_fs.device."):
            import_module(module.name)  # what is imported later would have the real time
        self._time = VirtualTime(patch, "pfo_fs")
        self._began_ns = self._time.now_ns
        patch.setattr(select, "epoll", lambda: self)
        patch.setattr(clock_process, "raise_priority", lambda: None)
        for variable in ("PFO_FS_RUN_DIR", "PFO_FS_SIM_DIR"):
            patch.setenv(variable, str(folder))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.folder = folder
        self.nvml = FaultyNvml(lambda: self.now_s, *faults)
        patch.setitem(sys.modules, "pynvml", self.nvml)
        self.page = SharedPage.create()
        self.words = self.page.words
        self._ours, self._theirs = socket.socketpair()
        self._their_fd = self._theirs.fileno()
        self._loads, self._their_loads = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._metrics = StepMetrics([self.words])
        self._next_metrics_s = 1.0
        self._events: list[tuple[float, Callable[[], None]]] = []
        self.metrics: list[tuple[float, dict[str, float]]] = []
        self.ended_s = -1.0
        self._heard = b""

    @property
    def now_s(self) -> float:
        return (self._time.now_ns - self._began_ns) / 1e9

    def register(self, *_: object) -> None:
        """Does nothing."""

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Lets time pass until the next event of the script."""
        until_s = min(self.now_s + max(1e-5, timeout_s), self._events[0][0] if self._events else float("inf"))
        self._time.sleep(until_s - self.now_s)
        if self._events and self.now_s >= self._events[0][0]:
            self._events.pop(0)[1]()
        if self.now_s >= self._next_metrics_s:
            self._next_metrics_s += 1.0
            self._metrics.step_begins()
            self.metrics.append((self.now_s, self._metrics.since_last()))
        return [(self._their_fd, select.EPOLLIN)] if select.select([self._their_fd], [], [], 0)[0] else []

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        self._events.append((time_s, do))
        self._events.sort(key=lambda event: event[0])

    def request_clock(self, time_s: float, mhz: int) -> None:
        self.at(time_s, lambda: self.words.__setitem__(shared_page.TARGET, mhz))

    def ask(self, time_s: float, **request: Any) -> None:
        self.at(time_s, lambda: self._ours.sendall(json.dumps({**request, "id": 1}).encode() + b"\n"))

    def run(self, end_s: float, *, leave_clocks: bool = False) -> int:
        """Runs the clock process until training ends at `end_s`, and until it has ended; returns its exit status."""
        self.at(end_s, self._end)
        given = {
            "spec": f"nvml:{UUID}", "trainer_pid": os.getpid(),
            "options": ClockOptions(leave_clocks=leave_clocks, clock_backend="nvml", profile_steps=2)._asdict(),
            "page_fd": os.dup(self.page.fd), "doorbell_fd": os.eventfd(0), "socket_fd": self._theirs.detach(),
            "loads_fd": self._their_loads.detach(), "lifeline_fd": os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC),
        }  # fmt: skip
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGTSTP, signal.SIGCONT)}
        open_before = open_fds()
        gc.freeze()  # so that `gc.collect` looks at what this run makes, not at all that the tests have loaded
        try:
            return clock_process.main(given)
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            gc.collect()  # what is in a cycle would close its descriptor later, when the number is another file's
            gc.unfreeze()
            for fd in {*open_fds() - open_before, given["page_fd"], given["doorbell_fd"]}:
                os.close(fd)

    def _end(self) -> None:
        self.ended_s = self.now_s
        self._loads.close()
        with self._ours:
            self._ours.setblocking(False)
            self._heard = self._ours.recv(1 << 20)

    def close(self) -> None:
        """Closes what a bench has opened, also one that has not run, and gives the real time back."""
        self._patch.undo()
        for end in (self._ours, self._theirs, self._loads, self._their_loads):
            end.close()
        self.page.close()

    @property
    def answers(self) -> list[dict[str, Any]]:
        """What the clock process has sent, without what it says for the log."""
        return [json.loads(line) for line in self._heard.split(b"\n") if line and not line.startswith(b"!")]

    def notes(self) -> set[str]:
        """The settings that a note tells the next process of."""
        return {path.name.rpartition("-GPU")[0].partition("-GPU")[0] for path in self.folder.glob("*-GPU-*.json")}
