"""Part `waves`: whether NVML's energy counter can be trusted under a load that comes and goes in its own rhythm.

A counter that looks at the power in a part of each of its periods only would count a load of the same period by its
phase: all of it or none. So the load is on for half of each period, with periods that are multiples of the counter's,
in several phases, and with periods beside those. All draw about the same power; a wave of 20 ms is the reference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import fmean, pstdev, stdev
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.analysis import mean_power_w, period_ms, step_mj, tick_powers_w
from benchmarks.gpu.cuda import Load, gpu_spec, make_event, matmul, seconds, sleep_until
from benchmarks.gpu.energy_reader import EnergyReader

SECONDS = 2.6
PHASES = {1: 8, 2: 4, 3: 4}
"""With how many phases a wave of so many periods of the counter is measured."""
BESIDE_MS = (95.0, 105.0, 195.0, 205.0, 295.0, 305.0)
REFERENCE_MS = 20.0


class _Wave(NamedTuple):
    power_w: float
    by_samples_w: float
    """The mean of the driver's power samples, some 20 ms apart; NaN without."""
    piece_j: float
    """Energy of one matrix product with its share of the pauses, so that waves of slightly different shares compare."""
    tick_w_deviation: float
    """Standard deviation of the power of single ticks."""
    busy_share: float
    late_ms: float
    """How late the latest burst began, as the host sees it."""
    ticks: int


def measure() -> Iterator[dict[str, Any]]:
    """Measures the counter's period, then waves."""
    gpu_spec()
    load = Load(matmul(8192), chunk_ms=20)
    lasting_s = max(1.2, seconds(SECONDS))
    with EnergyReader() as reader:
        _run_wave(reader, load, REFERENCE_MS, 0.0, 1.5)  # until clocks and temperature are steady
        counter_ms = period_ms(reader.ticks)
        late_ms = fmean(tick.late_s for tick in reader.ticks) * 1e3
        yield {"what": "counter", "period_ms": counter_ms, "seen_late_ms": late_ms, "step_mj": step_mj(reader.ticks)}
        reference = _run_wave(reader, load, REFERENCE_MS, 0.0, lasting_s)
        yield {"what": f"wave of {REFERENCE_MS:g} ms", **_figures(reference, reference)}
        for periods, count in PHASES.items():
            phases = []
            for phase in range(count):
                wave = _run_wave(reader, load, periods * counter_ms, phase / count, lasting_s)
                phases.append(wave.power_w)
                what = f"wave of {periods} periods of the counter, begun {phase}/{count} after a tick"
                yield {"what": what, **_figures(wave, reference)}
            what = f"wave of {periods} periods of the counter, all phases"
            share = {"range_share": (max(phases) - min(phases)) / fmean(phases)}
            yield {
                "what": what,
                "mean_power_w": fmean(phases),
                **share,
                "deviation_share": stdev(phases) / fmean(phases),
            }
        for wave_ms in BESIDE_MS:
            wave = _run_wave(reader, load, wave_ms, 0.0, lasting_s)
            yield {"what": f"wave of {wave_ms:g} ms", **_figures(wave, reference)}
        again = _run_wave(reader, load, REFERENCE_MS, 0.0, lasting_s)
        yield {"what": f"wave of {REFERENCE_MS:g} ms, again", **_figures(again, reference)}


def _figures(wave: _Wave, reference: _Wave) -> dict[str, float]:
    return {**wave._asdict(), "off_reference": wave.piece_j / reference.piece_j - 1}


def _run_wave(reader: EnergyReader, load: Load, wave_ms: float, phase: float, lasting_s: float) -> _Wave:
    """Runs bursts of half a period; the first one begins `phase` of a period after a tick."""
    pieces = max(1, round(wave_ms / 2 / load.piece_ms))
    known = len(reader.ticks)
    while len(reader.ticks) == known:
        time.sleep(0.0005)
    begin_s = reader.ticks[-1].at_s + max(0.05, wave_ms / 1e3) + phase * wave_ms / 1e3
    count = max(4, round(lasting_s * 1e3 / wave_ms))
    events: list[tuple[Any, Any]] = []
    late_s = 0.0
    for i in range(count):
        sleep_until(begin_s + i * wave_ms / 1e3)
        late_s = max(late_s, time.perf_counter() - begin_s - i * wave_ms / 1e3)
        events.append((make_event(), make_event()))
        events[-1][0].record()
        for _ in range(pieces):
            load.work()
        events[-1][1].record()
    end_s = begin_s + count * wave_ms / 1e3
    sleep_until(end_s)
    torch.cuda.synchronize()
    busy_s = sum(float(begin.elapsed_time(end)) for begin, end in events) / 1e3
    ticks = reader.between(begin_s + 0.25, end_s)  # the first ticks cover the time before the wave
    power_w = mean_power_w(ticks)
    piece_j = power_w * wave_ms / 1e3 / pieces
    deviation_w = pstdev(tick_powers_w(ticks))
    busy_share = busy_s / (count * wave_ms / 1e3)
    by_samples_w = _by_samples_w(reader, begin_s + 0.25, end_s)
    return _Wave(power_w, by_samples_w, piece_j, deviation_w, busy_share, late_s * 1e3, len(ticks))


def _by_samples_w(reader: EnergyReader, begin_s: float, end_s: float) -> float:
    """Returns the mean of the driver's power samples between two times; it keeps those of some two seconds."""
    pynvml = reader.pynvml
    epoch_s = time.time() - time.perf_counter()
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(reader.handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    except pynvml.NVMLError:
        return math.nan
    times_s = [(int(sample.timeStamp) / 1e6 - epoch_s, int(sample.sampleValue.uiVal) / 1e3) for sample in samples]
    powers = [power_w for at_s, power_w in times_s if begin_s <= at_s <= end_s]
    return fmean(powers) if powers else math.nan
