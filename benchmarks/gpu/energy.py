"""Part `energy`: how often NVML's energy counter moves, by how much, and what one reading costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.analysis import spread, ticks_of
from benchmarks.gpu.cuda import Load, matmul, nvml

SECONDS = 5.0


def measure() -> Iterator[dict[str, Any]]:
    """Polls the counter under a steady load."""
    pynvml, handle = nvml()
    read = pynvml.nvmlDeviceGetTotalEnergyConsumption
    load = Load(matmul(4096), chunk_ms=50)
    until_s = time.perf_counter() + 1.0
    while time.perf_counter() < until_s:  # until clocks and power are steady
        load.keep_busy()
        time.sleep(0.001)
    samples: list[tuple[float, int]] = []
    costs_us: list[float] = []
    until_s = time.perf_counter() + SECONDS
    while (began_s := time.perf_counter()) < until_s:
        energy_mj = int(read(handle))
        ended_s = time.perf_counter()
        costs_us.append((ended_s - began_s) * 1e6)
        samples.append((ended_s, energy_mj))
        load.keep_busy()
    load.finish()
    ticks = ticks_of(samples)
    yield {
        "what": "energy counter under a matrix product",
        "readings": len(samples),
        "tick_ms": ticks.period_ms,
        "tick_p95_ms": ticks.period_p95_ms,
        "step_mj": ticks.step_mj,
        "power_w": ticks.power_w,
        "read_us": spread(costs_us),
    }
