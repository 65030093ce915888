"""Part `idle`: the power after a load has ended, second by second, and how soon the clock is high again.

The clock is not read but measured on the device: a kernel that spins for a fixed number of clock cycles takes longer at
a lower clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.analysis import tick_powers_w
from benchmarks.gpu.cuda import Load, gpu_spec, make_event, matmul, nvml, seconds
from benchmarks.gpu.energy_reader import EnergyReader

LOAD_S = 4.0
IDLE_S = 14
CYCLES = 100_000
RESTS_S = (0.05, 12.0)
WATCH_S = 1.0
_NEXT = 9
"""The median of so many measurements tells the clock."""


def measure() -> Iterator[dict[str, Any]]:
    """Measures the power after a load, then the first kernels."""
    gpu_spec()
    load = Load(matmul(8192), chunk_ms=30)
    yield _after_load(load)
    spin = lambda: torch.cuda._sleep(CYCLES)  # noqa: E731
    heavy = matmul(4096)
    for rest_s in RESTS_S:
        rest_s = min(rest_s, max(0.05, seconds(rest_s)))
        yield _first_kernels("one thread", lambda: None, spin, rest_s)
        yield _first_kernels("matrix product 4096", heavy, spin, rest_s)


def _run(load: Load, lasting_s: float) -> float:
    """Runs a load; returns when the device has ended it."""
    until_s = time.perf_counter() + lasting_s
    while time.perf_counter() < until_s:
        load.keep_busy()
        time.sleep(0.001)
    load.finish()
    return time.perf_counter()


def _after_load(load: Load) -> dict[str, Any]:
    """Returns the power in each second after the load, and the clock at its end."""
    pynvml, handle = nvml()
    idle_s = max(4, round(seconds(IDLE_S)))
    clocks, states, reasons = [], [], []
    with EnergyReader(pause_s=0.01) as reader:
        ended_s = _run(load, seconds(LOAD_S) + 1)
        for second in range(idle_s):
            time.sleep(max(0.0, ended_s + second + 1.0 - time.perf_counter()))
            clocks.append(int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)))
            states.append(int(pynvml.nvmlDeviceGetPerformanceState(handle)))
            reasons.append(int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
        around_end = tick_powers_w(reader.between(ended_s - 0.3, ended_s + 1.2))
        powers = [reader.power_w(ended_s + i - 0.06, ended_s + i + 1.06) for i in range(idle_s - 1)]
    return {
        "what": "power after a matrix product, by seconds, counter read throughout",
        "power_w": powers,
        "power_by_ticks_around_the_end_w": around_end,
        "clock_mhz": clocks,
        "performance_state": states,
        "clock_reasons": reasons,
    }


def _first_kernels(name: str, work: Any, spin: Any, rest_s: float) -> dict[str, Any]:
    """Runs work and spins by turns after a rest; returns how the clock rose."""
    work()
    spin()
    torch.cuda.synchronize()
    time.sleep(rest_s)
    origin = make_event()
    origin.record()
    spans = []
    until_s = time.perf_counter() + WATCH_S
    while time.perf_counter() < until_s:
        work()
        begin, end = make_event(), make_event()
        begin.record()
        spin()
        end.record()
        spans.append((begin, end))
        if len(spans) % 64 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    seen = [(float(origin.elapsed_time(end)), CYCLES / float(begin.elapsed_time(end)) / 1e3) for begin, end in spans]
    last_mhz = median(mhz for at_ms, mhz in seen if at_ms > 0.7 * seen[-1][0])
    steady = [median(mhz for _, mhz in seen[i : i + _NEXT]) for i in range(len(seen) - _NEXT)]
    high = [at_ms for (at_ms, _), mhz in zip(seen, steady, strict=False) if mhz >= 0.98 * max(steady)]
    return {
        "what": f"{name}, after {rest_s:g} s without work",
        "first_mhz": seen[0][1],
        "highest_mhz": max(steady),
        "last_mhz": last_mhz,
        "first_kernel_ended_ms": seen[0][0],
        "high_after_ms": high[0],
        "by_time": [seen[i] for i in sorted({min(len(seen) - 1, round(1.5**k) - 1) for k in range(24)})],
    }
