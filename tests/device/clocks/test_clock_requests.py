"""Which clock is wanted in steps that have one clock each, as the device gets through them."""

import pytest
from fake_clocks import MS, Device, FakeClocks

from pfo_fs.device.gpu.driver_errors import NEVER
from pfo_fs.device.shared_page import TURNS

S = 1000 * MS


@pytest.fixture
def device() -> Device:
    return Device(FakeClocks())


def test_a_step_has_its_clock_from_its_begin_to_its_end(device: Device) -> None:
    device.marker.begin_at(1200)
    assert device.reach(0) == 0, "the device has not got there"
    assert device.catch_up() == 1200
    device.marker.end_step()
    device.marker.begin_at(900)
    assert device.reach(0) == 1200, "the device still works, and the next step is only launched"
    assert device.catch_up() == 900
    device.marker.end_step()
    assert device.catch_up() == 0


def test_the_clock_may_come_while_the_step_runs(device: Device) -> None:
    turn = device.marker.begin_at(0)
    assert device.catch_up() == 0
    device.clocks.words[TURNS + turn % 16] = 1100
    assert device.reach(0) == 1100


def test_a_step_that_was_left_open_goes_to_the_default_clock(device: Device) -> None:
    device.marker.begin_at(1200)
    assert device.catch_up() == 1200
    wake_ns = device.requests.wake_ns(device.now_ns)
    assert device.now_ns < wake_ns < NEVER
    assert device.requests.wanted(wake_ns) == 0


def test_steps_of_a_minute_are_not_taken_for_open_ones_after_the_first(device: Device) -> None:
    for _ in range(2):
        device.marker.begin_at(1200)
        device.catch_up()
        device.now_ns += 60 * S
        device.marker.end_step()
        device.catch_up()
    device.marker.begin_at(1200)
    assert device.catch_up() == 1200
    assert device.requests.wanted(device.now_ns + 100 * S) == 1200


def test_a_step_of_a_schedule_that_still_runs_is_not_read_as_one_with_one_clock(device: Device) -> None:
    for mhz in (1000, 1100):
        device.marker.set_plan([mhz], [0])
    device.marker.begin_step()
    device.catch_up()
    device.marker.begin_at(0)  # the schedule was withdrawn
    assert device.reach(0) == 0
