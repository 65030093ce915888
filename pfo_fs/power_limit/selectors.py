"""Which of the measured levels (power limits, or clocks) is the best one, and which levels are measured to find it.

Names of the selectors, and their choices of power limits, are as in Zeus.

A full sweep is Zeus's way: all levels, highest first. The search from coarse to fine measures the highest and the
middle level, predicts the others from them, and measures at the predicted optimum, until that and its neighbours are
measured. Its windows are half as long, and it needs at most half of the sweep's steps if there are five levels or more.

Values between two measurements are predicted from how GPUs behave under a limit; clocks are treated alike. A GPU that
reaches its limit draws the limit on average, so that the ratio of power and limit changes little between limits. Time
is about proportional to a power (exponent) of the limit. So the ratio, and the logarithm of time, are interpolated
linearly over the logarithm of the limit; below the lowest measured limit, the ratio is constant and the line of time
goes on. (Monotone cubics in place of lines choose no better.)
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import MOST_MEASURED, KnobMeasurement, PowerLimitMeasurement

_RINGS = (1, 2, 4)
"""Distances from the optimum, in levels, that must be measured: near ones for precision, far ones against noise."""
_FEWEST = 5


class OptimumSelector(ABC):
    """Chooses a level: a power limit, or a clock; make a subclass for another way to choose."""

    @abstractmethod
    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        """Returns the `level` of the best measurement. There is at least one; all are of the same knob."""


@dataclass(frozen=True)
class Energy(OptimumSelector):
    """Chooses the level of least energy; of equals, the first."""

    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        return min(measurements, key=lambda m: m.energy).level


@dataclass(frozen=True)
class Time(OptimumSelector):
    """Chooses the level of least time; of equals, the first.

    If several levels take the same time, noise decides between them, and the choice may not be the highest.
    """

    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        return min(measurements, key=lambda m: m.time).level


@dataclass(frozen=True)
class ZeusCost(OptimumSelector):
    """Least `eta * energy + (1 - eta) * max_power * time`, the cost of the Zeus paper (NSDI'23, equation 2).

    The maximum power is the largest limit measured, of all GPUs; if clocks were measured, the average power of all GPUs
    at the highest clock.

    Args:
        eta_knob: 1 for energy alone, 0 for time alone.
        world_size: Number of GPUs whose energy is in the measurements; without effect on clocks.

    Raises:
        ConfigError: An argument is out of range.
    """

    eta_knob: float
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.eta_knob <= 1:
            raise ConfigError(f"eta_knob is {self.eta_knob}; it lies between 0 (time) and 1 (energy)")
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}; it counts GPUs, so it is 1 or more")

    def cost_j(self, measurement: KnobMeasurement, max_power_w: float) -> float:
        """Returns the cost of one measurement, in J; `max_power_w` is the maximum power of all GPUs together."""
        return self.eta_knob * measurement.energy + (1 - self.eta_knob) * max_power_w * measurement.time

    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        highest = max(measurements, key=lambda m: m.level)
        limited = isinstance(highest, PowerLimitMeasurement)
        max_power_w = highest.level * self.world_size if limited else highest.energy / highest.time
        return min(measurements, key=lambda m: self.cost_j(m, max_power_w)).level


@dataclass(frozen=True)
class MaxSlowdownConstraint(OptimumSelector):
    """Chooses the lowest level with at most `factor` times the time of the highest level; 1.05 allows 5 % more.

    Raises:
        ConfigError: `factor` is below 1.
    """

    factor: float

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ConfigError(f"factor is {self.factor}; 1 allows no slowdown, 1.05 allows 5 %, and less is impossible")

    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        reference = next(m for m in measurements if m.level == max(m.level for m in measurements))
        return min(m.level for m in measurements if m.time <= self.factor * reference.time)


class Search:
    """Chooses the level to measure next. It keeps no state: it decides from all measurements.

    Args:
        profile_steps: Number of steps in which a full sweep measures a level; the other search uses half of them.

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

        A full sweep takes the highest level that is not measured yet. So does the other search if there are fewer than
        five levels, too few to predict any. Limits that the GPU does not reach are left out. Of the levels below the
        lowest measured one, only the upper half is predicted, because low levels are slow, and seldom the best.
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
        reached = _reached(sorted(known.values(), key=lambda m: m.level))
        levels = [level for level in levels if level <= reached or level in known]
        count, lowest = len(levels), levels.index(min(known))
        reach = levels[: lowest + 1 + (count - lowest) // 2]
        best = selector.select(predict(reach, list(known.values())))
        if best not in levels:
            raise ValueError(f"{best} is not one of the levels to choose from")
        if best not in known:
            return best
        position = levels.index(best)
        around = [position + distance for ring in _RINGS for distance in (ring, -ring)]
        return next((levels[i] for i in around if 0 <= i < count and levels[i] not in known), None)


def _reached(points: Sequence[KnobMeasurement]) -> float:
    """Returns the lowest level that acts as the highest one does: a GPU may draw less power than its limit allows."""
    top = points[-1]
    if not isinstance(top, PowerLimitMeasurement):
        return top.level
    shares = [point.energy / point.time / point.level for point in points]
    return top.level * shares[-1] / max(shares)


def predict(levels: Sequence[int], known: Sequence[KnobMeasurement]) -> list[KnobMeasurement]:
    """Returns a measurement for each of `levels`: the known one, or a prediction; at least two must be known."""
    by_limit = {measurement.level: measurement for measurement in known}
    points = [by_limit[level] for level in sorted(by_limit)]
    log_limits = [math.log(point.level) for point in points]
    log_times = [math.log(point.time) for point in points]
    shares = [point.energy / point.time / point.level for point in points]
    predicted = []
    for level in levels:
        if level in by_limit:
            predicted.append(by_limit[level])
            continue
        x = math.log(level)
        time_s = math.exp(min(_linear(x, log_limits, log_times, goes_on=True), math.log(MOST_MEASURED)))
        energy_j = min(_linear(x, log_limits, shares, goes_on=False) * level * time_s, MOST_MEASURED)
        predicted.append(type(points[0]).at(level, energy=energy_j, time=time_s))
    return predicted


def _linear(x: float, xs: Sequence[float], ys: Sequence[float], *, goes_on: bool) -> float:
    """Interpolates linearly; beyond the ends, the last line goes on if `goes_on`, else the last value stays."""
    right = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    part = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    if not goes_on:
        part = min(max(part, 0.0), 1.0)
    return ys[right - 1] + part * (ys[right] - ys[right - 1])
