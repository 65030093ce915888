"""What each way to set clocks offers, and how it names a GPU."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pfo_fs.errors import DeviceError, DevicePermissionError

CALL_WITHIN_S = 5.0
"""A call that has not ended after this time is given up, so that a hung daemon never blocks the clock process."""


class GpuPlace(NamedTuple):
    """One GPU of this host, as other programs name it.

    Attributes:
        uuid: The UUID as `nvidia-smi -L` prints it.
        name: The product name.
        nvml_index: NVML's index in this process.
        gpu_count: The number of GPUs that NVML shows to this process.
        pci_address: domain:bus:device.function, as `lspci -D` prints it.
    """

    uuid: str
    name: str
    nvml_index: int
    gpu_count: int
    pci_address: str


class Settable(Protocol):
    """What sets the clocks and the power limit of one GPU: a way to do so, or the GPU itself.

    A call returns when it is done or has failed. The clock process makes one call at a time and takes the newest
    request afterwards, so there is never more than one call under way for a GPU.
    """

    def lock_clock_mhz(self, mhz: int) -> None:
        """Holds the graphics clock at `mhz`.

        Raises:
            DevicePermissionError: This user may not do so in this way.
            DeviceError: It was refused for another reason, or did not happen in time.
        """

    def reset_clocks(self) -> None:
        """Lets the driver choose the graphics clock again; raises as `lock_clock_mhz`."""

    def set_power_limit_w(self, limit_w: float) -> None:
        """Sets the power limit, in watts; it stays until another one is set. Raises as `lock_clock_mhz`."""

    def close(self) -> None:
        """Ends the use; clocks stay as they are. A second call does nothing."""


class ClockBackend(Settable, Protocol):
    """One way to set the clocks and the power limit of one GPU. Each call takes 5 s at most."""

    def why_not(self) -> str:
        """Returns why this way does not work here and what the operator has to do; '' if it seems to. Changes nothing.

        An empty string is not a promise: the first change can still be refused.
        """


class MeasuresOnly:
    """A way that sets nothing, and says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def why_not(self) -> str:
        """Returns the reason."""
        return self._reason

    def lock_clock_mhz(self, mhz: int) -> None:
        """Raises a `DeviceError`."""
        raise DeviceError(f"cannot set {mhz} MHz: {self._reason}")

    def reset_clocks(self) -> None:
        """Raises a `DevicePermissionError`."""
        raise DevicePermissionError(f"cannot reset the clocks: {self._reason}")

    def set_power_limit_w(self, limit_w: float) -> None:
        """Raises a `DevicePermissionError`."""
        raise DevicePermissionError(f"cannot set a power limit of {limit_w:g} W: {self._reason}")

    def close(self) -> None:
        """Does nothing."""
