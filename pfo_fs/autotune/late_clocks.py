"""How late clocks act where no clock process sees the device: learned from what instructions take after changes.

The law is that of `pfo_fs/clock_latency.py`; the latency counts from the begin of an instruction, and is the same for
all clocks. The iteration begins at the highest clock, so that already the first window at a lower one tells something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.clock_latency import LEAST_DIFFERENCE, costs, latency_of, prior, probabilities, took

if TYPE_CHECKING:
    from pfo_fs.autotune.job_layout import Kind
    from pfo_fs.autotune.samples import Point

_PRIOR = prior(10e6)
"""Half of all clocks act within 10 ms, as far as nothing is known."""
_MODEL_ERROR = 0.001
"""Relative: durations differ from what is known of them by this much for other reasons."""


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
        logs = [0.0] * len(_PRIOR)
        for (kind, from_mhz, mhz), runs in self._runs.items():
            old, own = points.get(kind, {}).get(from_mhz), points.get(kind, {}).get(mhz)
            if old is None or own is None or abs(own.time_s / old.time_s - 1) < LEAST_DIFFERENCE:
                continue
            unlikely = costs(_expected(old, own, runs.error_s), runs.mean_s * 1e9)
            logs = [log - cost for log, cost in zip(logs, unlikely, strict=True)]
        return latency_of(probabilities(_PRIOR, logs)).middle_ns / 1e9


def _expected(old: Point, own: Point, error_s: float) -> Callable[[int], tuple[float, float]]:
    """Returns, by the latency of the clock, what an instruction takes and the variance of its measured mean."""
    old_ns, own_ns = float(old.time_s) * 1e9, float(own.time_s) * 1e9
    known = (error_s * 1e9) ** 2 + (_MODEL_ERROR * own_ns) ** 2

    def expected(latency_ns: int) -> tuple[float, float]:
        share = min(1.0, latency_ns / old_ns)
        variance = known + (share * old.time_error * old_ns) ** 2 + ((1 - share) * own.time_error * own_ns) ** 2
        return took(old_ns, [(latency_ns, own_ns)]), variance

    return expected
