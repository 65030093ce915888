"""How long after its call has returned a clock acts, for clocks over the whole range."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.doctor.change_moment import find_change
from pfo_fs.doctor.load import Load

_BEFORE_S = 0.06
"""The load runs this long at the old clock."""


@dataclass
class Settling:
    """What was seen of changes of the clock.

    Attributes:
        samples_s: For each target in MHz, the times from the return of the call until the clock acted.
        requested_s: The same from the begin of the call.
        stood_still_s: For each change, how long the GPU stood still.
        not_seen: Targets in MHz of changes that the kernels did not show, twice.
    """

    samples_s: dict[int, list[float]] = field(default_factory=dict)
    requested_s: dict[int, list[float]] = field(default_factory=dict)
    stood_still_s: list[float] = field(default_factory=list)
    not_seen: list[int] = field(default_factory=list)

    @property
    def latency_s(self) -> Mapping[int, float]:
        """For each target, the median time from the return of the call until the clock acts; at least 0."""
        return {mhz: max(0.0, median(samples)) for mhz, samples in sorted(self.samples_s.items())}

    @property
    def unsteady_s(self) -> float | None:
        """The mean difference of a change from the median one to the same clock; None if each was seen once."""
        differences = [
            abs(sample - median(samples))
            for samples in self.requested_s.values()
            for sample in samples
            if len(samples) > 1
        ]
        return mean(differences) if differences else None


def spread_targets(clocks_mhz: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` clocks that are spread evenly over those on offer, lowest first."""
    ordered = sorted(set(clocks_mhz))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]


def chain(targets_mhz: Sequence[int], rounds: int, seed: int = 0) -> list[int]:
    """Returns an order of changes: each target once per round, from another clock before in each round.

    Clocks of the lower and of the upper half alternate, so that the durations before and after a change differ.
    """
    ordered = sorted(targets_mhz)
    middle = len(ordered) // 2
    chance = random.Random(seed)
    order: list[int] = []
    for _ in range(rounds):
        low, high = chance.sample(ordered[:middle], middle), chance.sample(ordered[middle:], len(ordered) - middle)
        while low or high:
            goes_down = low and (not high or (order and order[-1] >= ordered[middle]))
            order.append((low if goes_down else high).pop())
    return order


def measure_settling(
    gpu: Gpu, load: Load, order_mhz: Sequence[int], watch_s: float, progress: Callable[[int], None] = lambda done: None
) -> Settling:
    """Makes changes of the clock one after the other under a load, and finds when each one acts.

    Args:
        gpu: The GPU.
        load: A load on it.
        order_mhz: The clocks to set, in this order.
        watch_s: How long the load runs after each request; the longest time that can be found is a little shorter.
        progress: Called with the number of changes made.
    """
    seen = Settling()
    gpu.lock_clock_mhz(order_mhz[-1])  # the first change comes from another clock than its own
    time.sleep(watch_s)
    for done, mhz in enumerate(order_mhz, 1):
        _measure_change(gpu, load, mhz, watch_s, seen)
        progress(done)
    missing, seen.not_seen = seen.not_seen, []
    for mhz in missing:  # once more, from the clock that differs most
        gpu.lock_clock_mhz(max(order_mhz, key=lambda other, mhz=mhz: abs(other - mhz)))  # type: ignore[misc]
        time.sleep(watch_s)
        _measure_change(gpu, load, mhz, watch_s, seen)
    return seen


def _measure_change(gpu: Gpu, load: Load, mhz: int, watch_s: float, seen: Settling) -> None:
    load.start()
    try:
        time.sleep(_BEFORE_S)
        requested_s = time.monotonic()
        gpu.lock_clock_mhz(mhz)
        returned_s = time.monotonic()
        time.sleep(watch_s)
    finally:
        kernels = load.stop()
    change = find_change(kernels, requested_s)
    if change is None:
        seen.not_seen.append(mhz)
        return
    seen.samples_s.setdefault(mhz, []).append(change.acted_s - returned_s)
    seen.requested_s.setdefault(mhz, []).append(change.acted_s - requested_s)
    seen.stood_still_s.append(change.stood_still_s)
