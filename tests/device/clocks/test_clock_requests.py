"""Which clock is wanted in steps that have one clock each, as the device gets through them."""

from __future__ import annotations

import pytest
from fake_clocks import FakeClocks

from pfo_fs.device.clocks.clock_requests import ClockRequests
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.gpu.driver_errors import NEVER
from pfo_fs.device.shared_page import IDLE, PROGRESS, TURNS
from pfo_fs.training.progress_marker import ProgressMarker

S = 1_000_000_000


class Device:
    """A device that reaches points when a test says so."""

    def __init__(self) -> None:
        clocks = FakeClocks()
        self.words, self.launched = clocks.words, [IDLE]
        self.marker = ProgressMarker(clocks, self.launched.append)
        self.requests = ClockRequests(clocks.words, LatencyModel())

    def reach(self) -> None:
        """Reaches the last point that was launched."""
        self.words[PROGRESS] = self.launched[-1]


@pytest.fixture
def device() -> Device:
    return Device()


def test_a_step_has_its_clock_from_its_begin_to_its_end(device: Device) -> None:
    device.marker.begin_at(1200)
    assert device.requests.wanted(0) == 0, "the device has not got there"
    device.reach()
    assert device.requests.wanted(1 * S) == 1200
    device.marker.end_step()
    device.marker.begin_at(900)
    assert device.requests.wanted(2 * S) == 1200, "the device still works, and the next step is only launched"
    device.reach()
    assert device.requests.wanted(3 * S) == 900
    device.marker.end_step()
    device.reach()
    assert device.requests.wanted(4 * S) == 0


def test_the_clock_may_come_while_the_step_runs(device: Device) -> None:
    turn = device.marker.begin_at(0)
    device.reach()
    assert device.requests.wanted(1 * S) == 0
    device.words[TURNS + turn % 16] = 1100
    assert device.requests.wanted(2 * S) == 1100


def test_a_step_that_was_left_open_goes_to_the_default_clock(device: Device) -> None:
    device.marker.begin_at(1200)
    device.reach()
    assert device.requests.wanted(1 * S) == 1200
    wake_ns = device.requests.wake_ns(1 * S)
    assert 1 * S < wake_ns < NEVER
    assert device.requests.wanted(wake_ns) == 0


def test_steps_of_a_minute_are_not_taken_for_open_ones_after_the_first(device: Device) -> None:
    now_ns = 0
    for _ in range(2):
        device.marker.begin_at(1200)
        device.reach()
        device.requests.wanted(now_ns)
        now_ns += 60 * S
        device.marker.end_step()
        device.reach()
        device.requests.wanted(now_ns)
    device.marker.begin_at(1200)
    device.reach()
    assert device.requests.wanted(now_ns) == 1200
    assert device.requests.wanted(now_ns + 100 * S) == 1200


def test_a_step_of_a_schedule_that_still_runs_is_not_read_as_one_with_one_clock(device: Device) -> None:
    for mhz in (1000, 1100):
        device.marker.set_plan([mhz], [0])
    device.marker.begin_step()
    device.reach()
    device.marker.begin_at(0)  # the schedule was withdrawn
    assert device.requests.wanted(1 * S) == 0
