"""When each clock acts: a probability for each latency, from what instructions took after changes of the clock.

What an instruction took says how likely each latency is: much where the clock changes a lot, little where it changes by
2 %, and of a clock that had acted before the instruction began only that it was not later. So each clock has a row of
logarithms of likelihoods over a grid of latencies, to which each instruction adds.

Clocks of one GPU have something in common: on some nodes all act after the same time, on others the times differ
tenfold. Both are weighed by how likely they make everything observed (Bayes factors): if all clocks act after the same
time, what is known of one is known of all; if not, a clock is as likely to act after some time as other clocks are.

This module uses plain Python, since the clock process does not import numpy, which would make it start later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

_MS = 1_000_000
GRID_NS: Sequence[int] = (
    *range(0, 20 * _MS, _MS // 2),
    *range(20 * _MS, 60 * _MS, _MS),
    *range(60 * _MS, 201 * _MS, 4 * _MS),
)
"""The latencies that are told apart."""
_USUAL_NS = 5e6
"""Half of all clocks act within this time, as far as nothing is known."""
_ENDS_NS = [0.0, *((below + above) / 2 for below, above in pairwise(GRID_NS)), float(GRID_NS[-1])]
"""The ends of the ranges for which the latencies of the grid stand."""


def _usual(to_ns: float) -> float:
    return to_ns / (to_ns + _USUAL_NS)


_PRIOR = [_usual(above) - _usual(below) for below, above in pairwise(_ENDS_NS)]
"""Probability of each latency before anything is known: most clocks act within a few ms, some late."""
REMEMBERED = 64
"""About so many changes to a clock count, so that a throttled GPU is forgotten."""
_SAME, _LIKE_CLOCKS = 0.1, 2.0
"""Probability that all clocks act after the same time, before anything is known; and what is known beforehand of a
clock counts as much as this many other clocks."""
_OTHERS_EVERY = 8
"""Estimates of other clocks are computed again after so many instructions, which tell little about them."""
_NEGLIGIBLE = 0.001
_ALIKE = 2
"""Clocks of about the same latency differ by up to so many steps of the grid."""
_KNOWN_ERROR_NS = 500_000.0
_LEAST_ERROR_NS = 100_000
_QUANTILES = (0.16, 0.5, 0.84)

_Row = list[float]
_NOTHING: Sequence[float] = [0.0] * len(GRID_NS)


class Latency(NamedTuple):
    """A latency in ns by its quantiles: 16, 50 and 84 %, which is a standard error around the middle."""

    low_ns: int
    middle_ns: int
    high_ns: int

    @property
    def error_ns(self) -> float:
        """The standard error."""
        return (self.high_ns - self.low_ns) / 2

    def after_ns(self, errors: float) -> int:
        """Returns a time that is so many standard errors later."""
        return self.middle_ns + round(errors * (self.high_ns - self.middle_ns))


class LatencyEstimates:
    """Estimates of one GPU.

    Args:
        known_ns: Latencies by clock (MHz) that are known exactly.
    """

    def __init__(self, known_ns: Mapping[int, int]) -> None:
        self._known = {
            mhz: Latency(max(0, ns - _LEAST_ERROR_NS), ns, ns + _LEAST_ERROR_NS) for mhz, ns in known_ns.items()
        }
        self._logs: dict[int, _Row] = {}  # of each clock's likelihoods
        self._changes: dict[int, int] = {}  # to each clock, that were observed
        self._alone: dict[int, tuple[_Row, float]] = {}  # each clock's probabilities without the others, and evidence
        self._all_logs = list(_NOTHING)
        self._all_alone = list(_NOTHING)
        self._evidence = 0.0  # logarithm, if clocks have nothing in common
        self._found: dict[int, Latency] = {}
        self._share: float | None = None
        self._added = 0
        for mhz, ns in known_ns.items():
            self._replace(mhz, [-0.5 * ((at_ns - ns) / _KNOWN_ERROR_NS) ** 2 for at_ns in GRID_NS])

    def add(self, mhz: int, unlikely: Iterable[float], *, is_first: bool) -> None:
        """Adds what one instruction tells.

        Args:
            mhz: The clock.
            unlikely: For each latency of `GRID_NS`, the negative logarithm of the likelihood of what was observed.
            is_first: Whether it is the first instruction after a change of the clock.
        """
        before = self._logs.get(mhz, _NOTHING)
        kept = 1 - 1 / REMEMBERED if is_first else 1.0
        self._changes[mhz] = self.changes(mhz) + is_first
        self._replace(mhz, [kept * log - cost for log, cost in zip(before, unlikely, strict=True)])
        self._known.pop(mhz, None)

    def of(self, mhz: int) -> Latency:
        """Returns the estimate for a clock."""
        if mhz in self._known:
            return self._known[mhz]
        found = self._found.get(mhz)
        if found is None:
            found = self._found[mhz] = _latency(self._probabilities(mhz))
        return found

    def is_given(self, mhz: int) -> bool:
        """Returns whether a latency is the one that was given as known."""
        return mhz in self._known

    def changes(self, mhz: int) -> int:
        """Returns how many changes to a clock were observed."""
        return self._changes.get(mhz, 0)

    def clocks(self) -> list[int]:
        """Returns the clocks of which something was observed or is known."""
        return list(self._logs)

    def _replace(self, mhz: int, logs: _Row) -> None:
        highest = max(logs)
        logs = [max(log - highest, -700.0) for log in logs]
        alone = _normalized(_PRIOR, logs)
        before = self._logs.get(mhz)
        if before is not None:
            self._count(before, *self._alone[mhz], times=-1)
        self._logs[mhz], self._alone[mhz] = logs, alone
        self._count(logs, *alone, times=1)
        self._found.pop(mhz, None)
        self._added += 1
        if self._added % _OTHERS_EVERY == 0:
            self._found.clear()
            self._share = None

    def _count(self, logs: _Row, alone: _Row, evidence: float, *, times: int) -> None:
        """Adds a clock to the totals of all clocks, or with `times` -1 takes it out."""
        self._all_logs = [total + times * log for total, log in zip(self._all_logs, logs, strict=True)]
        self._all_alone = [total + times * one for total, one in zip(self._all_alone, alone, strict=True)]
        self._evidence += times * evidence

    @property
    def are_alike(self) -> bool:
        """Whether all clocks surely act after about the same time."""
        return self._alike() > 1 - _NEGLIGIBLE

    def _alike(self) -> float:
        """The probability that all clocks act after the same time."""
        if self._share is None:
            _, evidence = _normalized(_PRIOR, self._all_logs)
            against = self._evidence - evidence + math.log(1 / _SAME - 1)
            self._share = 1 / (1 + math.exp(min(700.0, max(-700.0, against))))
        return self._share

    def _probabilities(self, mhz: int) -> _Row:
        """The probability of each latency of a clock, by what was observed of it and of the others."""
        share = self._alike()
        logs, alone = self._logs.get(mhz, _NOTHING), self._alone.get(mhz, (_NOTHING, 0.0))[0]
        found = list(_NOTHING)
        if share > _NEGLIGIBLE:
            of_others, _ = _normalized(_PRIOR, [total - log for total, log in zip(self._all_logs, logs, strict=True)])
            same, _ = _normalized(_blurred(of_others), logs)
            found = [share * one for one in same]
        if share < 1 - _NEGLIGIBLE:
            others = zip(_PRIOR, self._all_alone, alone, strict=True)
            own, _ = _normalized([max(0.0, _LIKE_CLOCKS * one + total - mine) for one, total, mine in others], logs)
            found = [one + (1 - share) * other for one, other in zip(found, own, strict=True)]
        return found


def _normalized(prior: Sequence[float], logs: Sequence[float]) -> tuple[_Row, float]:
    """Returns the probabilities, and the logarithm of their sum before they were made to add up to 1."""
    highest = max(logs)
    products = [one * math.exp(log - highest) for one, log in zip(prior, logs, strict=True)]
    total = sum(products) or 1e-300
    return [product / total for product in products], highest + math.log(total)


def _blurred(probabilities: Sequence[float]) -> _Row:
    """Returns the mean of each latency's probability and those of its neighbours: clocks are hardly ever just alike."""
    sums = [0.0, *accumulate(probabilities)]
    last = len(probabilities)
    return [(sums[min(last, at + _ALIKE + 1)] - sums[max(0, at - _ALIKE)]) / (2 * _ALIKE + 1) for at in range(last)]


def _latency(probabilities: Sequence[float]) -> Latency:
    """The quantiles of a distribution, interpolated within the ranges of the grid."""
    sums = [0.0, *accumulate(probabilities)]
    found, at = [], 0
    for quantile in _QUANTILES:
        wanted = quantile * sums[-1]
        while at < len(probabilities) - 1 and sums[at + 1] < wanted:
            at += 1
        share = min(1.0, (wanted - sums[at]) / probabilities[at]) if probabilities[at] else 0.5
        found.append(round(_ENDS_NS[at] + share * (_ENDS_NS[at + 1] - _ENDS_NS[at])))
    low_ns, middle_ns, high_ns = found
    return Latency(low_ns, middle_ns, high_ns)
