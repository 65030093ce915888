"""Fits the delay between ranks, and a constant per iteration, to measured iterations of known instruction times.

A longer delay and a shorter constant are told apart only by plans whose critical paths cross between ranks a different
number of times. Where the measured plans do not differ in this, any delay fits, and noise would choose one. So the fit
also counts what is known beforehand (delays are short beside instructions), and gives an error with each value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline import Pipeline

_DELAYS = 48
"""Makespans are computed for this many delays, closer together where delays are short, and interpolated in between."""
_DELAYS_JUDGED = 1 + 16 * (_DELAYS - 1)
_CELLS_AT_ONCE = 4 * 2**20
"""Makespans are computed for as many iterations at once as need at most this many ends of instructions (8 bytes)."""
_USUAL_DELAY = 0.02
"""Relative to the mean instruction: known beforehand of a delay is that it is about this long or shorter."""
_MODEL_ERROR, _MODEL_ERROR_COUNTS = 0.002, 0.5
"""Relative: known beforehand of the model's error, and how many measured iterations this knowledge counts for."""
_DETERMINED = 0.5
"""A delay is determined if measuring has made its error smaller than this share of the error before."""

Array = Any
"""An array of numpy, which is not typed here."""


@dataclass(frozen=True)
class DelayFit:
    """A delay and an overhead, with what is known of their errors.

    Attributes:
        delay_s: Delay of each dependency between two ranks, in s.
        overhead_s: Fixed time per iteration, in s.
        delay_error_s: Standard error of the delay, in s.
        overhead_error_s: Standard error of the overhead, in s.
        is_determined: Whether the measured iterations say more about the delay than was known beforehand.
    """

    delay_s: float
    overhead_s: float
    delay_error_s: float
    overhead_error_s: float
    is_determined: bool


class MakespanTable:
    """The makespan of each measured iteration at each delay that comes into question.

    Args:
        pipeline: The DAG; delays that it has are replaced.
        own_s: Time of each instruction (rows, as in `pipeline.instructions`) in each iteration (columns), in s.
        real_s: Measured time of each iteration, in s.
    """

    def __init__(self, pipeline: Pipeline, own_s: Sequence[Sequence[float]], real_s: Sequence[float]) -> None:
        import numpy as np

        own: Array = np.asarray(own_s, dtype=float)
        self._real_s: Array = np.asarray(real_s, dtype=float)
        missing_s = float(np.max(self._real_s - makespans(pipeline, own, [0.0])[:, 0]))
        hops = 2 * max(1, len(pipeline.orders) - 1)
        longest_s = max(1e-9, missing_s) / hops  # a longer delay would alone exceed the missing time
        computed_s = longest_s * np.linspace(0.0, 1.0, _DELAYS) ** 2
        self._delays_s: Array = longest_s * np.linspace(0.0, 1.0, _DELAYS_JUDGED) ** 2
        rows = [np.interp(self._delays_s, computed_s, row) for row in makespans(pipeline, own, computed_s)]
        self._makespans_s: Array = np.array(rows)
        self._known: Array = (self._delays_s / max(1e-12, _USUAL_DELAY * float(own[:, 0].mean()))) ** 2
        self._widths: Array = np.gradient(self._delays_s)

    def fit(self, numbers: Sequence[int]) -> DelayFit:
        """Returns the delay and the overhead that some of the iterations, and what is known beforehand, make likeliest.

        Args:
            numbers: The iterations, at least one.
        """
        import numpy as np

        makespans_s, real_s = self._makespans_s[list(numbers)], self._real_s[list(numbers)]
        rests_s = real_s[:, None] - makespans_s
        overheads_s = np.maximum(0.0, rests_s.mean(axis=0))
        squares = ((rests_s - overheads_s) ** 2).sum(axis=0)
        expected = (_MODEL_ERROR * float(real_s.mean())) ** 2
        freedom = max(0, len(numbers) - 2)  # two unknowns fit two iterations; the others show how good the model is
        variance = (_MODEL_ERROR_COUNTS * expected + float(squares.min())) / (_MODEL_ERROR_COUNTS + freedom)
        badness = squares / variance + self._known
        best = int(np.argmin(badness))
        weights = np.exp(-0.5 * (badness - badness[best])) * self._widths
        error_s = _deviation(self._delays_s, weights)
        before_s = _deviation(self._delays_s, np.exp(-0.5 * self._known) * self._widths)
        return DelayFit(
            float(self._delays_s[best]),
            float(overheads_s[best]),
            error_s,
            math.sqrt(_deviation(overheads_s, weights) ** 2 + variance / len(numbers)),
            error_s <= _DETERMINED * before_s,
        )

    def error(self, number: int, fit: DelayFit) -> float:
        """Returns the relative error of a fit's prediction for an iteration."""
        import numpy as np

        makespan_s = float(np.interp(fit.delay_s, self._delays_s, self._makespans_s[number]))
        return abs(makespan_s + fit.overhead_s - float(self._real_s[number])) / float(self._real_s[number])


def _deviation(values: Array, weights: Array) -> float:
    import numpy as np

    mean = float(np.average(values, weights=weights))
    return math.sqrt(float(np.average((values - mean) ** 2, weights=weights)))


def makespans(pipeline: Pipeline, own_s: Sequence[Sequence[float]], delays_s: Sequence[float]) -> Array:
    """Returns the makespan in s of each iteration (rows) with each delay between ranks (columns).

    All of them take one walk over the DAG, or a few where they would need too much memory.

    Args:
        pipeline: The DAG; delays that it has are replaced.
        own_s: Time of each instruction (rows) in each iteration (columns), in s.
        delays_s: The delays, in s.
    """
    import numpy as np

    rank_of = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
    edges = [(first, then, float(rank_of[first] != rank_of[then])) for first, then, _ in pipeline.edges]
    paths = LongestPaths(pipeline.topological, edges)
    own: Array = np.asarray(own_s, dtype=float)
    at_once = max(1, _CELLS_AT_ONCE // (len(own) * len(delays_s)))
    parts = []
    for start in range(0, own.shape[1], at_once):
        part = own[:, start : start + at_once]
        delays: Array = np.tile(delays_s, part.shape[1])
        ends_s = paths.ends(part.repeat(len(delays_s), axis=1), delay_times=delays).ends_s
        parts.append(ends_s.max(axis=0).reshape(part.shape[1], len(delays_s)))
    return np.concatenate(parts)
