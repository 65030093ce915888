"""GPUs whose clock process was stopped by a signal, or has died."""

from __future__ import annotations

import signal
import socket
import struct
from pathlib import Path

import pytest
from clock import Clock
from running import Processes, wait_for

from pfo_fs.helper.resets import Resets
from pfo_fs.ipc import messages

GPU = messages.GpuToReset("nvml:GPU-3")


class Connection:
    """The helper's end of a connection of process `pid`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.pack("3i", self.pid, 0, 0)


class Host:
    """A helper with the clock process of rank 3."""

    def __init__(self, processes: Processes, clock: Clock) -> None:
        self.resets: list[tuple[int, messages.GpuToReset]] = []
        self.stopped = Resets(lambda: None, lambda _: "", lambda *_: None, lambda *gpu: self.resets.append(gpu))
        self.process = processes.start("sleep", "60")
        self._clock = clock
        clocks = messages.Hello(rank=3, role="clocks", token="t", gpu=GPU)
        self.hear(2, clocks)

    def hear(self, client: int, message: messages.ToHelper) -> None:
        self.stopped.hear(client, message, Connection(self.process.pid))  # type: ignore[arg-type]

    def send(self, number: signal.Signals, then: str) -> None:
        self.process.send_signal(number)
        wait_for(lambda: self.state() == then, what=f"state {then}")

    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def look(self, times: int) -> None:
        for _ in range(times):
            self._clock.now += 2.1
            self.stopped.look(self._clock())


@pytest.fixture
def host(processes: Processes, clock: Clock) -> Host:
    host = Host(processes, clock)
    wait_for(lambda: host.state() == "S", what="the process")
    return host


def test_a_clock_process_that_runs_is_left_alone_however_long_it_says_nothing(host: Host) -> None:
    host.look(1000)
    assert host.resets == []


def test_the_stop_of_a_clock_process_is_told_once_so_that_its_gpu_is_reset(host: Host) -> None:
    for count in (1, 2):
        host.send(signal.SIGSTOP, "T")
        host.look(1)
        assert len(host.resets) == count - 1, "it may be a debugger's stop"
        host.look(10)
        assert host.resets == count * [(3, GPU)]
        host.send(signal.SIGCONT, "S")
        host.look(3)


@pytest.mark.parametrize("end", ["released", "gone"])
def test_a_clock_process_that_has_reset_its_clocks_or_is_gone_is_not_looked_at(host: Host, end: str) -> None:
    if end == "gone":
        host.stopped.gone(2)
    else:
        host.hear(2, messages.ClocksReleased())
    host.send(signal.SIGSTOP, "T")
    host.look(5)
    assert host.resets == []


@pytest.mark.parametrize("raises", [False, True])
def test_the_result_of_a_reset_is_told_also_if_it_raises(raises: bool) -> None:
    def reset(_: messages.GpuToReset) -> str:
        if raises:
            raise RuntimeError("the driver is away")
        return "the driver is away"

    told: list[tuple[object, ...]] = []
    Resets(lambda: None, reset, lambda *ended: told.append(ended), lambda *_: None).start(3, GPU)
    wait_for(lambda: told, what="the result")
    assert told == [(3, GPU, "the driver is away")]
