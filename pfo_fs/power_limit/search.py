"""Which levels (power limits, or clocks) are measured, and in which order.

A full sweep is Zeus's way: all levels, highest first. The search from coarse to fine measures the highest and the
middle level, predicts the others from them, and measures at the predicted optimum, until that and its neighbours are
measured. Its windows are half as long, and it needs at most half of the sweep's steps.

Values between two measurements are predicted from how GPUs behave under a limit; clocks are treated alike. A GPU that
reaches its limit draws the limit on average, so that the ratio of power and limit changes little between limits. Time
is about proportional to a power (exponent) of the limit. So the ratio, and the logarithm of time, are interpolated
linearly over the logarithm of the limit; below the lowest measured limit, the ratio is constant and the line of time
goes on. (Monotone cubics in place of lines choose no better.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import MOST_MEASURED, KnobMeasurement
from pfo_fs.power_limit.selectors import OptimumSelector

_RINGS = (1, 2, 4)
"""Distances from the optimum, in limits, that must be measured: near ones for precision, far ones against noise."""
_FEWEST = 5


class Search:
    """Chooses the level to measure next. It keeps no state: it decides from all measurements.

    Args:
        name: `full` or `coarse-to-fine`.
        warmup_steps: Number of steps before a level is measured.
        profile_steps: Number of steps in which a full sweep measures a level; the other search uses half of them.

    Attributes:
        is_full: Whether all levels are measured.
        window_steps: Number of steps in which one level is measured.

    Raises:
        ConfigError: There is no such search.
    """

    def __init__(self, name: str, warmup_steps: int, profile_steps: int) -> None:
        if name not in ("full", "coarse-to-fine"):
            raise ConfigError(f"search is {name!r}; it can be 'full' or 'coarse-to-fine'")
        self.is_full = name == "full"
        self.window_steps = profile_steps if self.is_full else max(1, profile_steps // 2)
        self._share = (warmup_steps + profile_steps) / (warmup_steps + self.window_steps) / 2

    def next_level(
        self, levels: Sequence[int], measurements: Sequence[KnobMeasurement], selector: OptimumSelector
    ) -> int | None:
        """Returns the level to measure next, one of `levels`; None if enough is known.

        A full sweep takes the highest level that is not measured yet, and so does the other search among fewer than
        five: there are too few between them to predict. Of the levels below the lowest measured one, only the upper
        half is predicted, because low levels are slow, and seldom the best.

        Args:
            levels: The levels to choose from, highest first.
            measurements: Measurements of some of these levels.
            selector: Chooses the best level.
        """
        known = {m.level: m for m in measurements if m.level in levels}
        count = len(levels)
        if self.is_full or count < _FEWEST:
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
    found = []
    for level in levels:
        if level in by_limit:
            found.append(by_limit[level])
            continue
        x = math.log(level)
        time_s = math.exp(min(_linear(x, log_limits, log_times, goes_on=True), math.log(MOST_MEASURED)))
        energy_j = min(_linear(x, log_limits, shares, goes_on=False) * level * time_s, MOST_MEASURED)
        found.append(type(points[0]).at(level, energy=energy_j, time=time_s))
    return found


def _linear(x: float, xs: Sequence[float], ys: Sequence[float], *, goes_on: bool) -> float:
    """Interpolates linearly; beyond the ends, the last part goes on, or nothing changes any more."""
    right = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    part = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    if not goes_on:
        part = min(max(part, 0.0), 1.0)
    return ys[right - 1] + part * (ys[right] - ys[right - 1])
