"""The interfaces of a GPU and of a way to set it, and GPUs on which nothing is set.

The clock process imports this module, so it is small. Real and simulated GPUs have modules of their own; `spec.py`
opens them.
"""

import os
import time
from typing import NamedTuple, Protocol

from pfo_fs.errors import DeviceError, DevicePermissionError

POWER_CAP = "power-cap"
"""The way that sets power limits in place of clocks (`clock_backends/power_cap.py`): imprecisely, late, and rarely."""
POWER_LIMIT = "power limit"
"""The name of the reason if the power limit holds a GPU's clock back."""
CAP_ACTS_S = 0.5
"""A power limit acts within half a second; power may be above it until then. A limit below the one in force is set only
when the last one has acted."""
CALL_WITHIN_S = 5.0
"""A call that has not ended after this time is given up, so that a hung daemon never blocks the clock process."""


class GpuPlace(NamedTuple):
    """One GPU of this host, as other programs name it.

    Attributes:
        uuid: The UUID as `nvidia-smi -L` prints it.
        pci_address: domain:bus:device.function, as `lspci -D` prints it.
    """

    uuid: str
    name: str
    pci_address: str


class GpuSettings(NamedTuple):
    """Clock and power limit in force, read without changing them.

    Attributes:
        locked_mhz: The clock that the GPU is locked at, in MHz; 0 if it is not locked.
        limit_w: The power limit, in W; 0 if the GPU has none.
        default_limit_w: The power limit after a restart, in W.
        lock_is_sure: Whether `locked_mhz` is known, not concluded from the clock of a GPU without processes.
    """

    locked_mhz: int
    limit_w: float
    default_limit_w: float
    processes: int = 0
    lock_is_sure: bool = True

    @property
    def limit_differs(self) -> bool:
        return abs(self.limit_w - self.default_limit_w) > 0.5

    @property
    def differs(self) -> bool:
        return self.locked_mhz > 0 or self.limit_differs

    @property
    def text(self) -> str:
        """The settings that differ, in words."""
        parts = []
        if self.locked_mhz:
            parts.append(f"clock {'locked at' if self.lock_is_sure else 'stays at'} {self.locked_mhz} MHz")
        if self.limit_differs:
            parts.append(f"power limit {self.limit_w:g} W instead of {self.default_limit_w:g} W")
        return ", ".join(parts) or "at its defaults"


class ClockSeen(NamedTuple):
    """The graphics clock that a GPU shows, 0 if it shows none; and what holds it below the one that was set, or ''.

    `is_limited`: limits of the board itself, which are no fault, keep the clock from going higher.
    """

    mhz: int = 0
    held_back: str = ""
    is_idle: bool = False
    is_limited: bool = False


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
    """One way to set the clocks and the power limit of one GPU; it waits 5 s at most for another program's answer."""

    def why_not(self) -> str:
        """Returns why this way does not work here and what the operator has to do; '' if it seems to. Changes nothing.

        An empty string is not a promise: the first change can still be refused.
        """


class MeasuresOnly:
    """A way that sets nothing, and says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def why_not(self) -> str:
        return self._reason

    def lock_clock_mhz(self, mhz: int) -> None:
        raise DeviceError(f"cannot set {mhz} MHz: {self._reason}")

    def reset_clocks(self) -> None:
        raise DevicePermissionError(f"cannot reset the clocks: {self._reason}")

    def set_power_limit_w(self, limit_w: float) -> None:
        raise DevicePermissionError(f"cannot set a power limit of {limit_w:g} W: {self._reason}")

    def close(self) -> None:
        """Does nothing."""


class Gpu(Settable, Protocol):
    """One GPU. After `close`, each call raises, except a second `close`."""

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

    def clock_seen(self) -> ClockSeen:
        """Returns the clock that the GPU shows now.

        Raises:
            DeviceError: It cannot be read now.
        """

    def other_setters(self) -> list[str]:
        """Returns what else decides this GPU's clock, if the GPU shows it, as keys of `read_back.LOOKS_LIKE`."""

    def settings(self) -> GpuSettings:
        """Returns clock and power limit in force, without changing them.

        Raises:
            DeviceError: The GPU does not say.
        """


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
        return []

    def reset_clocks(self) -> None:
        """Does nothing: there is no clock that could be locked."""

    def shows_clock(self, mhz: int) -> bool | None:
        return None

    def power_limit_range_w(self) -> tuple[float, float]:
        raise DeviceError(f"no power limit can be set: {self._reason}")

    def power_limit_w(self) -> float:
        raise DeviceError(f"the power limit cannot be read: {self._reason}")

    def energy_j(self) -> float:
        return 0.0

    def clock_seen(self) -> ClockSeen:
        return ClockSeen()

    def other_setters(self) -> list[str]:
        return []

    def settings(self) -> GpuSettings:
        raise DeviceError(f"it has no clock: {self._reason}")


class ReadThrough:
    """Reads from another GPU object; a subclass adds how the GPU is set.

    Args:
        gpu: The other object, which this object closes.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.name, self.uuid = gpu.name, gpu.uuid
        self.supported_clocks_mhz = gpu.supported_clocks_mhz
        self.power_limit_range_w, self.power_limit_w = gpu.power_limit_range_w, gpu.power_limit_w
        self.energy_j, self.settings = gpu.energy_j, gpu.settings
        self.clock_seen, self.other_setters = gpu.clock_seen, gpu.other_setters

    @property
    def energy_breaks(self) -> int:
        return self._gpu.energy_breaks

    def close(self) -> None:
        self._gpu.close()


class ActionLog:
    """Appends each change of a GPU to a file, as one JSON line: clocks locked or reset, power limits set."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, action: str, mhz: int) -> None:
        os.write(self._fd, b'{"t_ns":%d,"action":"%s","mhz":%d}\n' % (time.monotonic_ns(), action.encode(), mhz))

    def write_limit(self, limit_w: float) -> None:
        os.write(self._fd, b'{"t_ns":%d,"action":"limit","watts":%.10g}\n' % (time.monotonic_ns(), limit_w))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DryRunGpu(ReadThrough):
    """Reads everything from a real GPU and changes nothing on it (`PFO_FS_DRY_RUN=1`).

    It serves machines where clocks may not be changed: it only records the clocks and power limits that it would set.

    Args:
        log_path: File that gets a line for each change that was not made; None for no file.
    """

    def __init__(self, gpu: Gpu, log_path: str | None = None) -> None:
        super().__init__(gpu)
        self.clock_backend = "dry run"
        self._log = ActionLog(log_path or os.devnull)
        self.name = f"{gpu.name} (dry run)"
        self.clock_seen = lambda: gpu.clock_seen()._replace(mhz=0)  # it tells nothing of clocks that are not set

    def try_reset(self) -> str:
        """Returns an empty string, so that a dry run does everything but the changes."""
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        self._log.write("lock", mhz)

    def reset_clocks(self) -> None:
        self._log.write("reset", 0)

    def shows_clock(self, mhz: int) -> bool | None:
        return None

    def set_power_limit_w(self, limit_w: float) -> None:
        self._log.write_limit(limit_w)

    def close(self) -> None:
        super().close()
        self._log.close()
