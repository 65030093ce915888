"""NVML directly, for root and processes with CAP_SYS_ADMIN: the fastest way."""

from __future__ import annotations

from pfo_fs.device.gpu.nvml import NvmlGpu


class NvmlBackend:
    """Sets the clocks of a GPU that is open in NVML.

    Args:
        gpu: The GPU; its owner closes it.
    """

    name = "nvml"

    def __init__(self, gpu: NvmlGpu) -> None:
        self._gpu = gpu

    def why_not(self) -> str:
        """Returns an empty string: only a change shows whether this user has the permission."""
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Locks the graphics clock at `mhz`; see `NvmlGpu`."""
        self._gpu.lock_clock_mhz(mhz)

    def reset_clocks(self) -> None:
        """Unlocks the graphics clock; see `NvmlGpu`."""
        self._gpu.reset_clocks()

    def set_power_limit_w(self, limit_w: float) -> None:
        """Sets the power limit, in watts; see `NvmlGpu`."""
        self._gpu.set_power_limit_w(limit_w)

    def close(self) -> None:
        """Does nothing: the GPU is also used for reading."""
