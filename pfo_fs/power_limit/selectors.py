"""Which of the measured levels (power limits, or clocks) is the best one: names and choices as in Zeus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import KnobMeasurement, PowerLimitMeasurement


class OptimumSelector(ABC):
    """Chooses a level: a power limit, or a clock; make a subclass for another way to choose."""

    @abstractmethod
    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        """Returns the `level` of the best measurement. There is at least one; all are of the same knob."""


@dataclass(frozen=True)
class Energy(OptimumSelector):
    """Chooses the least energy; of equals, the first."""

    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        return min(measurements, key=lambda m: m.energy).level


@dataclass(frozen=True)
class Time(OptimumSelector):
    """Chooses the least time; of equals, the first.

    If several levels take the same time, noise decides between them, and the choice may not be the highest.
    """

    def select(self, measurements: Sequence[KnobMeasurement]) -> int:
        return min(measurements, key=lambda m: m.time).level


@dataclass(frozen=True)
class ZeusCost(OptimumSelector):
    """Least `eta * energy + (1 - eta) * max_power * time`, the cost of the Zeus paper (NSDI'23, equation 2).

    The maximum power is the largest limit measured, of all GPUs; if clocks were measured, the average power of all GPUs
    at the highest one.

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
    """Chooses the lowest level with at most `factor` times the time of the highest one measured; 1.05 allows 5 % more.

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
