"""Which of the measured power limits is the best one. Names and choices of the selectors are as in Zeus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import PowerLimitMeasurement


class OptimumSelector(ABC):
    """Chooses a power limit; make a subclass for another way to choose.

    A choice must depend only on the measurements, because jobs that share a directory also share choices: two selectors
    with the same `repr` count as the same selector.
    """

    @abstractmethod
    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Returns the best power limit, in W, one of those measured. There is at least one measurement."""


@dataclass(frozen=True)
class Energy(OptimumSelector):
    """Chooses the least energy; of equals, the first."""

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Returns the power limit in W."""
        return min(measurements, key=lambda m: m.energy).power_limit


@dataclass(frozen=True)
class Time(OptimumSelector):
    """Chooses the least time; of equals, the first.

    If several limits take the same time, noise decides between them, and the choice may not be the highest.
    """

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Returns the power limit in W."""
        return min(measurements, key=lambda m: m.time).power_limit


@dataclass(frozen=True)
class ZeusCost(OptimumSelector):
    """Least `eta * energy + (1 - eta) * max_power * time`, the cost of the Zeus paper (NSDI'23, equation 2).

    The maximum power is that of all GPUs at the largest limit measured.

    Args:
        eta_knob: 1 for energy alone, 0 for time alone.
        world_size: Number of GPUs whose energy is in the measurements.

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

    def cost_j(self, measurement: PowerLimitMeasurement, max_power_limit_w: int) -> float:
        """Returns the cost of one measurement, in J; `max_power_limit_w` is the largest limit measured."""
        max_power_w = max_power_limit_w * self.world_size
        return self.eta_knob * measurement.energy + (1 - self.eta_knob) * max_power_w * measurement.time

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Returns the power limit in W."""
        highest_w = max(m.power_limit for m in measurements)
        return min(measurements, key=lambda m: self.cost_j(m, highest_w)).power_limit


@dataclass(frozen=True)
class MaxSlowdownConstraint(OptimumSelector):
    """Chooses the lowest power limit with at most `factor` times the time of the largest limit measured.

    Args:
        factor: 1.05 allows 5 % more time.

    Raises:
        ConfigError: `factor` is below 1.
    """

    factor: float

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ConfigError(f"factor is {self.factor}; 1 allows no slowdown, 1.05 allows 5 %, and less is impossible")

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Returns the power limit in W."""
        reference = next(m for m in measurements if m.power_limit == max(m.power_limit for m in measurements))
        return min(m.power_limit for m in measurements if m.time <= self.factor * reference.time)
