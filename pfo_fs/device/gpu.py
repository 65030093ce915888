"""What a GPU is to us: some clocks, a power limit, and an energy counter.

A *spec* names a GPU across processes: `nvml:GPU-<uuid>`, `simulated:<name>`, or `none`. A device is always found by its
UUID: LOCAL_RANK and CUDA's ordinals are not NVML's. Light on purpose: the clock process starts from here.
"""

from __future__ import annotations

import os
from typing import Protocol

from pfo_fs.device.action_log import ActionLog
from pfo_fs.errors import DeviceError


class Gpu(Protocol):
    """One GPU."""

    name: str
    uuid: str

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the graphics clocks that can be locked, in MHz, highest first."""

    def why_clocks_stay(self) -> str:
        """Tries whether this user may set clocks; returns why not, or an empty string. May reset the clocks."""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Holds the graphics clock at `mhz`.

        Raises:
            DeviceError: The GPU, or its driver, did not do so.
        """

    def reset_clocks(self) -> None:
        """Gives the graphics clock back to the driver."""

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
            DevicePermissionError: This user may not.
            DeviceError: The GPU, or its driver, did not do so.
        """

    def energy_j(self) -> float:
        """Returns the reading of a counter of consumed energy, in joules; it never goes back."""

    def throttled(self) -> str:
        """Returns what holds the clocks below what was asked for, in words; empty if nothing does."""

    def close(self) -> None:
        """Lets go of the GPU; does not change its clocks."""


class NoGpu:
    """No GPU: time can be measured, nothing else.

    Args:
        reason: Why there is none, for people.
    """

    name = "none"
    uuid = ""

    def __init__(self, reason: str = "there is no GPU here; clocks are left alone") -> None:
        self._reason = reason

    def supported_clocks_mhz(self) -> list[int]:
        """Returns an empty list."""
        return []

    def why_clocks_stay(self) -> str:
        """Returns the reason given."""
        return self._reason

    def lock_clock_mhz(self, mhz: int) -> None:
        """Refuses."""
        raise DeviceError(f"cannot set {mhz} MHz: {self._reason}")

    def reset_clocks(self) -> None:
        """Does nothing."""

    def power_limit_range_w(self) -> tuple[float, float]:
        """Refuses."""
        raise DeviceError(f"no power limit can be set: {self._reason}")

    def power_limit_w(self) -> float:
        """Refuses."""
        raise DeviceError(f"there is no power limit: {self._reason}")

    def set_power_limit_w(self, limit_w: float) -> None:
        """Refuses."""
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

    For machines where clocks may not be touched: clocks and power limits that would be set are only recorded.

    Args:
        gpu: The real one.
        log_path: File that gets a line for each change that was not made; None for no file.
    """

    def __init__(self, gpu: Gpu, log_path: str | None = None) -> None:
        self._gpu = gpu
        self._log = ActionLog(log_path) if log_path else None
        self.name = f"{gpu.name} (dry run)"
        self.uuid = gpu.uuid
        self.actions: list[tuple[str, float]] = []

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the real GPU's clocks, in MHz."""
        return self._gpu.supported_clocks_mhz()

    def why_clocks_stay(self) -> str:
        """Returns an empty string: a dry run pretends that it may."""
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Records the change only."""
        self._record("lock", mhz)

    def reset_clocks(self) -> None:
        """Records the reset only."""
        self._record("reset", 0)

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

    def throttled(self) -> str:
        """Returns what the real GPU says."""
        return self._gpu.throttled()

    def close(self) -> None:
        """Lets go of the real GPU."""
        self._gpu.close()
        if self._log is not None:
            self._log.close()


def open_gpu(spec: str) -> Gpu:
    """Opens the GPU that `spec` names, read-only if `PFO_FS_DRY_RUN` is set.

    Raises:
        DeviceError: There is no such GPU, or it cannot be opened.
    """
    kind, _, name = spec.partition(":")
    gpu: Gpu
    if kind == "none":
        return NoGpu(name) if name else NoGpu()
    if kind == "simulated" and name:
        from pfo_fs.device.simulated import SimulatedGpu

        gpu = SimulatedGpu(name)
    elif kind == "nvml" and name:
        from pfo_fs.device.nvml import NvmlGpu

        gpu = NvmlGpu(name)
    else:
        raise DeviceError(f"{spec!r} names no GPU; use nvml:<UUID>, simulated:<name> or none")
    if os.environ.get("PFO_FS_DRY_RUN", "") not in ("", "0"):
        return DryRunGpu(gpu, os.environ.get("PFO_FS_DRY_RUN_LOG"))
    return gpu
