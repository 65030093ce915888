"""What instructions take at each clock at which they ran from begin to end, and from that at others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import hypot, sqrt
from typing import NamedTuple

_FIRST_USUAL_NS = 200_000_000.0
"""Assumed duration of an instruction before any was seen."""
_SAMPLES = 64
"""Durations of an instruction at one clock that are kept, the latest ones."""
_SENSITIVITY, _SENSITIVITY_ERROR = 0.7, 0.3
"""Assumed share of a duration that follows the clock, where an instruction was never seen at this clock."""
_FIRST_SCATTER = 0.005
"""Relative deviation of durations before it was measured."""
_FIRST_DEVIATIONS, _SCATTER_MEMORY = 4, 64
"""The assumed deviation counts like four measured ones; the measured ones count in a mean over about the last 64."""
_MIDDLE_ERROR = 1.1
"""The standard error of the mean of the middle half, as a multiple of that of the mean of all."""


class Duration(NamedTuple):
    """A duration in ns, and its standard error."""

    took_ns: float
    error_ns: float


class _Steady:
    """The duration of an instruction at one clock: the mean of the middle half, since one seen late says nothing."""

    def __init__(self) -> None:
        self.samples_ns: deque[int] = deque(maxlen=_SAMPLES)
        self.took_ns = 0.0


class Durations:
    """The durations of one GPU's instructions.

    Attributes:
        scatter: Relative standard deviation of a duration.
        usual_ns: The usual duration of an instruction.
    """

    def __init__(self) -> None:
        self.scatter = _FIRST_SCATTER
        self.usual_ns = _FIRST_USUAL_NS
        self._deviations = _FIRST_DEVIATIONS
        self._steady: dict[int, dict[int, _Steady]] = {}  # kind -> MHz

    def add(self, kind: int, mhz: int, took_ns: int) -> None:
        """Adds an instruction that ran at its clock from its begin to its end."""
        self.usual_ns += (took_ns - self.usual_ns) / (_SCATTER_MEMORY if self._steady else 1)
        steady = self._steady.setdefault(kind, {}).setdefault(mhz, _Steady())
        if len(steady.samples_ns) > 1:
            deviation = min(abs(took_ns / steady.took_ns - 1), 0.1) if steady.took_ns else 0.0
            self._deviations = min(self._deviations + 1, _SCATTER_MEMORY)
            self.scatter += (1.25 * deviation - self.scatter) / self._deviations
        steady.samples_ns.append(took_ns)
        steady.took_ns = _middle_mean(steady.samples_ns)

    def of(self, kind: int, mhz: int, within: float = 1.0) -> Duration | None:
        """Returns the duration of an instruction at a clock; None if too little is known.

        Args:
            kind: The number of the instruction.
            mhz: The clock; 0 is one that is not known.
            within: The duration may follow from that at the nearest clock, if it is within this share.
        """
        table = self._steady.get(kind, {})
        if mhz in table:
            return Duration(table[mhz].took_ns, self._scatter_ns(table[mhz]))
        known = [other for other in table if other]
        if not mhz or not known:
            return None
        nearest = min(known, key=lambda other: abs(other - mhz))
        steady, ratio = table[nearest], nearest / mhz
        if abs(ratio - 1) > within:
            return None
        guessed_ns = steady.took_ns * (_SENSITIVITY * ratio + 1 - _SENSITIVITY)
        error_ns = hypot(self._scatter_ns(steady), _SENSITIVITY_ERROR * (ratio - 1) * steady.took_ns)
        return Duration(guessed_ns, error_ns)

    def _scatter_ns(self, steady: _Steady) -> float:
        """Returns the standard error of a duration."""
        return _MIDDLE_ERROR * self.scatter * steady.took_ns / sqrt(len(steady.samples_ns))


def _middle_mean(values: Iterable[int]) -> float:
    """Returns the mean of the middle half."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)
