"""The true time and energy of instructions on the simulated GPUs: from a GPU model, or from a measured profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pfo_fs.device.simulated.physics import GpuModel
from pfo_fs.errors import ConfigError
from pfo_fs.planner import Measurement, Profile


class Truth(Protocol):
    """The true time and energy of each instruction at each clock, without noise."""

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """Clocks on offer, highest first."""

    @property
    def blocking_power_w(self) -> float:
        """The power of a waiting GPU, in W."""

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock on offer."""


@dataclass(frozen=True)
class ModelTruth:
    """The truth of a GPU model in `device.physics`.

    Attributes:
        model: The kind of GPU.
        num_stages: Stages of the pipeline; the last one takes longer.
        slowest_mhz: Lower clocks are not on offer; the models are fitted to 855 MHz and above.
    """

    model: GpuModel
    num_stages: int
    slowest_mhz: int = 210

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """Clocks on offer, highest first."""
        return tuple(mhz for mhz in self.model.clocks_mhz if mhz >= self.slowest_mhz)

    @property
    def blocking_power_w(self) -> float:
        """The power of a waiting GPU, in W."""
        return self.model.blocking_power_w

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock."""
        one = self.model.coefficients(instruction, last_stage=stage == self.num_stages - 1)
        time_s = one.time_s(mhz)
        return Measurement(mhz, time_s, time_s * one.power_w(mhz))


class ProfileTruth:
    """The truth of a measured profile: its means are taken as exact.

    Args:
        profile: Measurements of every instruction at every clock.
        blocking_power_w: The power of a waiting GPU, in W.

    Raises:
        ConfigError: The instructions have no clock in common.
    """

    def __init__(self, profile: Profile, blocking_power_w: float) -> None:
        tables = {kind: {m.frequency_mhz: m for m in ms} for kind, ms in profile.measurements.items()}
        common = set.intersection(*(set(table) for table in tables.values()))
        if not common:
            raise ConfigError(f"{profile.source}: no clock was measured for all instructions")
        self.clocks_mhz: tuple[int, ...] = tuple(sorted(common, reverse=True))
        self.blocking_power_w = blocking_power_w
        self._tables = tables

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock.

        Raises:
            ConfigError: The profile does not have the instruction at this clock.
        """
        try:
            return self._tables[stage, instruction][mhz]
        except KeyError:
            raise ConfigError(f"the profile has no {instruction} of stage {stage} at {mhz} MHz") from None
