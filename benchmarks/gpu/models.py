"""Part `models`: time and power of kernels at the clocks that the GPU chooses, and how well simple models fit them.

Nothing is set. Matrix products of mostly zeros draw less power, so a GPU at its power limit runs them at higher clocks:
this moves the clock without setting it. Pauses between bursts of the same kernel move the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.analysis import fit_line, fit_time
from benchmarks.gpu.cuda import Load, attention, copy, matmul, nvml

WARM_UP_S = 1.0
SECONDS = 1.5
SAMPLE_S = 0.005
FILLED = (1.0, 0.5, 0.25, 0.1, 0.0)
BUSY = (1.0, 0.75, 0.5, 0.25, 0.0)
_LEAST_RANGE = 0.02


class Sample(NamedTuple):
    """One kind of work, for a second or two."""

    clock_mhz: float
    clock_low_mhz: int
    clock_high_mhz: int
    power_w: float
    held_back_by: int
    """NVML's bits of reasons why the clock is not higher."""


class _Meter:
    """Reads NVML: SM clock, energy counter, reasons."""

    def __init__(self) -> None:
        self._nvml, self._handle = nvml()
        self.top_mhz = int(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        self._reasons = next(getattr(self._nvml, name) for name in names if hasattr(self._nvml, name))

    def _energy_mj(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def watch(self, keep_busy: Callable[[], None]) -> Sample:
        """Samples until the energy counter has ticked, and then for `SECONDS` and until it ticks again."""
        clocks: list[int] = []
        reasons = 0
        first_mj = before_mj = self._energy_mj()
        began_s = 0.0
        deadline_s = time.perf_counter() + SECONDS + 5.0
        while time.perf_counter() < deadline_s:
            keep_busy()
            now_mj, now_s = self._energy_mj(), time.perf_counter()
            if now_mj != before_mj:
                if not began_s:
                    began_s, first_mj = now_s, now_mj
                    clocks.clear()
                    reasons = 0
                elif now_s - began_s >= SECONDS:
                    power_w = (now_mj - first_mj) / 1e3 / (now_s - began_s)
                    return Sample(fmean(clocks), min(clocks), max(clocks), power_w, reasons)
                before_mj = now_mj
            if began_s and now_s - began_s >= SAMPLE_S * len(clocks):
                clocks.append(int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)))
                reasons |= int(self._reasons(self._handle))
        raise RuntimeError("the energy counter does not move, so power cannot be measured")


def measure() -> Iterator[dict[str, Any]]:
    """Measures kernels, then fits."""
    meter = _Meter()
    products: list[tuple[float, float]] = []
    works = [(f"matrix product 8192, {filled:.0%} not zero", lambda f=filled: matmul(8192, f)) for filled in FILLED]
    works += [
        ("matrix product 4096", lambda: matmul(4096)),
        ("matrix product 2048", lambda: matmul(2048)),
        ("attention 4096", lambda: attention(4096)),
        ("copy 1 GiB", lambda: copy(1024)),
    ]
    for what, make in works:
        sample, piece_s = _steady(meter, Load(make()))
        if "8192" in what:
            products.append((sample.clock_mhz, piece_s))
        yield {"what": what, "time_ms": piece_s * 1e3, **sample._asdict()}
    loads: list[tuple[float, float]] = []
    for busy in BUSY:
        share, sample = _bursts(meter, Load(matmul(8192), chunk_ms=30), busy)
        loads.append((share, sample.power_w))
        yield {"what": f"matrix product 8192, {busy:.0%} of the time", "busy_share": share, **sample._asdict()}
    yield from _fits(meter.top_mhz, products, loads)


def _steady(meter: _Meter, load: Load) -> tuple[Sample, float]:
    until_s = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until_s:
        load.keep_busy()
        time.sleep(0.001)
    load.finish()
    sample = meter.watch(load.keep_busy)
    return sample, load.finish()


class _Bursts:
    """Runs chunks of a load with pauses between them.

    Args:
        load: The load.
        busy: The share of the time in which it runs.
    """

    def __init__(self, load: Load, busy: float) -> None:
        self._load = load
        self._busy = busy
        self._began_s = self._next_s = self._burst_s = 0.0
        self.busy_s = self.whole_s = 0.0

    def keep_busy(self) -> None:
        """Runs one chunk and waits for it, if the pause after the last one is over; otherwise sleeps a moment."""
        now_s = time.perf_counter()
        if not self._busy or now_s < self._next_s:
            time.sleep(0.001)
            return
        if self._burst_s:
            self.busy_s += self._burst_s
            self.whole_s += now_s - self._began_s
        self._began_s = now_s
        for _ in range(self._load.pieces):
            self._load.work()
        torch.cuda.synchronize()
        self._burst_s = time.perf_counter() - now_s
        self._next_s = now_s + self._burst_s / self._busy


def _bursts(meter: _Meter, load: Load, busy: float) -> tuple[float, Sample]:
    """Runs bursts with pauses; returns the share of the time in which the device was busy, and what was seen."""
    bursts = _Bursts(load, busy)
    until_s = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until_s:
        bursts.keep_busy()
    bursts.busy_s = bursts.whole_s = 0.0
    sample = meter.watch(bursts.keep_busy)
    return (bursts.busy_s / bursts.whole_s if bursts.whole_s else 0.0), sample


def _fits(
    top_mhz: int, products: list[tuple[float, float]], loads: list[tuple[float, float]]
) -> Iterator[dict[str, Any]]:
    clocks = [mhz for mhz, _ in products]
    if max(clocks) / min(clocks) - 1 >= _LEAST_RANGE:
        fit = fit_time(products, top_mhz)
        what = "fit: time = time_ref_s * (a / x + 1 - a), x = clock / highest"
        yield {"what": what, "top_mhz": top_mhz, **fit._asdict()}
    else:
        why = f"the clock only moved from {min(clocks):.0f} to {max(clocks):.0f} MHz"
        yield {"what": "fit of time to the clock", "not_fitted": why}
    line = fit_line(loads)
    yield {
        "what": "fit: power = idle + slope * share of busy time",
        "idle_w": line.at_zero,
        "slope_w": line.slope,
        "worst": line.worst,
    }
