"""NVIDIA GPUs through NVML (nvidia-ml-py). No other module calls NVML; `pynvml` is imported at the first use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pfo_fs.device.clock_backends.interface import GpuPlace
from pfo_fs.device.gpu_settings import GpuSettings
from pfo_fs.errors import DeviceError, DevicePermissionError

_PERMISSION = (
    "this user may not set GPU clocks and power limits through NVML. It takes root, or CAP_SYS_ADMIN "
    "(docker run --cap-add SYS_ADMIN); the other ways are zeusd, sudo and geopm, see docs/clock-backends.md. "
    "`nvidia-smi -acp 0` does not help: it permits application clocks only"
)

# NVML's error code -> (error of this package, its meaning). Any other code becomes a DeviceError with NVML's own text.
_ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    1: (DeviceError, "NVML is not initialized"),
    2: (DeviceError, "NVML says that the value is invalid"),
    3: (DeviceError, "this GPU does not support it"),
    4: (DevicePermissionError, _PERMISSION),
    6: (DeviceError, "this process sees no such GPU"),
    8: (DeviceError, "the GPU's external power cables are not attached"),
    9: (DeviceError, "the NVIDIA driver is not loaded"),
    10: (DeviceError, "the driver did not answer in time"),
    12: (DeviceError, "libnvidia-ml.so was not found; is the driver mounted into this container?"),
    13: (DeviceError, "the driver is too old for this"),
    15: (DeviceError, "the GPU has fallen off the bus or is otherwise inaccessible"),
    16: (DeviceError, "the GPU needs a reset"),
    17: (DeviceError, "the operating system blocks access to the GPU"),
    18: (DeviceError, "library and driver are of different versions; reboot, or reload the driver"),
    19: (DeviceError, "another use of the GPU forbids this"),
}
_NOT_SUPPORTED = 3

# NVML's bits of clocks event reasons; those that a locked clock sets itself are not here.
_THROTTLING = (
    (0x04, "power limit"),
    (0x08, "hardware slowdown"),
    (0x20, "thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
)


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise DeviceError("the package nvidia-ml-py is not installed") from None
    return pynvml


def _call(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Calls NVML; raises its error as a `DeviceError` that has NVML's code as attribute `nvml_code`."""
    try:
        return function(*args)
    except _pynvml().NVMLError as error:
        code = int(getattr(error, "value", -1))
        kind, meaning = _ERRORS.get(code, (DeviceError, str(error)))
        ours = kind(f"{what}: {meaning} (NVML error {code})")
        ours.nvml_code = code  # type: ignore[attr-defined]
        raise ours from None


def _not_supported(error: DeviceError) -> bool:
    return getattr(error, "nvml_code", None) == _NOT_SUPPORTED


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class NvmlGpu:
    """A whole NVIDIA GPU, not a MIG slice (a part of a GPU).

    Args:
        uuid: The UUID as `nvidia-smi -L` prints it, `GPU-...`.

    Raises:
        DeviceError: This process sees no such GPU, NVML does not work, or it is a MIG slice.
    """

    clock_backend = "nvml"

    def __init__(self, uuid: str) -> None:
        if uuid.startswith("MIG-"):
            raise DeviceError(f"{uuid} is a MIG slice, whose clocks are those of the whole GPU; pfo-fs does not use it")
        self._nvml = nvml = _pynvml()
        _call("starting NVML", nvml.nvmlInit)
        self._open = True
        self.uuid = uuid
        self._last_j = 0.0
        self._last_power: tuple[float, float] | None = None  # monotonic s, W
        try:
            self._handle = _call(f"finding GPU {uuid}", nvml.nvmlDeviceGetHandleByUUID, uuid)
            self.name = _text(_call("reading the GPU's name", nvml.nvmlDeviceGetName, self._handle))
            self._refuse_mig()
            self._has_counter = self._finds_counter()
        except DeviceError:
            with suppress(DeviceError):
                self.close()
            raise

    def _finds_counter(self) -> bool:
        """Returns whether the GPU has an energy counter; an error other than "not supported" is raised."""
        try:
            self._counter_j()
        except DeviceError as error:
            if not _not_supported(error):
                raise
            return False
        return True

    def _refuse_mig(self) -> None:
        try:
            current, _ = _call("reading the MIG mode", self._nvml.nvmlDeviceGetMigMode, self._handle)
        except DeviceError:
            return  # a GPU without MIG
        if current:
            raise DeviceError(
                f"{self.name} {self.uuid} is in MIG mode: its slices share one clock, so pfo-fs does not use it"
            )

    def place(self) -> GpuPlace:
        """Returns how other programs of this host name the GPU."""
        nvml = self._nvml
        bus_id = _text(_call("reading the PCI address", nvml.nvmlDeviceGetPciInfo, self._handle).busId)
        domain, _, rest = bus_id.lower().partition(":")
        return GpuPlace(
            uuid=self.uuid,
            name=self.name,
            nvml_index=int(_call("reading the index", nvml.nvmlDeviceGetIndex, self._handle)),
            gpu_count=int(_call("counting GPUs", nvml.nvmlDeviceGetCount)),
            pci_address=f"{int(domain, 16):04x}:{rest}",
        )

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the graphics clocks at the highest memory clock, in MHz, highest first."""
        nvml = self._nvml
        memory = _call("reading the memory clocks", nvml.nvmlDeviceGetSupportedMemoryClocks, self._handle)
        if not memory:
            return []
        clocks = _call(
            "reading the graphics clocks", nvml.nvmlDeviceGetSupportedGraphicsClocks, self._handle, max(memory)
        )
        return sorted((int(mhz) for mhz in clocks), reverse=True)

    def why_clocks_stay(self) -> str:
        """Resets the clocks, which needs the same permission as locking them; returns why that failed, or ''."""
        try:
            self.reset_clocks()
        except DeviceError as error:
            return str(error)
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Locks the graphics clock at `mhz`.

        Raises:
            DevicePermissionError: This user may not lock clocks.
            DeviceError: The driver refuses.
        """
        _call(f"locking {self.uuid} at {mhz} MHz", self._nvml.nvmlDeviceSetGpuLockedClocks, self._handle, mhz, mhz)

    def reset_clocks(self) -> None:
        """Unlocks the graphics clock."""
        _call(f"unlocking the clocks of {self.uuid}", self._nvml.nvmlDeviceResetGpuLockedClocks, self._handle)

    def power_limit_range_w(self) -> tuple[float, float]:
        """Returns the lowest and the highest power limit that the board accepts, in watts."""
        lowest_mw, highest_mw = _call(
            f"reading the range of power limits of {self.uuid}",
            self._nvml.nvmlDeviceGetPowerManagementLimitConstraints,
            self._handle,
        )
        return lowest_mw / 1000, highest_mw / 1000

    def power_limit_w(self) -> float:
        """Returns the power limit that was set last, or the board's default, in watts."""
        read = self._nvml.nvmlDeviceGetPowerManagementLimit
        return float(_call(f"reading the power limit of {self.uuid}", read, self._handle)) / 1000

    def set_power_limit_w(self, limit_w: float) -> None:
        """Sets the power limit, in watts.

        Raises:
            DevicePermissionError: This user may not set power limits.
            DeviceError: The driver refuses.
        """
        what = f"setting a power limit of {limit_w:g} W on {self.uuid}"
        _call(what, self._nvml.nvmlDeviceSetPowerManagementLimit, self._handle, round(limit_w * 1000))

    def energy_j(self) -> float:
        """Returns the GPU's energy counter in joules; without one, the integral of the power read at each call."""
        if self._has_counter:
            self._last_j = max(self._last_j, self._counter_j())  # a reset of the driver resets the counter
            return self._last_j
        power_w = _call("reading the power", self._nvml.nvmlDeviceGetPowerUsage, self._handle) / 1000
        now_s = time.monotonic()
        if self._last_power is not None:
            self._last_j += (now_s - self._last_power[0]) * (power_w + self._last_power[1]) / 2
        self._last_power = (now_s, power_w)
        return self._last_j

    def _counter_j(self) -> float:
        energy_mj = _call("reading the energy counter", self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        return float(energy_mj) / 1000

    def throttled(self) -> str:
        """Returns what holds the clocks back: heat, power or a hardware brake; empty if nothing does."""
        reasons = self.clock_reasons()
        return ", ".join(text for bit, text in _THROTTLING if reasons & bit)

    def clock_reasons(self) -> int:
        """Returns NVML's bits of clocks event reasons."""
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        ask = getattr(self._nvml, name, None) or self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return int(_call("reading why clocks are held back", ask, self._handle))

    def close(self) -> None:
        """Ends this object's use of NVML, once; locked clocks stay locked."""
        if self._open:
            self._open = False
            _call("ending NVML", self._nvml.nvmlShutdown)


_IDLE = 0x01
_CLOCKS_SET = 0x02


def nvml_settings(uuid: str) -> GpuSettings:
    """Returns clock and power limit of an NVIDIA GPU.

    NVML does not tell locked clocks. On a GPU without processes they show: its clock does not fall to the idle one.

    Raises:
        DeviceError: NVML does not answer.
    """
    gpu = NvmlGpu(uuid)
    nvml, handle = gpu._nvml, gpu._handle
    try:
        processes = len(_call("reading the GPU's processes", nvml.nvmlDeviceGetComputeRunningProcesses, handle))
        limit_w = gpu.power_limit_w()
        default_w = (
            _call("reading the default power limit", nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle) / 1000
        )
        reasons = gpu.clock_reasons()
        stays = not processes and (reasons & _CLOCKS_SET or not reasons & _IDLE)
        mhz = 0
        if stays:
            mhz = int(_call("reading the clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_GRAPHICS))
        return GpuSettings(mhz, limit_w, default_w, processes, lock_is_sure=False)
    finally:
        gpu.close()


def uuid_of_visible_device(index: int) -> str:
    """Returns the UUID of CUDA device `index` of this process, found without CUDA.

    Follows CUDA_VISIBLE_DEVICES as CUDA does: a list of ordinals and UUIDs (the start of one is enough), cut off at the
    first entry that does not name a device.

    Raises:
        DeviceError: No such device is visible, it is a MIG slice, or CUDA's ordinal is ambiguous (GPUs of different
            kinds without CUDA_DEVICE_ORDER=PCI_BUS_ID: CUDA then puts the fastest first).
    """
    uuids, names = _all_gpus()
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = _visible(variable, uuids)
    if not 0 <= index < len(visible):
        raise DeviceError(
            f"CUDA device {index} is not visible: CUDA_VISIBLE_DEVICES={variable!r} leaves {len(visible)} of "
            f"{len(uuids)} GPUs"
        )
    uuid, by_ordinal = visible[index]
    if by_ordinal and len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise DeviceError(
            f"GPUs of different kinds ({', '.join(sorted(names))}): set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by "
            f"UUID in CUDA_VISIBLE_DEVICES, so that CUDA device {index} is unambiguous"
        )
    return uuid


def visible_uuids() -> list[str]:
    """Returns the UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves to this process.

    Raises:
        DeviceError: NVML does not work, or a MIG slice is visible.
    """
    return [uuid for uuid, _ in _visible(os.environ.get("CUDA_VISIBLE_DEVICES"), _all_gpus()[0])]


def driver_version() -> str:
    """Returns the version of the NVIDIA driver.

    Raises:
        DeviceError: NVML does not work.
    """
    nvml = _pynvml()
    _call("starting NVML", nvml.nvmlInit)
    try:
        return _text(_call("reading the version of the driver", nvml.nvmlSystemGetDriverVersion))
    finally:
        nvml.nvmlShutdown()


def _all_gpus() -> tuple[list[str], set[str]]:
    """Returns the UUIDs of all GPUs in NVML's order, and the different names among them."""
    nvml = _pynvml()
    _call("starting NVML", nvml.nvmlInit)
    try:
        handles = [
            _call("finding GPUs", nvml.nvmlDeviceGetHandleByIndex, i)
            for i in range(_call("counting GPUs", nvml.nvmlDeviceGetCount))
        ]
        uuids = [_text(_call("reading a UUID", nvml.nvmlDeviceGetUUID, handle)) for handle in handles]
        names = {_text(_call("reading a name", nvml.nvmlDeviceGetName, handle)) for handle in handles}
        return uuids, names
    finally:
        nvml.nvmlShutdown()


def _visible(variable: str | None, uuids: list[str]) -> list[tuple[str, bool]]:
    """Returns (UUID, whether it was named by its ordinal) of each visible device."""
    if variable is None:
        return [(uuid, True) for uuid in uuids]
    visible: list[tuple[str, bool]] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.startswith("MIG-"):
            raise DeviceError(f"CUDA_VISIBLE_DEVICES names a MIG slice ({entry}); pfo-fs needs whole GPUs")
        if entry.isdecimal() and int(entry) < len(uuids):
            found = [(uuids[int(entry)], True)]
        elif entry.startswith("GPU-"):
            found = [(uuid, False) for uuid in uuids if uuid.startswith(entry)]
        else:
            found = []
        if len(found) != 1:
            break
        visible += found
    return visible
