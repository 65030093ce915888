"""Asynchronous work on a simulated GPU."""

from __future__ import annotations

import threading

import pytest
from running import HANGS_AFTER_S

from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.device.simulated.stream import SimulatedEvent, SimulatedStream


@pytest.fixture
def stream(kernels: SimulatedKernels) -> SimulatedStream:
    return kernels.stream


class Gate:
    """Work that the device does not get through until it is opened."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._open = threading.Event()
        self.done: list[object] = []
        stream.launch("forward", work=8)  # else it may be over before the next call
        stream.call(lambda: self._open.wait(HANGS_AFTER_S) and None)
        self._stream = stream

    def note(self, what: object) -> None:
        self._stream.call(lambda: self.done.append(what))

    def open(self) -> None:
        self._open.set()


def test_a_launch_returns_before_the_device_has_begun_and_work_is_done_in_the_order_of_its_launch(
    stream: SimulatedStream,
) -> None:
    gate = Gate(stream)
    for number in range(5):
        gate.note(number)
        stream.launch("forward")
    assert gate.done == []
    gate.open()
    stream.synchronize()
    assert gate.done == [0, 1, 2, 3, 4]


def test_an_event_is_ready_when_the_device_gets_there_each_time_that_it_is_recorded(stream: SimulatedStream) -> None:
    before, event = SimulatedEvent(stream), SimulatedEvent(stream)
    before.record()
    event.record()
    assert event.query()
    gate = Gate(stream)
    event.record()
    assert not event.query()
    gate.open()
    stream.synchronize()
    assert event.query()
    assert before.elapsed_time(event) > 0


def test_what_is_not_done_when_the_stream_is_closed_is_dropped(stream: SimulatedStream) -> None:
    gate = Gate(stream)
    gate.note("never")
    stream.close()
    gate.open()
    stream.synchronize()
    assert gate.done == []
