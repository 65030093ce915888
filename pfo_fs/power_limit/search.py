"""Which levels (power limits, or clocks) are measured, and in which order.

`FullSweep` is Zeus's way: all levels, highest first. `CoarseToFine` measures a few, predicts the others from them,
and measures at the predicted optimum, until that and its neighbours are measured. Its windows are half as long, and it
needs at most half of the sweep's steps.

Values between two measurements are predicted from how GPUs behave under a limit; clocks are treated alike. A GPU that
reaches its limit draws the limit on average, so that the ratio of power and limit changes little between limits; it is
interpolated linearly. Time is about proportional to a power (exponent) of the limit, so that the logarithm of time is
interpolated over that of the limit, by the monotone cubics of Fritsch and Carlson ("Monotone piecewise cubic
interpolation", SIAM J. Numer. Anal. 17(2), 1980), with the slopes of Fritsch and Butland. Below the lowest measured
limit, the ratio is constant and the logarithm of time is a straight line.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import KnobMeasurement
from pfo_fs.power_limit.selectors import OptimumSelector
from pfo_fs.store.power_limit_folder import MOST_MEASURED

_RINGS = (1, 2, 4)
"""Distances from the optimum, in limits, that must be measured: near ones for precision, far ones against noise."""
_FEWEST = 5


class Search(ABC):
    """Chooses the level to measure next. It keeps no state: it decides from all measurements, of any job.

    Attributes:
        window_steps: Number of steps in which one level is measured.
    """

    window_steps: int

    @abstractmethod
    def next_level(
        self, levels: Sequence[int], measurements: Sequence[KnobMeasurement], selector: OptimumSelector
    ) -> int | None:
        """Returns the level to measure next, one of `levels`; None if enough is known.

        Args:
            levels: The levels to choose from, highest first.
            measurements: Measurements of some of these levels.
            selector: Chooses the best limit.
        """


class FullSweep(Search):
    """All levels, from the highest down.

    Args:
        warmup_steps: Number of steps before a level is measured.
        profile_steps: Number of steps in which a level is measured.
    """

    def __init__(self, warmup_steps: int, profile_steps: int) -> None:
        self.window_steps = profile_steps

    def next_level(
        self, levels: Sequence[int], measurements: Sequence[KnobMeasurement], selector: OptimumSelector
    ) -> int | None:
        """Returns the highest level that is not measured yet."""
        measured = {measurement.level for measurement in measurements}
        return next((level for level in levels if level not in measured), None)


class CoarseToFine(Search):
    """Measures the highest level, the middle one, each predicted optimum, and finally the neighbours of the optimum.

    If there are fewer than five limits, all are measured: there are too few between them to predict.

    Of the limits below the lowest measured one, only the upper half is predicted, because low limits are slow, and
    seldom the best.

    Args:
        warmup_steps: Number of steps before a level is measured.
        profile_steps: Number of steps in which the full sweep would measure a level; half of them are used.
    """

    def __init__(self, warmup_steps: int, profile_steps: int) -> None:
        self.window_steps = max(1, profile_steps // 2)
        self._share = (warmup_steps + profile_steps) / (warmup_steps + self.window_steps) / 2

    def next_level(
        self, levels: Sequence[int], measurements: Sequence[KnobMeasurement], selector: OptimumSelector
    ) -> int | None:
        """Returns the level to measure next; None at the optimum, or when half of the full sweep's steps are used."""
        known = {m.level: m for m in measurements if m.level in levels}
        count = len(levels)
        if count < _FEWEST:
            return next((level for level in levels if level not in known), None)
        if len(known) >= max(1, int(count * self._share)):
            return None
        for position in (0, count // 2):
            if levels[position] not in known:
                return levels[position]
        lowest = levels.index(min(known))
        reach = levels[: lowest + 1 + (count - lowest) // 2]
        best = selector.select(predict(reach, list(known.values())))
        if best not in levels:
            raise ValueError(f"{best} is not one of the levels to choose from")
        if best not in known:
            return best
        position = levels.index(best)
        around = [position + distance for ring in _RINGS for distance in (ring, -ring)]
        return next((levels[i] for i in around if 0 <= i < count and levels[i] not in known), None)


def search_named(name: str, warmup_steps: int, profile_steps: int) -> Search:
    """Returns the search of a name; the other arguments are those of its class.

    Raises:
        ConfigError: There is no such search.
    """
    kinds: dict[str, type[FullSweep] | type[CoarseToFine]] = {"full": FullSweep, "coarse-to-fine": CoarseToFine}
    if name not in kinds:
        raise ConfigError(f"search is {name!r}; it can be 'full' or 'coarse-to-fine'")
    return kinds[name](warmup_steps, profile_steps)


def predict(levels: Sequence[int], known: Sequence[KnobMeasurement]) -> list[KnobMeasurement]:
    """Returns a measurement for each level, in the order of `levels`: the known one, or a predicted one.

    Args:
        levels: Levels of one knob.
        known: At least two measurements, one per level.
    """
    by_limit = {measurement.level: measurement for measurement in known}
    points = [by_limit[level] for level in sorted(by_limit)]
    log_limits = [math.log(point.level) for point in points]
    log_times = [math.log(point.time) for point in points]
    shares = [point.energy / point.time / point.level for point in points]
    slopes = _slopes(log_limits, log_times)
    found = []
    for level in levels:
        if level in by_limit:
            found.append(by_limit[level])
            continue
        x = math.log(level)
        time_s = math.exp(min(_cubic(x, log_limits, log_times, slopes), math.log(MOST_MEASURED)))
        energy_j = min(_linear(x, log_limits, shares) * level * time_s, MOST_MEASURED)
        found.append(type(points[0]).at(level, energy=energy_j, time=time_s))
    return found


def _linear(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Interpolates linearly; constant beyond the ends."""
    right = bisect_right(xs, x)
    if right in (0, len(xs)):
        return ys[0 if right == 0 else -1]
    part = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + part * (ys[right] - ys[right - 1])


def _slopes(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """Returns the slope of the monotone cubic at each point: the weighted harmonic mean of the secants beside it."""
    widths = [b - a for a, b in pairwise(xs)]
    secants = [(b - a) / width for (a, b), width in zip(pairwise(ys), widths, strict=True)]
    slopes = [secants[0]]
    for (left, right), (w0, w1) in zip(pairwise(secants), pairwise(widths), strict=True):
        if left * right <= 0:
            slopes.append(0.0)
        else:
            slopes.append(3 * (w0 + w1) / ((2 * w1 + w0) / left + (w1 + 2 * w0) / right))
    return [*slopes, secants[-1]]


def _cubic(x: float, xs: Sequence[float], ys: Sequence[float], slopes: Sequence[float]) -> float:
    """Evaluates the piecewise cubic; a straight line beyond the ends."""
    right = bisect_right(xs, x)
    if right in (0, len(xs)):
        end = 0 if right == 0 else -1
        return ys[end] + slopes[end] * (x - xs[end])
    x0, width = xs[right - 1], xs[right] - xs[right - 1]
    part = (x - x0) / width
    y0, y1, d0, d1 = ys[right - 1], ys[right], slopes[right - 1] * width, slopes[right] * width
    return (
        y0
        + part * d0
        + part**2 * (3 * (y1 - y0) - 2 * d0 - d1)
        + part**3 * (2 * (y0 - y1) + d0 + d1)
    )  # fmt: skip
