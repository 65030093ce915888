"""The interface of a GPU: its clocks, its power limit and its energy counter.

The clock process imports this module, so it is small. Real and simulated GPUs have modules of their own; `gpu_spec.py`
opens them.
"""

from __future__ import annotations

from typing import Protocol

from pfo_fs.device.gpu.action_log import ActionLog
from pfo_fs.errors import DeviceError


class Gpu(Protocol):
    """One GPU."""

    name: str
    uuid: str

    @property
    def clock_backend(self) -> str:
        """The way in which clocks are set (`clock_backends`), `simulated`, or `none` while none works."""

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the graphics clocks that can be locked, in MHz, highest first; none if the driver does not say."""

    def why_clocks_stay(self) -> str:
        """Tries whether this user may set clocks; returns why not, or an empty string. May reset the clocks."""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Holds the graphics clock at `mhz`.

        Raises:
            DeviceError: The GPU, or its driver, did not do so.
        """

    def reset_clocks(self) -> None:
        """Lets the driver choose the graphics clock again."""

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns whether the GPU shows that it is still locked at `mhz`; None if it does not tell."""

    def power_limit_range_w(self) -> tuple[float, float]:
        """Returns the lowest and the highest power limit that can be set, in watts.

        Raises:
            DeviceError: The GPU has no power limit to set.
        """

    def power_limit_w(self) -> float:
        """Returns the power limit in force, in watts."""

    def set_power_limit_w(self, limit_w: float) -> None:
        """Sets the power limit, in watts; it stays until another one is set.

        Raises:
            DevicePermissionError: This user may not set power limits.
            DeviceError: The GPU, or its driver, did not do so.
        """

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

    def close(self) -> None:
        """Ends the use of the GPU; clocks stay as they are. A second call does nothing; any other call then raises."""


class NoGpu:
    """Takes the place of a missing GPU: only time can be measured.

    Args:
        reason: Why the GPU is missing.
    """

    name = "none"
    uuid = ""
    clock_backend = "none"
    energy_breaks = 0

    def __init__(self, reason: str = "training has no GPU that pfo-fs can use; no clocks are set") -> None:
        self._reason = reason

    def supported_clocks_mhz(self) -> list[int]:
        """Returns an empty list."""
        return []

    def why_clocks_stay(self) -> str:
        """Returns the reason given."""
        return self._reason

    def lock_clock_mhz(self, mhz: int) -> None:
        """Raises a `DeviceError`."""
        raise DeviceError(f"cannot set {mhz} MHz: {self._reason}")

    def reset_clocks(self) -> None:
        """Does nothing."""

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns None."""
        return None

    def power_limit_range_w(self) -> tuple[float, float]:
        """Raises a `DeviceError`."""
        raise DeviceError(f"no power limit can be set: {self._reason}")

    def power_limit_w(self) -> float:
        """Raises a `DeviceError`."""
        raise DeviceError(f"the power limit cannot be read: {self._reason}")

    def set_power_limit_w(self, limit_w: float) -> None:
        """Raises a `DeviceError`."""
        raise DeviceError(f"cannot set a power limit of {limit_w:g} W: {self._reason}")

    def energy_j(self) -> float:
        """Returns 0."""
        return 0.0

    def throttled(self) -> str:
        """Returns an empty string."""
        return ""

    def close(self) -> None:
        """Does nothing."""


class DryRunGpu:
    """Reads everything from a real GPU and changes nothing on it (`PFO_FS_DRY_RUN=1`).

    It serves machines where clocks may not be changed: it only records the clocks and power limits that it would set.

    Args:
        gpu: The real GPU.
        log_path: File that gets a line for each change that was not made; None for no file.
    """

    def __init__(self, gpu: Gpu, log_path: str | None = None) -> None:
        self._gpu = gpu
        self.clock_backend = "dry run"
        self._log = ActionLog(log_path) if log_path else None
        self.name = f"{gpu.name} (dry run)"
        self.uuid = gpu.uuid
        self.actions: list[tuple[str, float]] = []

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the real GPU's clocks, in MHz."""
        return self._gpu.supported_clocks_mhz()

    def why_clocks_stay(self) -> str:
        """Returns an empty string, so that a dry run does everything but the changes."""
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Records the change only."""
        self._record("lock", mhz)

    def reset_clocks(self) -> None:
        """Records the reset only."""
        self._record("reset", 0)

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns None: no clock was locked."""
        return None

    def power_limit_range_w(self) -> tuple[float, float]:
        """Returns the real GPU's range, in watts."""
        return self._gpu.power_limit_range_w()

    def power_limit_w(self) -> float:
        """Returns the real GPU's limit, in watts, whatever was recorded."""
        return self._gpu.power_limit_w()

    def set_power_limit_w(self, limit_w: float) -> None:
        """Records the limit only."""
        if len(self.actions) < 10_000:
            self.actions.append(("limit", limit_w))
        if self._log is not None:
            self._log.write_limit(limit_w)

    def _record(self, action: str, mhz: int) -> None:
        if len(self.actions) < 10_000:
            self.actions.append((action, mhz))
        if self._log is not None:
            self._log.write(action, mhz)

    def energy_j(self) -> float:
        """Returns the real GPU's counter, in joules."""
        return self._gpu.energy_j()

    @property
    def energy_breaks(self) -> int:
        """Those of the real GPU."""
        return self._gpu.energy_breaks

    def throttled(self) -> str:
        """Returns the answer of the real GPU."""
        return self._gpu.throttled()

    def close(self) -> None:
        """Ends the use of the real GPU."""
        self._gpu.close()
        if self._log is not None:
            self._log.close()
