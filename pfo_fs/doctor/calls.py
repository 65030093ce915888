"""How long calls take that set clocks: of one GPU alone, of all GPUs at once, and how many the driver serves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from statistics import median
from threading import Barrier, Event
from typing import TypeVar

from pfo_fs.device.clocks.driver_calls import BUSY_SHARE
from pfo_fs.device.gpu.interface import Gpu

T = TypeVar("T")

MOST_DELAY = 0.02
"""A rate of calls that makes an all-reduce this much slower is too high."""
_NO_TIME_S = 0.0002


def durations_alone_s(gpu: Gpu, clocks_mhz: Sequence[int], count: int) -> list[float]:
    """Returns the durations of `count` calls of one GPU, each to another clock than the last one."""
    durations = []
    for mhz in islice(cycle(clocks_mhz), count):
        began_s = time.monotonic()
        gpu.lock_clock_mhz(mhz)
        durations.append(time.monotonic() - began_s)
    return durations


def durations_at_once_s(gpus: Sequence[Gpu], clocks_mhz: Sequence[int], rounds: int) -> list[float]:
    """Returns, for each round, the time from the first begin to the last end of one call per GPU, all at once."""
    totals = []
    for mhz in islice(cycle(clocks_mhz), rounds):
        ready = Barrier(len(gpus))

        def call(gpu: Gpu, ready: Barrier = ready, mhz: int = mhz) -> tuple[float, float]:
            ready.wait()
            began_s = time.monotonic()
            gpu.lock_clock_mhz(mhz)
            return began_s, time.monotonic()

        begins_s, ends_s = zip(*_in_threads(call, gpus), strict=True)
        totals.append(max(ends_s) - min(begins_s))
    return totals


def most_calls_per_s(gpus: Sequence[Gpu], clocks_mhz: Sequence[int], seconds: float) -> float:
    """Returns how many calls per second the driver serves while each GPU always has one waiting."""
    end = Event()
    began_s = time.monotonic()

    def call(gpu: Gpu) -> int:
        for count, mhz in enumerate(cycle(clocks_mhz)):
            if end.is_set() or time.monotonic() - began_s >= seconds:
                return count
            gpu.lock_clock_mhz(mhz)
        return 0

    try:
        calls = sum(_in_threads(call, gpus))
    finally:
        end.set()
    return calls / (time.monotonic() - began_s)


def _in_threads(function: Callable[[Gpu], T], gpus: Sequence[Gpu]) -> list[T]:
    with ThreadPoolExecutor(len(gpus)) as threads:
        return list(threads.map(function, gpus))


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the smallest value that at least this share of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def wait_for_each_other(alone_s: float, at_once_s: Sequence[float], gpus: int) -> bool:
    """Returns whether the calls of a node's GPUs wait for each other.

    Calls that do take `gpus` times as long as one; calls that do not take as long as one. What is nearer counts. Calls
    that take next to no time do not: the threads that make them begin further apart than that.
    """
    return alone_s > _NO_TIME_S and median(at_once_s) > alone_s * (1 + gpus) / 2


def suggested_calls_per_s(served_per_s: float, delays: dict[float, float]) -> float:
    """Returns the most calls per second that jobs should make.

    The driver may be busy for `BUSY_SHARE` of the time, and an all-reduce must not take `MOST_DELAY` longer.

    Args:
        served_per_s: What the driver serves.
        delays: For each rate at which an all-reduce was measured, the share by which it took longer.
    """
    most = BUSY_SHARE * served_per_s
    bad = [rate for rate, delay in delays.items() if delay > MOST_DELAY]
    if bad:
        good = [rate for rate in delays if 0 < rate < min(bad)]
        most = min(most, max(good, default=min(bad) / 2))
    return most
