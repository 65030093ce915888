"""Averages over steps from the readings in the shared page."""

from __future__ import annotations

import pytest
from clock import replace_time

from pfo_fs.device.metering import step_metrics
from pfo_fs.device.metering.step_metrics import Readings, StepMetrics
from pfo_fs.device.shared_page import WORDS

S = 1_000_000_000


class Gpu:
    """A GPU whose power depends on its clock; `run` lets time pass, with a reading at its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.energy_j = 100 * S, 5000.0
        replace_time(monkeypatch, step_metrics.__name__, monotonic_ns=lambda: self.now_ns)
        self.words = memoryview(bytearray(WORDS * 8)).cast("q")
        self.readings = Readings(self.words, 1400)
        self.readings.write(self.now_ns, self.energy_j)

    def run(self, seconds: float, watts: float) -> None:
        self.now_ns += round(seconds * S)
        self.energy_j += seconds * watts
        self.readings.write(self.now_ns, self.energy_j)

    def clock(self, mhz: int) -> None:
        self.readings.clock_set(self.now_ns, mhz)


def test_numbers_are_averages_over_the_steps_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    metrics = StepMetrics([gpu.words])
    assert metrics.since_last(1400) == {}
    metrics.step_begins()
    for _ in range(4):
        gpu.run(2.0, 400.0)
        metrics.step_begins()
    at_top = {"step_time_s": 2.0, "power_w": 400.0, "energy_j": 800.0, "clock_mhz": 1400.0, "saving": 0.0}
    assert metrics.since_last(1400) == pytest.approx({f"pfo_fs/{key}": value for key, value in at_top.items()})
    gpu.clock(1000)
    for _ in range(2):
        gpu.run(2.5, 240.0)
        metrics.pause()
        gpu.run(60.0, 50.0)  # an evaluation
        metrics.resume()
        metrics.step_begins()
    lower = {"step_time_s": 2.5, "power_w": 240.0, "energy_j": 600.0, "clock_mhz": 1000.0, "saving": 0.25}
    for _ in range(2):  # without a step and a reading in between, the numbers stay
        assert metrics.since_last(1400) == pytest.approx({f"pfo_fs/{key}": value for key, value in lower.items()})


def test_without_a_reading_there_is_only_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = iter((S, 2 * S, 3 * S))
    replace_time(monkeypatch, step_metrics.__name__, monotonic_ns=lambda: next(times_ns))
    metrics = StepMetrics([memoryview(bytearray(WORDS * 8)).cast("q")])
    metrics.step_begins()
    metrics.step_begins()
    metrics.step_begins()
    assert metrics.since_last(1400) == {"pfo_fs/step_time_s": 1.0}
