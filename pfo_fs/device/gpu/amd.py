"""AMD GPUs through AMD SMI. Tested with a stand-in for its package only: it has never run on an AMD GPU.

The Python package `amdsmi` comes with ROCm, and must be of the driver's version, so pfo-fs does not install it. What it
returns, and what its errors mean, is taken from AMD's reference and from Zeus's source (zeus/device/gpu/amd.py).
"""

import contextlib
import importlib
import threading
from collections.abc import Sequence
from typing import Any

from pfo_fs.device.gpu.driver_errors import patiently
from pfo_fs.device.gpu.driver_gpu import DriverGpu
from pfo_fs.device.gpu.interface import ClockSeen, GpuPlace, GpuSettings
from pfo_fs.errors import DeviceError, DevicePermissionError, NotOffered

_ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    2: (NotOffered, "this GPU does not support it"),
    10: (DevicePermissionError, "this user may not do so through AMD SMI: it takes root, or CAP_SYS_ADMIN, or zeusd"),
    31: (NotOffered, "this process sees no such GPU"),
    34: (DeviceError, "the AMD driver is not loaded"),
}
"""AMD SMI's status -> (kind of error, its meaning). Any other status is a `DeviceError` with AMD SMI's own text."""
_STEP_MHZ = 20
"""AMD SMI takes any clock of a range. Clocks are offered in steps of about 1 % of the highest, as NVIDIA's are."""
_WHOLE = ("SPX", "N/A")
"""Compute partitions of a GPU that one process uses as a whole, or that has none."""
_one_call = threading.Lock()
"""AMD SMI before ROCm 7.2 is not safe to call from two threads (zeusd serialises its calls for the same reason)."""


class AmdGpu(DriverGpu):
    """A whole AMD GPU. Its clocks are set only where a user asks for it: `auto` leaves them alone.

    A lock is a range from the lowest clock to the one that is asked for, which a GPU at work takes. A reset gives the
    clocks of the memory back to the driver, too: AMD SMI has no reset of one domain.

    Args:
        address: PCI address, as `lspci -D` prints it.

    Raises:
        DeviceError: This process sees no such GPU, AMD SMI does not work, or the GPU is divided into partitions.
    """

    clock_backend = "amdsmi"
    ways = ("amdsmi", "zeusd")
    why_not_auto = "clocks of AMD GPUs, on which pfo-fs is untried, are set only with clock_backend amdsmi or zeusd"

    def __init__(self, address: str) -> None:
        self._open = True
        self.uuid = address
        try:
            with contextlib.redirect_stdout(None):  # the package prints where its library is missing
                self._smi = importlib.import_module("amdsmi")
        except Exception as error:  # noqa: BLE001  a package of another version than the driver's raises much
            raise NotOffered(f"the Python package amdsmi, which ROCm brings, cannot be used: {error!r}") from None
        patiently(lambda: self._call("starting AMD SMI", "init", self._smi.AmdSmiInitFlags.INIT_AMD_GPUS))
        self._handle = self._call(f"finding GPU {address}", "get_processor_handle_from_bdf", address)
        self.name = str(self._call("reading the GPU's name", "get_gpu_asic_info", self._handle)["market_name"])
        with contextlib.suppress(NotOffered):
            partition = self._call("reading the partition", "get_gpu_compute_partition", self._handle)
            if partition not in _WHOLE:
                raise DeviceError(f"{self.name} {address} is divided ({partition}): its parts share one clock")
        self._gfx = self._smi.AmdSmiClkType.GFX
        self._clocks_mhz: list[int] = []
        super().__init__()

    def _call(self, what: str, name: str, *args: object) -> Any:
        if not self._open:
            raise DeviceError(f"{what}: GPU {self.uuid} is closed")
        function = getattr(self._smi, f"amdsmi_{name}", None)
        if function is None:
            raise NotOffered(f"{what}: the installed package amdsmi has no amdsmi_{name}")
        try:
            with _one_call:
                return function(*args)
        except self._smi.AmdSmiLibraryException as error:
            code = int(error.get_error_code())
            kind, meaning = _ERRORS.get(code, (DeviceError, str(error.get_error_info())))
            raise kind(f"{what}: {meaning} (AMD SMI status {code} of {name})") from None
        except Exception as error:  # noqa: BLE001  the package checks arguments with errors of its own
            raise DeviceError(f"{what}: {name} of the package amdsmi failed with {error!r}") from None

    def place(self) -> GpuPlace:
        """Returns how other programs of this host name the GPU."""
        return GpuPlace(self.uuid, self.name, self.uuid)

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the clocks between the lowest and the highest, in MHz, highest first.

        They are read when they are first asked for: after `try_reset`, since a lock that was left narrows the range.
        """
        try:
            self._clocks_mhz = self._clocks_mhz or list(
                range(self._clock_mhz("max_clk"), self._clock_mhz("min_clk") - 1, -_STEP_MHZ)
            )
            self.why_no_clocks = ""
        except DeviceError as error:
            self.why_no_clocks = str(error)
        return list(self._clocks_mhz)

    def _read(self, what: str, name: str, *keys: str, of: Sequence[object] = ()) -> float:
        """Returns the first of an answer's values that is a number: a GPU that lacks a value says "N/A"."""
        answer = self._call(what, name, self._handle, *of)
        for key in keys:
            if isinstance(value := answer.get(key), int | float):
                return float(value)
        raise NotOffered(f"{what}: {name} tells no {' or '.join(keys)} of this GPU")

    def _clock_mhz(self, which: str) -> int:
        return int(self._read("reading the clock", "get_clock_info", which, of=[self._gfx]))

    def lock_clock_mhz(self, mhz: int) -> None:
        lowest_mhz = min([*self.supported_clocks_mhz(), mhz])
        what = f"locking {self.uuid} at {mhz} MHz"
        self._call(what, "set_gpu_clk_range", self._handle, lowest_mhz, mhz, self._gfx)

    def reset_clocks(self) -> None:
        auto = self._smi.AmdSmiDevPerfLevel.AUTO
        self._call(f"unlocking the clocks of {self.uuid}", "set_gpu_perf_level", self._handle, auto)

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns False if the GPU shows a clock above `mhz`; else None: what is below it may be idle."""
        return False if self.clock_seen().mhz > mhz + _STEP_MHZ else None

    def power_limit_range_w(self) -> tuple[float, float]:
        return self._limit_w("min_power_cap"), self._limit_w("max_power_cap")

    def power_limit_w(self) -> float:
        return self._limit_w("power_cap")

    def _limit_w(self, which: str) -> float:
        return self._read(f"reading the power limits of {self.uuid}", "get_power_cap_info", which) / 1e6

    def set_power_limit_w(self, limit_w: float) -> None:
        what = f"setting a power limit of {limit_w:g} W on {self.uuid}"
        self._call(what, "set_power_cap", self._handle, 0, round(limit_w * 1e6))

    def _counter_j(self) -> float:
        what, name = "reading the energy counter", "get_energy_count"
        tick_uj = self._read(what, name, "counter_resolution")
        return tick_uj * self._read(what, name, "energy_accumulator", "power") / 1e6  # "power" until ROCm 6.2

    def _power_w(self) -> float:
        return self._read("reading the power", "get_power_info", "current_socket_power", "average_socket_power")

    def clock_seen(self) -> ClockSeen:
        return ClockSeen(self._clock_mhz("clk"))

    def other_setters(self) -> list[str]:
        return []

    def settings(self) -> GpuSettings:
        """Returns clock and power limit; a GPU that is not in the performance level AUTO counts as locked."""
        level = str(self._call("reading the performance level", "get_gpu_perf_level", self._handle))
        mhz = 0 if level.endswith("AUTO") else self.clock_seen().mhz
        return GpuSettings(mhz, self.power_limit_w(), self._limit_w("default_power_cap"), lock_is_sure=False)

    def close(self) -> None:
        """Ends the use; AMD SMI does not count its users, so that it stays open until the process ends."""
        self._open = False
