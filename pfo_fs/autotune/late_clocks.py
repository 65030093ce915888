"""How late clocks act where no clock process sees the device: learned from what instructions take after changes.

If the clock changes from b to c only d seconds after an instruction has begun, the instruction has done d / t_b of its
work by then and takes

    y = d + (1 - d / t_b) * t_c

where t_b and t_c are its durations at the two clocks. The iteration begins at the highest clock, so that already the
first window at a lower one tells something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pfo_fs.autotune.instruction_runs import Kind
    from pfo_fs.autotune.samples import Point

_GRID_S = (*(0.0005 * step for step in range(60)), *(0.002 * step for step in range(15, 101)))
"""The latencies that are told apart."""
_USUAL_S = 0.01
"""Half of all clocks act within this time, as far as nothing is known."""
_MODEL_ERROR = 0.001
"""Relative: durations differ from what is known of them by this much for other reasons."""
_LEAST_DIFFERENCE = 0.01
"""Durations at two clocks that differ by less show no latency."""
_FREEDOM = 4.0
"""Degrees of freedom of Student's distribution of the differences: some have another cause."""


class _Runs(NamedTuple):
    """Runs of one instruction after the same change: their number, their mean in s, and its standard error."""

    number: int
    mean_s: float
    error_s: float


class LateClocks:
    """What was measured of instructions after changes of their clock."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Kind, int, int], _Runs] = {}  # (kind, MHz before, MHz)

    def add(self, kind: Kind, from_mhz: int, mhz: int, count: int, mean_s: float, error_s: float) -> None:
        """Adds the mean of some durations of an instruction with which the clock changed."""
        before = self._runs.get((kind, from_mhz, mhz), _Runs(0, 0.0, 0.0))
        total = before.number + count
        mean_s = (before.number * before.mean_s + count * mean_s) / total
        error_s = ((before.number * before.error_s) ** 2 + (count * error_s) ** 2) ** 0.5 / total
        self._runs[kind, from_mhz, mhz] = _Runs(total, mean_s, error_s)

    def latency_s(self, points: Mapping[Kind, Mapping[int, Point]]) -> float:
        """Returns how long after the begin of an instruction its clock acts, in s: the median of what is likely.

        Args:
            points: What is known of each instruction at each clock.
        """
        import numpy as np

        grid = np.array(_GRID_S)
        ends = [0.0, *((below + above) / 2 for below, above in pairwise(_GRID_S)), _GRID_S[-1]]
        logs = np.log([_usual(above) - _usual(below) for below, above in pairwise(ends)])
        for (kind, from_mhz, mhz), runs in self._runs.items():
            old, own = points.get(kind, {}).get(from_mhz), points.get(kind, {}).get(mhz)
            if old is None or own is None or abs(own.time_s / old.time_s - 1) < _LEAST_DIFFERENCE:
                continue
            share = np.minimum(1.0, grid / old.time_s)
            off_s = share * old.time_s + (1 - share) * own.time_s - runs.mean_s
            error2 = (share * old.time_error * old.time_s) ** 2 + ((1 - share) * own.time_error * own.time_s) ** 2
            error2 += runs.error_s**2 + (_MODEL_ERROR * own.time_s) ** 2
            logs -= (_FREEDOM + 1) / 2 * np.log1p(off_s**2 / (_FREEDOM * error2)) + np.log(error2) / 2
        likely = np.exp(logs - logs.max()).cumsum()
        return _at(likely.tolist(), ends)


def _usual(to_s: float) -> float:
    return to_s / (to_s + _USUAL_S)


def _at(sums: Sequence[float], ends: Sequence[float]) -> float:
    """Returns the median of a distribution, interpolated within the ranges of the grid."""
    half = sums[-1] / 2
    place = next(place for place, total in enumerate(sums) if total >= half)
    before = sums[place - 1] if place else 0.0
    return ends[place] + (half - before) / (sums[place] - before) * (ends[place + 1] - ends[place])
