"""Part `readings`: what NVML's functions that only read return here, and what a call of each costs.

First before this process has used CUDA, then on a busy GPU. No function that sets anything is called.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.analysis import percentile

CALLS = 20
BUSY_CALLS = 12
IDLE_S = 3.0

Reading = Callable[[Any, Any], Any]

_CLOCKS = ("GRAPHICS", "SM", "MEM")
_CLOCK_IDS = ("CURRENT", "APP_CLOCK_TARGET", "APP_CLOCK_DEFAULT", "CUSTOMER_BOOST_MAX")
_OF_DEVICE = (
    "GetCurrentClocksEventReasons",
    "GetSupportedClocksEventReasons",
    "GetSupportedMemoryClocks",
    "GetCurrentClockFreqs",
    "GetPerformanceModes",
    "GetPerformanceState",
    "GetSupportedPerformanceStates",
    "GetAutoBoostedClocksEnabled",
    "GetAdaptiveClockInfoStatus",
    "GetGpcClkVfOffset",
    "GetGpcClkMinMaxVfOffset",
    "GetPowerManagementMode",
    "GetPowerManagementLimit",
    "GetPowerManagementDefaultLimit",
    "GetPowerManagementLimitConstraints",
    "GetEnforcedPowerLimit",
    "GetPowerSource",
    "GetPowerUsage",
    "GetTotalEnergyConsumption",
    "GetPersistenceMode",
    "GetComputeMode",
    "GetMigMode",
    "GetVirtualizationMode",
    "GetComputeRunningProcesses",
    "GetDynamicPstatesInfo",
)
_FIELDS = (
    "TOTAL_ENERGY_CONSUMPTION",
    "POWER_INSTANT",
    "POWER_AVERAGE",
    "POWER_CURRENT_LIMIT",
    "POWER_REQUESTED_LIMIT",
    "POWER_DEFAULT_LIMIT",
    "PERF_POLICY_POWER",
    "PERF_POLICY_THERMAL",
    "PERF_POLICY_APP_CLOCKS",
    "PERF_POLICY_BASE_CLOCKS",
    "CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
)
_VIOLATIONS = ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "RELIABILITY", "TOTAL_APP_CLOCKS", "TOTAL_BASE_CLOCKS")


def measure() -> Iterator[dict[str, Any]]:
    """Reads with an idle GPU that this process does not use yet, then under a matrix product."""
    import pynvml

    from pfo_fs.device.gpu.find_gpu import visible_uuids

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(visible_uuids()[0])
    yield {"what": "driver", "driver": pynvml.nvmlSystemGetDriverVersion(), "nvml": pynvml.nvmlSystemGetNVMLVersion()}
    yield _idle(pynvml, handle)
    for name, read in _readings(pynvml):
        yield {"what": f"idle: {name}", **_read(pynvml, lambda: read(pynvml, handle), CALLS)}  # noqa: B023
    yield from _busy(pynvml, handle)


def _idle(pynvml: Any, handle: Any) -> dict[str, Any]:
    began_s, began_mj = time.perf_counter(), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    time.sleep(IDLE_S)
    power_w = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - began_mj) / 1e3 / (time.perf_counter() - began_s)
    return {"what": "idle, before this process has used CUDA", "power_w": power_w}


def _readings(pynvml: Any) -> Iterator[tuple[str, Reading]]:
    """Returns the names of readings and the functions that make them; those that this release of pynvml has."""
    for clock in _CLOCKS:
        kind = getattr(pynvml, f"NVML_CLOCK_{clock}")
        for name in ("GetClockInfo", "GetMaxClockInfo", "GetMaxCustomerBoostClock"):
            yield from _one(pynvml, name, f" {clock}", kind)
        for name in ("GetApplicationsClock", "GetDefaultApplicationsClock"):
            yield from _one(pynvml, name, f" {clock}", kind)
        for which in _CLOCK_IDS:
            yield from _one(pynvml, "GetClock", f" {clock} {which}", kind, getattr(pynvml, f"NVML_CLOCK_ID_{which}"))
        yield from _one(pynvml, "GetMinMaxClockOfPState", f" {clock} P0", kind, 0)
    for name in _OF_DEVICE:
        yield from _one(pynvml, name, "")
    for violation in _VIOLATIONS:
        policy = getattr(pynvml, f"NVML_PERF_POLICY_{violation}", None)
        if policy is not None:
            yield from _one(pynvml, "GetViolationStatus", f" {violation}", policy)
    for field in _FIELDS:
        number = getattr(pynvml, f"NVML_FI_DEV_{field}", None)
        if number is not None:
            yield f"field {field}", lambda pynvml, handle, number=number: _field(pynvml, handle, number)  # type: ignore[misc]
    for sampled in ("TOTAL_POWER_SAMPLES", "PROCESSOR_CLK_SAMPLES"):
        kind = getattr(pynvml, f"NVML_{sampled}")
        yield f"samples {sampled}", lambda pynvml, handle, kind=kind: _samples(pynvml, handle, kind)  # type: ignore[misc]


def _one(pynvml: Any, name: str, more: str, *arguments: Any) -> Iterator[tuple[str, Reading]]:
    function = getattr(pynvml, f"nvmlDevice{name}", None)
    if function is not None:
        yield name + more, lambda pynvml, handle: function(handle, *arguments)


def _field(pynvml: Any, handle: Any, number: int) -> Any:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.ullVal)


def _samples(pynvml: Any, handle: Any, kind: int) -> dict[str, Any]:
    """Returns how many samples the driver keeps, how far they are apart, and the last ones."""
    _, found = pynvml.nvmlDeviceGetSamples(handle, kind, 0)
    times_us = [int(sample.timeStamp) for sample in found]
    apart_ms = sorted((late - early) / 1e3 for early, late in itertools.pairwise(times_us))
    return {
        "samples": len(found),
        "apart_ms": [apart_ms[i * (len(apart_ms) - 1) // 4] for i in range(5)] if apart_ms else [],
        "last": [int(sample.sampleValue.uiVal) for sample in list(found)[-8:]],
    }


def _read(pynvml: Any, read: Callable[[], Any], calls: int) -> dict[str, Any]:
    """Calls a function some times; returns its last value or error, and what a call took in us."""
    took_us: list[float] = []
    result: dict[str, Any] = {}
    for _ in range(calls):
        began_ns = time.perf_counter_ns()
        try:
            result = {"value": _short(read())}
        except pynvml.NVMLError as error:
            result = {"nvml_error": int(getattr(error, "value", -1)), "meaning": str(error)}
        took_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return {**result, "min_us": min(took_us), "median_us": percentile(took_us, 0.5), "max_us": max(took_us)}


def _short(value: Any) -> Any:
    if isinstance(value, int | float | str | dict):
        return value
    if isinstance(value, list | tuple) and all(isinstance(one, int | float | str) for one in value):
        return list(value)
    return str(value)[:600]


def _busy(pynvml: Any, handle: Any) -> Iterator[dict[str, Any]]:
    from benchmarks.gpu.cuda import Load, matmul

    load = Load(matmul(8192), chunk_ms=200)
    until_s = time.perf_counter() + 1.5
    while time.perf_counter() < until_s:
        load.keep_busy()
        time.sleep(0.001)
    for name, read in _readings(pynvml):
        load.keep_busy()
        yield {"what": f"busy: {name}", **_read(pynvml, lambda: read(pynvml, handle), BUSY_CALLS)}  # noqa: B023
    load.finish()
