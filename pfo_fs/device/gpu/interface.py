"""The interface of a GPU: its clocks, its power limit and its energy counter; and what it is set to.

The clock process imports this module, so it is small. Real and simulated GPUs have modules of their own; `spec.py`
opens them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pfo_fs.device.clock_backends.interface import MeasuresOnly, Settable
from pfo_fs.errors import DeviceError


class Gpu(Settable, Protocol):
    """One GPU; after `close`, any call but a second one raises."""

    name: str
    uuid: str

    @property
    def clock_backend(self) -> str:
        """The way in which clocks are set (`clock_backends`), `simulated`, or `none` while none works."""

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the graphics clocks that can be locked, in MHz, highest first; none if the driver does not say."""

    def try_reset(self) -> str:
        """Resets the clocks, to try whether this user may set them; returns why not, or an empty string."""

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns whether the GPU shows that it is still locked at `mhz`; None if it does not tell."""

    def power_limit_range_w(self) -> tuple[float, float]:
        """Returns the lowest and the highest power limit that can be set, in watts.

        Raises:
            DeviceError: The GPU has no power limit to set.
        """

    def power_limit_w(self) -> float:
        """Returns the power limit in force, in watts."""

    def energy_j(self) -> float:
        """Returns the reading of a counter of consumed energy, in joules; it never goes back.

        Raises:
            DeviceError: It cannot be read now.
        """

    @property
    def energy_breaks(self) -> int:
        """How often it was not known what was consumed between two readings: the counter was set back, for example."""

    def throttled(self) -> str:
        """Returns what holds the clock below the requested one, as text for the status; empty if nothing does."""


class NoGpu(MeasuresOnly):
    """Takes the place of a missing GPU: only time can be measured."""

    name = "none"
    uuid = ""
    clock_backend = "none"
    energy_breaks = 0

    def __init__(self, reason: str = "training has no GPU that pfo-fs can use; no clocks are set") -> None:
        super().__init__(reason)
        self.try_reset = self.why_not

    def supported_clocks_mhz(self) -> list[int]:
        """Returns an empty list."""
        return []

    def reset_clocks(self) -> None:
        """Does nothing: there is no clock that could be locked."""

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns None."""
        return None

    def power_limit_range_w(self) -> tuple[float, float]:
        """Raises a `DeviceError`."""
        raise DeviceError(f"no power limit can be set: {self._reason}")

    def power_limit_w(self) -> float:
        """Raises a `DeviceError`."""
        raise DeviceError(f"the power limit cannot be read: {self._reason}")

    def energy_j(self) -> float:
        """Returns 0."""
        return 0.0

    def throttled(self) -> str:
        """Returns an empty string."""
        return ""


class ReadThrough:
    """A GPU that is read as another one; how it is set is what a subclass adds.

    Args:
        gpu: The other one, which this object closes.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.name, self.uuid = gpu.name, gpu.uuid
        self.supported_clocks_mhz = gpu.supported_clocks_mhz
        self.power_limit_range_w, self.power_limit_w = gpu.power_limit_range_w, gpu.power_limit_w
        self.energy_j, self.throttled = gpu.energy_j, gpu.throttled

    @property
    def energy_breaks(self) -> int:
        """How often it was not known what was consumed between two readings."""
        return self._gpu.energy_breaks

    def close(self) -> None:
        """Ends the use of the GPU."""
        self._gpu.close()


class GpuSettings(NamedTuple):
    """Clock and power limit in force, read without changing them.

    Attributes:
        locked_mhz: The clock that the GPU is locked at, in MHz; 0 if it is not locked.
        limit_w: The power limit, in W; 0 if the GPU has none.
        default_limit_w: The power limit after a restart, in W.
        processes: Processes that compute on the GPU.
        lock_is_sure: Whether `locked_mhz` is known, not concluded from the clock of a GPU without processes.
    """

    locked_mhz: int
    limit_w: float
    default_limit_w: float
    processes: int = 0
    lock_is_sure: bool = True

    @property
    def limit_differs(self) -> bool:
        """Whether the power limit is not the default one."""
        return abs(self.limit_w - self.default_limit_w) > 0.5

    @property
    def differs(self) -> bool:
        """Whether anything is not at its default."""
        return self.locked_mhz > 0 or self.limit_differs

    @property
    def text(self) -> str:
        """What differs."""
        parts = []
        if self.locked_mhz:
            parts.append(f"clock {'locked at' if self.lock_is_sure else 'stays at'} {self.locked_mhz} MHz")
        if self.limit_differs:
            parts.append(f"power limit {self.limit_w:g} W instead of {self.default_limit_w:g} W")
        return ", ".join(parts) or "at its defaults"
