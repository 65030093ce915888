"""A sequential test (CUSUM) of whether iterations have come to take another time than when their plan began.

What is compared are measured times only: those of now with the first ones under the same plan. For each iteration with
the relative time x (logarithm of its time, less the level of the first iterations), clipped to +- c, two sums follow
    up = max(0, up + x - k)        down = max(0, down - x - k)
and one above h is an alarm. While nothing changes, a sum of steps with the mean -k and the long-run variance v exceeds
h about once in exp(2 k h / v) iterations (Siegmund, Sequential Analysis, 1985), so h = ln(rate) v / 2k. Clipping bounds
what outliers add: an alarm takes at least h / (c - k) iterations. A change by d > k is found after about
h / (min(d, c) - k) iterations.

Level, scatter and v are estimated from the first 16 iterations, later from the earlier half of all iterations (up to
1,024), with which all are then tested again: a change that was too small to be seen with few iterations is found then.
v counts that iterations resemble the ones before, so slow waves of the noise are not a change; the fewer iterations it
was estimated from, the more is added to it. Bursts that come and go by themselves raise h.
`tests/autotune/test_change_test.py` holds the rates of false alarms and the delays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from pfo_fs.models import UsualTime

SETTLE_ITERATIONS = 4
"""So many iterations after the begin of a plan do not count: clock processes still learn when to change clocks."""
_FIRST, _LAST = 16, 1024
"""The level is estimated from this number of iterations at first, and from this number at last."""
_LEAST_CHANGE = 0.005
"""Relative: no change below this is an alarm, however long it lasts; k is never less."""
_K_OF_SCATTER = 0.75
_K_OF_LEVEL_ERROR = 4.0
"""k is at least this many times the scatter, and this many standard errors of the level."""
_CLIP = 3.0
"""Iterations count as at most this many times the scatter off the level, or 3 k if that is more."""
_LEAST_ITERATIONS = 10
"""An alarm takes at least this number of iterations; twice as many when the level was estimated from the fewest."""
_LOG_OF_RATE = 18.0
"""Logarithm of the mean number of steady iterations between two false alarms, if all estimates were right."""
_UNSURE = 6.0
"""v is increased by this much over the square root of the number of iterations that it was estimated from."""
_LEAST_SCATTER = 1e-4
_TIMES_THE_CALM, _MOST_PATIENCE = 2.0, 20.0
"""h is at least this many times the highest sum that went back to 0 by itself, but at most this many times its first
value."""


@dataclass(frozen=True)
class _Level:
    """What is known of the iterations at the begin; see the module for k, c and h."""

    log_s: float
    error: float
    k: float
    clip: float
    limit: float


class ChangeTest:
    """Follows the iteration times of one plan.

    Args:
        calm_peak: That of the test of an earlier plan of the same job.

    Attributes:
        calm_peak: The highest sum that went back to 0 by itself: for so long does the job's noise stay on one side.
        usual: The time of all iterations so far (up to 2,048), whenever their number has doubled; None before 16.
    """

    def __init__(self, calm_peak: float = 0.0) -> None:
        self.calm_peak = calm_peak
        self.usual: UsualTime | None = None
        self._settling = SETTLE_ITERATIONS
        self._seen: list[float] = []  # logarithms of the first times
        self._level: _Level | None = None
        self._next_estimate = _FIRST
        self._up = self._down = 0.0
        self._peak = 0.0  # the highest sum since both were 0
        self._since: list[float] = []  # relative times since both sums were 0, the latest ones

    def add(self, time_s: float) -> float:
        """Adds an iteration's time in s, which is above 0.

        Returns:
            How far iterations are off those at the plan's begin, relative (0.03: 3 % longer), if they surely are; else
            0.0. After that, each iteration is another alarm until `forget_suspicion` is called.
        """
        if self._settling:
            self._settling -= 1
            return 0.0
        log_s = math.log(time_s)
        if len(self._seen) < 2 * _LAST:
            self._seen.append(log_s)
            if len(self._seen) == self._next_estimate:
                return self._estimate()
        return self._step(log_s, self._level) if self._level is not None else 0.0

    def settle(self) -> None:
        """Leaves out the next iterations: the plan has just come into force."""
        self._settling = SETTLE_ITERATIONS

    def forget_suspicion(self) -> None:
        """Begins anew to collect evidence, against the same level; what was collected counts as noise."""
        self.calm_peak = max(self.calm_peak, self._peak)
        self._up = self._down = self._peak = 0.0
        self._since.clear()

    def _estimate(self) -> float:
        """Estimates the level from the earlier half of all iterations, and tests all of them again."""
        every = _estimated(self._seen)
        self.usual = UsualTime(time_s=math.exp(every.log_s), error=min(1.0, every.error), iterations=len(self._seen))
        self._level = level = _estimated(self._seen[: max(_FIRST, self._next_estimate // 2)])
        self._next_estimate *= 2
        self._up = self._down = self._peak = 0.0
        return next(filter(None, (self._step(log_s, level) for log_s in self._seen)), 0.0)

    def _step(self, log_s: float, level: _Level) -> float:
        off = max(-level.clip, min(level.clip, log_s - level.log_s))
        self._up, self._down = max(0.0, self._up + off - level.k), max(0.0, self._down - off - level.k)
        highest = max(self._up, self._down)
        if not highest:
            self.forget_suspicion()
            return 0.0
        self._peak = max(self._peak, highest)
        self._since = [*self._since[-_FIRST:], log_s - level.log_s]
        if highest <= max(level.limit, min(_TIMES_THE_CALM * self.calm_peak, _MOST_PATIENCE * level.limit)):
            return 0.0
        found = math.expm1(median(self._since))
        return found if (found > 0) == (self._up > self._down) else math.copysign(level.k, self._up - self._down)


def _estimated(logs: Sequence[float]) -> _Level:
    """Returns the level of iterations that belong together, and what follows from their scatter."""
    middle = median(logs)
    scatter = max(_LEAST_SCATTER, 1.4826 * median(abs(value - middle) for value in logs))
    clip = max(_CLIP * scatter, 2 * _LEAST_CHANGE)
    # The level about which clipped iterations balance: for skewed noise it is not the median.
    for _ in range(3):
        middle += fmean(_clipped(value - middle, clip) for value in logs)
    variance = _long_run_variance([_clipped(value - middle, clip) for value in logs])
    variance = max(variance, scatter * scatter) * (1 + _UNSURE / len(logs) ** 0.5)
    k = max(_LEAST_CHANGE, _K_OF_SCATTER * scatter, _K_OF_LEVEL_ERROR * (variance / len(logs)) ** 0.5)
    clip = max(clip, 3 * k)
    limit = max(_LOG_OF_RATE * variance / (2 * k), _LEAST_ITERATIONS * (clip - k))
    return _Level(middle, (variance / len(logs)) ** 0.5, k, clip, limit * (1 + _FIRST / len(logs)))


def _clipped(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))


def _long_run_variance(residuals: Sequence[float]) -> float:
    """Returns the variance of a sum of residuals per residual, the larger one of two estimates.

    One takes each residual to depend on the one before only; the other compares the means of batches, so that it finds
    waves that are longer.
    """
    count = len(residuals)
    squares = sum(value * value for value in residuals)
    if not squares:
        return 0.0
    products = sum(before * after for before, after in pairwise(residuals))
    alike = min(0.97, max(0.0, products / squares + 1 / count**0.5 * (products > 0)))
    size = math.isqrt(count)
    means = [fmean(residuals[at : at + size]) for at in range(0, count - size + 1, size)]
    of_batches = size * fmean(mean * mean for mean in means)
    return float(max(squares / count * (1 + alike) / (1 - alike), of_batches))
