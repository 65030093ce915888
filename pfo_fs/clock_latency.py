"""When a clock acts after the call that set it: one law, and a probability of each latency.

If the clock changes from b to c only d seconds after an instruction has begun, the instruction has done d / t_b of its
work by then and takes

    y = d + (1 - d / t_b) * t_c

where t_b and t_c are its durations at the two clocks; `took` is this law for any number of changes. So y tells how
likely each latency is: much where t_b and t_c differ a lot, little where they differ by 2 %. If the clock had acted
before the instruction began, y only tells that it did not act later. The clock process and the default policy use
this law.

This module uses plain Python, since the clock process does not import numpy, which would make it start later.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

CALL_S = 0.005
"""Duration in s of a call that sets a clock, assumed before the first call: published medians are 4.1 and 5.2 ms."""
_MS = 1_000_000
GRID_NS: Sequence[int] = (
    *range(0, 20 * _MS, _MS // 2),
    *range(20 * _MS, 60 * _MS, _MS),
    *range(60 * _MS, 201 * _MS, 4 * _MS),
)
"""The latencies that are told apart, in ns. Every clock is taken to act after the longest of them at the latest."""
_ENDS_NS = [0.0, *((below + above) / 2 for below, above in pairwise(GRID_NS)), float(GRID_NS[-1])]
"""The ends of the ranges for which the latencies of the grid stand."""
_QUANTILES = (0.16, 0.5, 0.84)
_FREEDOM = 5.0
"""Degrees of freedom of Student's distribution of durations: some are off for another reason than the clock."""
LEAST_DIFFERENCE = 0.01
"""Durations at two clocks that differ by a smaller share show no latency, because they are not known better."""

Row = list[float]
"""A number for each latency of the grid."""


class Latency(NamedTuple):
    """A latency in ns by its quantiles: 16, 50 and 84 %; the outer two lie a standard error off the middle."""

    low_ns: int
    middle_ns: int
    high_ns: int

    @property
    def error_ns(self) -> float:
        """The standard error."""
        return (self.high_ns - self.low_ns) / 2


def took(first: float, changes: Iterable[tuple[float, float]]) -> float:
    """Returns how long an instruction takes while clocks change; all times have the same unit.

    Args:
        first: How long the instruction takes at the clock at which it begins.
        changes: For each change in order, how long after the begin it acts (negative: before), and what the instruction
            takes at the clock after it.
    """
    left, passed, takes = 1.0, 0.0, first
    for after, takes_then in changes:
        if after > passed:
            done = (after - passed) / takes
            if done >= left:
                break
            left, passed = left - done, after
        takes = takes_then
    return passed + left * takes


def costs(expected: Callable[[int], tuple[float, float]], seen_ns: float) -> Row:
    """Returns how unlikely each latency makes the time of an instruction: negative logarithms of the likelihoods.

    Args:
        expected: Returns the time that the instruction takes if the clock acts after a latency, in ns, and the variance
            of the difference, in ns2.
        seen_ns: The time that it took.
    """
    found = []
    for latency_ns in GRID_NS:
        took_ns, variance = expected(latency_ns)
        off2 = (took_ns - seen_ns) ** 2
        found.append((_FREEDOM + 1) / 2 * math.log1p(off2 / (_FREEDOM * variance)) + math.log(variance) / 2)
    return found


def prior(usual_ns: float) -> Row:
    """Returns the probability of each latency before anything is known: half of all clocks act within `usual_ns`."""
    shares = [end_ns / (end_ns + usual_ns) for end_ns in _ENDS_NS]
    return [above - below for below, above in pairwise(shares)]


def probabilities(before: Sequence[float], logs: Sequence[float]) -> Row:
    """Returns the probability of each latency, from that `before` and the logarithm of its likelihood, in `logs`."""
    highest = max(logs)
    products = [one * math.exp(log - highest) for one, log in zip(before, logs, strict=True)]
    total = sum(products) or 1e-300
    return [product / total for product in products]


def latency_of(likely: Iterable[float]) -> Latency:
    """Returns the quantiles of a distribution over the grid, interpolated within its ranges."""
    likely = list(likely)
    sums = [0.0, *accumulate(likely)]
    found, at = [], 0
    for quantile in _QUANTILES:
        wanted = quantile * sums[-1]
        while at < len(likely) - 1 and sums[at + 1] < wanted:
            at += 1
        share = min(1.0, (wanted - sums[at]) / likely[at]) if likely[at] else 0.5
        found.append(round(_ENDS_NS[at] + share * (_ENDS_NS[at + 1] - _ENDS_NS[at])))
    low_ns, middle_ns, high_ns = found
    return Latency(low_ns, middle_ns, high_ns)
