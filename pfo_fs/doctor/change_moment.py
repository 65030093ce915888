"""When a change of the clock acts, from the durations of short kernels that run one after the other.

The clock that a driver reports can be the one that was requested and not yet the one that the GPU runs at. The
durations of kernels cannot be wrong in this way: each kernel does the same work, so its duration changes when the clock
does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import NamedTuple

LEAST_DIFFERENCE = 0.02
"""Durations that differ by a smaller share do not show a change."""
_LEAST_KERNELS = 5
_TAIL = 4
"""The last one of this many parts after the request shows the duration at the new clock."""
_SURE = 12.0
"""The durations must differ by this many times their deviation over the root of their number, which is about 4.5
standard errors of the difference of the two medians."""
_OUTLIER = 6.0
_LONG = 0.2
"""A kernel that takes longer than usual by this share may have stood still."""

_LONG_GAP_S = 0.001
"""A change in a gap that is longer by this than a kernel has no known moment."""


class Kernel(NamedTuple):
    """One kernel as the device ran it, in s."""

    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """How long it ran."""
        return self.end_s - self.begin_s


class Change(NamedTuple):
    """A change of the clock as the kernels show it.

    Attributes:
        acted_s: When the new clock began to act.
        stood_still_s: How long the GPU stood still between the request and that moment.
        before_s: Duration of a kernel at the old clock.
        after_s: Duration of a kernel at the new clock.
    """

    acted_s: float
    stood_still_s: float
    before_s: float
    after_s: float


def find_change(kernels: Sequence[Kernel], requested_s: float) -> Change | None:
    """Finds when a requested clock began to act.

    The moment splits the kernels such that the durations before it differ least from those before the request, and the
    durations after it least from those at the end. Absolute differences count, so single kernels that were disturbed
    do not matter.

    Args:
        kernels: Equal kernels in their order; the first ones run well before the request, and the last ones well after
            the new clock acts. Short gaps between them, in which this host launched late, do not matter.
        requested_s: When the clock was requested, on the same clock.

    Returns:
        None if no change can be seen: too few kernels, durations that differ too little for their noise, a change so
        late that the durations at the new clock are not known, or one in a long gap.
    """
    durations_s = [kernel.duration_s for kernel in kernels]
    first = sum(kernel.end_s <= requested_s for kernel in kernels)  # the kernel that runs at the request
    tail = len(kernels) - (len(kernels) - first) // _TAIL
    before, after = durations_s[:first], durations_s[tail:]
    if min(len(before), len(after)) < _LEAST_KERNELS:
        return None
    before_s, after_s = median(before), median(after)
    noise_s = max(_uncertainty(before, before_s), _uncertainty(after, after_s))
    if abs(after_s - before_s) <= max(LEAST_DIFFERENCE * before_s, _SURE * noise_s):
        return None
    split = first + _best_split(durations_s[first:], before_s, after_s)
    usual_s = max(before_s, after_s)
    if split >= tail or kernels[split].begin_s - kernels[split - 1].end_s > usual_s + _LONG_GAP_S:
        return None
    acted_s = _moment(kernels[split - 1], kernels[split], before_s, after_s)
    stood_still_s = sum(
        duration_s - usual_s
        for duration_s in durations_s[max(first - 1, 0) : split + 1]
        if duration_s > usual_s * (1 + _LONG) + _OUTLIER * _deviation(before, before_s)
    )
    return Change(max(requested_s, acted_s), stood_still_s, before_s, after_s)


def _best_split(durations_s: Sequence[float], before_s: float, after_s: float) -> int:
    """Returns how many of the kernels ran at the old clock."""
    gains = (abs(duration_s - after_s) - abs(duration_s - before_s) for duration_s in durations_s)
    sums = [0.0, *accumulate(gains)]  # how much better the old clock explains the first kernels
    return max(range(len(sums)), key=sums.__getitem__)


def _moment(last: Kernel, next_: Kernel, before_s: float, after_s: float) -> float:
    """Returns when the clock has changed in one of two kernels, of which the first one ran mostly at the old clock."""
    both_s = last.duration_s + next_.duration_s
    # The law of `pfo_fs/clock_latency.py` over both kernels, solved for the time at the old clock.
    old_s = min(max((both_s - 2 * after_s) / (1 - after_s / before_s), 0.0), both_s)
    if old_s <= last.duration_s:
        return last.begin_s + old_s
    return next_.begin_s + old_s - last.duration_s


def _deviation(durations_s: Sequence[float], middle_s: float) -> float:
    return median(abs(duration_s - middle_s) for duration_s in durations_s)


def _uncertainty(durations_s: Sequence[float], middle_s: float) -> float:
    return _deviation(durations_s, middle_s) / math.sqrt(len(durations_s))
