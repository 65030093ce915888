"""When each clock acts, from samples of very different precision, and for clocks without samples from the other clocks.

A sample is exact where the clock changes by much, and says little where it changes by 2 %. So each has an error, and
counts by it. Clocks of one GPU have something in common: on some nodes all act after the same time, on others the times
differ tenfold. How much they have in common is estimated from the clocks that have samples (the random-effects model
of DerSimonian and Laird, 1986). A clock with few or no samples then gets the mean of the others, with an error that
tells how much they differ.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

_SAMPLES = 12
"""The latest samples of a clock that count, so that a throttled GPU is forgotten."""
_MEDIAN_ERROR = 1.25
"""The standard error of a median, as a multiple of that of a mean."""
_FIRST_NS, _FIRST_SPREAD_NS = 5e6, 10e6
"""The latency of any clock before there are samples, and how much clocks may differ."""
_FIRST_COUNTS = 2.0
"""The first guess of how much clocks differ counts like this many clocks."""
_LEAST_ERROR_NS = 100_000.0


class Latency(NamedTuple):
    """A time in ns, and its standard error."""

    mean_ns: float
    error_ns: float


class LatencyEstimates:
    """Estimates of one GPU.

    Args:
        known_ns: Latencies by clock (MHz) that are known exactly.
    """

    def __init__(self, known_ns: Mapping[int, int]) -> None:
        self._known = {mhz: Latency(float(ns), _LEAST_ERROR_NS) for mhz, ns in known_ns.items()}
        self._samples: dict[int, deque[Latency]] = {}
        self._own: dict[int, Latency] = dict(self._known)
        self._common = Latency(_FIRST_NS, _FIRST_SPREAD_NS)
        self._spread_ns = _FIRST_SPREAD_NS
        self._found: dict[int, Latency] = {}
        self._use_own()

    def add(self, mhz: int, sample: Latency) -> None:
        """Adds a sample of a clock."""
        samples = self._samples.setdefault(mhz, deque(maxlen=_SAMPLES))
        samples.append(sample._replace(error_ns=max(sample.error_ns, _LEAST_ERROR_NS)))
        self._own[mhz] = _weighted_median(samples)
        self._use_own()

    def of(self, mhz: int) -> Latency:
        """Returns the estimate for a clock."""
        return self._found.get(mhz, self._common)

    def clocks(self) -> list[int]:
        """Returns the clocks that have samples or are known."""
        return list(self._own)

    def _use_own(self) -> None:
        """Computes all estimates from those of the single clocks."""
        own = list(self._own.values())
        if not own:
            return
        variances = [one.error_ns**2 for one in own]
        variance = self._variance_between(own, variances)
        weights = [1 / (variance + own_variance) for own_variance in variances]
        mean_ns = sum(weight * one.mean_ns for weight, one in zip(weights, own, strict=True)) / sum(weights)
        self._common = Latency(mean_ns, math.sqrt(variance + 1 / sum(weights)))
        for mhz, one in self._own.items():
            weight = variance / (variance + one.error_ns**2)
            self._found[mhz] = Latency(mean_ns + weight * (one.mean_ns - mean_ns), math.sqrt(weight) * one.error_ns)

    @staticmethod
    def _variance_between(own: list[Latency], variances: list[float]) -> float:
        """Returns the variance of the true latencies of clocks."""
        weights = [1 / variance for variance in variances]
        total, others = sum(weights), len(own) - 1
        first = _FIRST_SPREAD_NS**2
        if not others:
            return first
        mean_ns = sum(weight * one.mean_ns for weight, one in zip(weights, own, strict=True)) / total
        squares = sum(weight * (one.mean_ns - mean_ns) ** 2 for weight, one in zip(weights, own, strict=True))
        room = total - sum(weight * weight for weight in weights) / total
        between = max(0.0, (squares - others) / room) if room > 0 else first
        # What the samples themselves do not tell about the differences of clocks is taken from the first guess.
        sure = sum(first / (first + variance) for variance in variances) - 1
        return (max(0.0, sure) * between + _FIRST_COUNTS * first / 4) / (max(0.0, sure) + _FIRST_COUNTS)


def _weighted_median(samples: deque[Latency]) -> Latency:
    """The median of samples, each counted by its precision; its error also grows with how much they scatter."""
    ordered = sorted(samples)
    weights = [1 / sample.error_ns**2 for sample in ordered]
    total, reached = sum(weights), 0.0
    middle_ns = ordered[-1].mean_ns
    for sample, weight in zip(ordered, weights, strict=True):
        reached += weight
        if reached >= total / 2:
            middle_ns = sample.mean_ns
            break
    deviations = sorted(abs(sample.mean_ns - middle_ns) / sample.error_ns for sample in ordered)
    scatter = 1.48 * deviations[(len(deviations) - 1) // 2] if len(deviations) > 2 else 1.0
    error_ns = _MEDIAN_ERROR * max(1.0, scatter) / math.sqrt(total)
    return Latency(middle_ns, error_ns)
