"""A `pynvml` without GPUs: three A100s, whose calls are recorded and can be made to fail."""

from __future__ import annotations

import ctypes
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

ALWAYS = 10**9
UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"]


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"code {self.value}"


class Mask(ctypes.Structure):
    _fields_ = [("mask", ctypes.c_uint * 8)]


class Profiles(ctypes.Structure):
    _fields_ = [("enforcedProfilesMask", Mask)]


class Fault(NamedTuple):
    """One function fails with one code (0: the package lacks the function), from its `first` call on, `count` times."""

    function: str
    code: int
    first: int = 1
    count: int = ALWAYS


class FakeNvml(ModuleType):
    """The part of pynvml that the package calls.

    Attributes:
        fails: The fault of a function, by its name, or the error code that it always raises.
        calls: How often each function was called.
        locked: (GPU, MHz) of each change of a clock, 0 for a reset; `lock_mhz` is in force.
    """

    NVMLError = NVMLError
    NVML_FI_PWR_SMOOTHING_ENABLED = 251

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.fails: dict[str, int | Fault] = {}
        self.calls: Counter[str] = Counter()
        self.names = ["NVIDIA A100"] * 3
        self.mig = False
        self.energy_mj = 5_000
        self.power_mw = 100_000
        self.reasons = 0x1  # idle
        self.locked: list[tuple[int, int]] = []
        self.lock_mhz = self.resets_without_effect = 0
        self.open = 0
        self.limit_mw = 400_000
        self.processes: list[Any] = []
        self.clock_mhz = 210
        self.profiles = self.smooths = 0
        self.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t = Profiles

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("nvml"):
            return found
        fault = self.fails.get(name)
        code, first, count = (fault, 1, ALWAYS) if isinstance(fault, int) else fault[1:] if fault else (None, 1, 0)
        if code == 0:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls[name] += 1
            if code is not None and first <= self.calls[name] < first + count:
                raise NVMLError(code)
            if not self.open and name != "nvmlInit":
                raise NVMLError(1)
            return found(*args)

        return call

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in UUIDS:
            raise NVMLError(6)
        return UUIDS.index(uuid)

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{handle + 0x3B:02X}:00.0".encode())

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return UUIDS[handle].encode()

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.names[handle].encode()

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        return (int(self.mig), 0)

    def nvmlDeviceGetSupportedMemoryClocks(self, handle: int) -> list[int]:
        return [405, 1593]

    def nvmlDeviceGetSupportedGraphicsClocks(self, handle: int, memory_mhz: int) -> list[int]:
        return {405: [420, 210], 1593: [210, 1410, 1395]}[memory_mhz]

    def nvmlDeviceSetGpuLockedClocks(self, handle: int, low: int, high: int) -> None:
        self.lock_mhz = high
        self.locked.append((handle, high))

    def nvmlDeviceResetGpuLockedClocks(self, handle: int) -> None:
        if self.resets_without_effect:
            self.resets_without_effect -= 1
            return
        self.lock_mhz = 0
        self.locked.append((handle, 0))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self.energy_mj

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self.power_mw

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: int) -> list[int]:
        return [100_000, 400_000]

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return self.limit_mw

    def nvmlDeviceSetPowerManagementLimit(self, handle: int, limit_mw: int) -> None:
        if not 100_000 <= limit_mw <= 400_000:
            raise NVMLError(2)
        self.limit_mw = limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:
        return 400_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return self.processes

    def nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(self, handle: int, profiles: Any) -> None:
        profiles._obj.enforcedProfilesMask.mask[0] = self.profiles

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> Any:
        assert fields == [self.NVML_FI_PWR_SMOOTHING_ENABLED]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.smooths))]

    NVML_CLOCK_GRAPHICS = 0

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        return self.clock_mhz
