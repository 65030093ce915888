"""NVIDIA GPUs through NVML (nvidia-ml-py)."""

from contextlib import suppress
from ctypes import byref

from pfo_fs.device.gpu.driver_errors import call, mig_divides, patiently, pynvml, text_of
from pfo_fs.device.gpu.driver_gpu import DriverGpu
from pfo_fs.device.gpu.interface import POWER_LIMIT, ClockSeen, GpuPlace, GpuSettings
from pfo_fs.errors import DeviceError, NotOffered

# NVML's bits of clocks event reasons; those that a locked clock itself sets are not here.
_THROTTLING = (
    (0x04, POWER_LIMIT),
    (0x08, "hardware slowdown"),
    (0x20, "thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
)
_IDLE = 0x01
_LIMITED = 0x10 | 0x200 | 0x400
"""The bits for sync boost, the board's limit, and reliability."""
_CLOCKS_SET = 0x02
_GRAPHICS_CLOCK = 0
_CLOCK_STEP_MHZ = 15
_SAME_MHZ = 7
"""NVIDIA's clocks are 15 MHz apart: a reading that is off by less than half of that shows the clock."""


class NvmlGpu(DriverGpu):
    """A whole NVIDIA GPU, not a MIG slice (a part of a GPU).

    A feature that the GPU lacks is asked for once, and all else works: without a list of clocks, energy and power
    limits; without an energy counter, energy is integrated from power.

    Args:
        uuid: The UUID as `nvidia-smi -L` prints it, `GPU-...`.

    Raises:
        DeviceError: This process sees no such GPU, NVML does not work, or MIG divides the GPU.
    """

    clock_backend = "nvml"
    ways = ("nvml", "zeusd", "sudo")

    def __init__(self, uuid: str) -> None:
        if uuid.startswith("MIG-"):
            raise DeviceError(f"{uuid} is a MIG slice, whose clocks are those of the whole GPU; pfo-fs does not use it")
        patiently(lambda: call("starting NVML", "nvmlInit"))
        self._open = True
        self.uuid = uuid
        try:
            self._handle = patiently(lambda: call(f"finding GPU {uuid}", "nvmlDeviceGetHandleByUUID", uuid))
            self.name = self._read_name()
            if mig_divides(self._handle):
                raise DeviceError(
                    f"{self.name} {self.uuid} is in MIG mode: its slices share one clock, so pfo-fs does not use it"
                )
        except DeviceError:
            with suppress(DeviceError):
                self.close()
            raise
        super().__init__()
        self._clocks_mhz: list[int] = []
        try:
            self._clocks_mhz = patiently(self._list_clocks)
        except DeviceError as error:
            self.why_no_clocks = str(error)

    def _read_name(self) -> str:
        try:
            return text_of(call("reading the GPU's name", "nvmlDeviceGetName", self._handle))
        except DeviceError:
            return "NVIDIA GPU"

    def _list_clocks(self) -> list[int]:
        memory = call("reading the memory clocks", "nvmlDeviceGetSupportedMemoryClocks", self._handle)
        if memory:
            what, name = "reading the graphics clocks", "nvmlDeviceGetSupportedGraphicsClocks"
            clocks = call(what, name, self._handle, max(memory))
            if clocks:
                return sorted((int(mhz) for mhz in clocks), reverse=True)
        raise NotOffered("the driver lists no clocks of this GPU")

    def place(self) -> GpuPlace:
        """Returns how other programs of this host name the GPU."""
        bus_id = text_of(call("reading the PCI address", "nvmlDeviceGetPciInfo", self._handle).busId)
        domain, _, rest = bus_id.lower().partition(":")
        return GpuPlace(self.uuid, self.name, f"{int(domain, 16):04x}:{rest}")

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the graphics clocks at the highest memory clock, in MHz, highest first; see `why_no_clocks`."""
        return list(self._clocks_mhz)

    def lock_clock_mhz(self, mhz: int) -> None:
        call(f"locking {self.uuid} at {mhz} MHz", "nvmlDeviceSetGpuLockedClocks", self._handle, mhz, mhz)

    def reset_clocks(self) -> None:
        call(f"unlocking the clocks of {self.uuid}", "nvmlDeviceResetGpuLockedClocks", self._handle)

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns whether the GPU shows that it is still locked at `mhz`; None if it does not tell.

        NVML has no reading of locked clocks. A clock above the lock, or an idle GPU's clock below it, shows that the
        lock is gone. A clock exactly at the lock shows that it holds, unless idleness, power, heat, application clocks
        or the GPU's highest clock may be the reason.
        """
        seen = self.clock_seen()
        if seen.mhz > mhz + _SAME_MHZ:
            return False
        if seen.mhz < mhz - _SAME_MHZ:
            return False if seen.is_idle and not seen.held_back else None
        highest = not self._clocks_mhz or mhz > self._clocks_mhz[0] - _CLOCK_STEP_MHZ
        return None if highest or seen.is_idle or seen.held_back or self._is_application_clock(mhz) else True

    def _clock_mhz(self) -> int:
        return int(call("reading the clock", "nvmlDeviceGetClockInfo", self._handle, _GRAPHICS_CLOCK))

    def _is_application_clock(self, mhz: int) -> bool:
        try:
            name = "nvmlDeviceGetApplicationsClock"
            return (
                abs(int(call("reading the application clock", name, self._handle, _GRAPHICS_CLOCK)) - mhz) <= _SAME_MHZ
            )
        except DeviceError:
            return False

    def power_limit_range_w(self) -> tuple[float, float]:
        what, name = "reading the range of power limits", "nvmlDeviceGetPowerManagementLimitConstraints"
        lowest_mw, highest_mw = call(f"{what} of {self.uuid}", name, self._handle)
        return lowest_mw / 1000, highest_mw / 1000

    def power_limit_w(self) -> float:
        what, name = f"reading the power limit of {self.uuid}", "nvmlDeviceGetPowerManagementLimit"
        return float(call(what, name, self._handle)) / 1000

    def default_power_limit_w(self) -> float:
        what, name = f"reading the default power limit of {self.uuid}", "nvmlDeviceGetPowerManagementDefaultLimit"
        return float(call(what, name, self._handle)) / 1000

    def set_power_limit_w(self, limit_w: float) -> None:
        what = f"setting a power limit of {limit_w:g} W on {self.uuid}"
        call(what, "nvmlDeviceSetPowerManagementLimit", self._handle, round(limit_w * 1000))

    def _counter_j(self) -> float:
        return float(call("reading the energy counter", "nvmlDeviceGetTotalEnergyConsumption", self._handle)) / 1000

    def _power_w(self) -> float:
        return float(call("reading the power", "nvmlDeviceGetPowerUsage", self._handle)) / 1000

    def clock_seen(self) -> ClockSeen:
        mhz, reasons = self._clock_mhz(), self._reasons()
        held_back = ", ".join(text for bit, text in _THROTTLING if reasons & bit)
        return ClockSeen(mhz, held_back, bool(reasons & _IDLE), bool(reasons & _LIMITED))

    def other_setters(self) -> list[str]:
        shown = (
            ("profile", self._has_power_profile),
            ("smoothing", self._smooths_power),
            ("job", lambda: self._processes() > 1),
        )
        found = []
        for name, shows in shown:
            with suppress(DeviceError, AttributeError, LookupError):  # GPU, driver or package do not have it
                found += [name] if shows() else []
        return found

    def _has_power_profile(self) -> bool:
        profiles = pynvml().c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        name = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
        call("reading the power profiles", name, self._handle, byref(profiles))
        return any(profiles.enforcedProfilesMask.mask)

    def _smooths_power(self) -> bool:
        field = pynvml().NVML_FI_PWR_SMOOTHING_ENABLED
        (found,) = call("reading the power smoothing", "nvmlDeviceGetFieldValues", self._handle, [field])
        return not found.nvmlReturn and bool(found.value.uiVal)

    def _processes(self) -> int:
        return len(call("reading the GPU's processes", "nvmlDeviceGetComputeRunningProcesses", self._handle))

    def _reasons(self) -> int:
        what = "reading why clocks are held back"
        try:
            return int(call(what, "nvmlDeviceGetCurrentClocksEventReasons", self._handle))
        except NotOffered:  # the driver (before 535), or the package, is older than the name
            return int(call(what, "nvmlDeviceGetCurrentClocksThrottleReasons", self._handle))

    def settings(self) -> GpuSettings:
        """Returns clock and power limit; what the driver does not tell counts as being at its default.

        NVML does not tell locked clocks. A GPU without processes shows them: its clock does not fall to the idle clock.

        Raises:
            DeviceError: The driver tells neither clock nor power limit.
        """
        processes, mhz, limit_w, default_w = 0, 0, 0.0, 0.0
        problems = []
        try:
            processes, reasons = self._processes(), self._reasons()
            if not processes and (reasons & _CLOCKS_SET or not reasons & _IDLE):
                mhz = self._clock_mhz()
        except DeviceError as error:
            problems.append(error)
        try:
            limit_w, default_w = self.power_limit_w(), self.default_power_limit_w()
        except DeviceError as error:
            limit_w = default_w = 0.0
            problems.append(error)
        if len(problems) == 2:
            raise problems[0]
        return GpuSettings(mhz, limit_w, default_w, processes, lock_is_sure=False)

    def close(self) -> None:
        """Ends this object's use of NVML, once; locked clocks stay locked."""
        if self._open:
            self._open = False
            call("ending NVML", "nvmlShutdown")
