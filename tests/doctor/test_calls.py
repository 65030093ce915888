"""What the durations of calls say."""

from __future__ import annotations

import pytest

from pfo_fs.doctor import all_reduce, calls
from pfo_fs.doctor.all_reduce import Measured
from pfo_fs.errors import DeviceError


def test_the_percentile_is_a_value_that_was_measured() -> None:
    assert calls.percentile(range(1, 101), 0.99) == 99
    assert calls.percentile([7.0], 0.99) == 7


@pytest.mark.parametrize(
    ("at_once_s", "serial"), [([0.041, 0.040, 0.2], True), ([0.006, 0.0052, 0.0051], False), ([0.03], True)]
)
def test_calls_that_take_as_long_as_all_one_by_one_wait_for_each_other(at_once_s: list[float], serial: bool) -> None:
    assert calls.wait_for_each_other(0.005, at_once_s, 8) is serial


def test_calls_that_take_no_time_do_not_wait_for_each_other() -> None:
    assert not calls.wait_for_each_other(0.000005, [0.0004], 4)


def test_without_all_reduces_the_driver_may_be_busy_most_of_the_time() -> None:
    assert calls.suggested_calls_per_s(200, {}) == pytest.approx(160)


@pytest.mark.parametrize(
    ("delays", "most"),
    [
        ({0: 0.0, 5: 0.001, 20: 0.01, 50: 0.019}, 160),
        ({0: 0.0, 5: 0.001, 20: 0.01, 50: 0.3}, 20),
        ({0: 0.0, 5: 0.1, 20: 0.01, 50: 0.3}, 2.5),
    ],
)
def test_a_rate_that_delays_all_reduces_is_not_suggested(delays: dict[float, float], most: float) -> None:
    assert calls.suggested_calls_per_s(200, delays) == pytest.approx(most)


def test_the_delay_of_an_all_reduce_is_compared_with_all_windows_without_calls() -> None:
    measured = [
        Measured(second + 0.1 * part, took_s) for second, took_s in enumerate([1.0, 1.2, 1.1]) for part in range(4)
    ]
    windows = [(0, -1, 0.9), (20, 0.95, 1.9), (0, 1.95, 3)]
    delays = all_reduce.delays_of(measured, windows)
    assert delays[0] == pytest.approx(0)
    assert delays[20] == pytest.approx(1.2 / 1.05 - 1)


def test_a_window_with_too_few_all_reduces_is_an_error() -> None:
    with pytest.raises(DeviceError, match="while 20 calls"):
        all_reduce.delays_of([Measured(0.5, 1.0)] * 3, [(0, 0, 1), (20, 1, 2)])


def test_simulated_gpus_have_no_all_reduce_to_delay() -> None:
    assert all_reduce.why_not(8, real=False)
    assert all_reduce.why_not(1, real=True)
