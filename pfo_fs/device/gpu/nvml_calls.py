"""Calls of NVML, and what each of its errors means for this package. No other module knows NVML's error codes.

`pynvml` (the package nvidia-ml-py) is imported at the first call.
"""

from __future__ import annotations

import importlib
from typing import Any

from pfo_fs.errors import DeviceError, DevicePermissionError, GpuLost, NotOffered

_PERMISSION = (
    "this user may not do so through NVML. Setting GPU clocks and power limits takes root, or CAP_SYS_ADMIN "
    "(docker run --cap-add SYS_ADMIN); docs/clock-backends.md has other ways, such as zeusd. "
    "`nvidia-smi -acp 0` does not help: it permits application clocks only"
)

# NVML's error code -> (kind of error, its meaning). Any other code is a `DeviceError` with NVML's own text.
_ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    1: (DeviceError, "NVML is not initialized"),
    2: (DeviceError, "NVML says that the value is invalid"),
    3: (NotOffered, "this GPU does not support it"),
    4: (DevicePermissionError, _PERMISSION),
    6: (NotOffered, "this process sees no such GPU"),
    8: (GpuLost, "the GPU's external power cables are not attached"),
    9: (DeviceError, "the NVIDIA driver is not loaded"),
    10: (DeviceError, "the driver did not answer in time"),
    12: (NotOffered, "libnvidia-ml.so was not found; is the driver mounted into this container?"),
    13: (NotOffered, "the driver is too old for this"),
    15: (GpuLost, "the GPU has fallen off the bus or is otherwise inaccessible"),
    16: (GpuLost, "the GPU needs a reset"),
    17: (DevicePermissionError, "the operating system blocks access to the GPU"),
    18: (DeviceError, "library and driver are of different versions; reboot, or reload the driver"),
    19: (DeviceError, "another use of the GPU forbids this"),
    22: (DevicePermissionError, "this machine's virtualization does not permit it"),
    25: (NotOffered, "library and driver disagree about the form of the request"),
    26: (NotOffered, "this request is deprecated, and the driver does not answer it any more"),
    27: (DeviceError, "the driver is not ready"),
    999: (DeviceError, "the driver reports an unknown error"),
}


def pynvml() -> Any:
    """Returns the module.

    Raises:
        NotOffered: It is not installed.
    """
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise NotOffered("the package nvidia-ml-py is not installed") from None


def call(what: str, name: str, *args: Any) -> Any:
    """Calls NVML.

    Raises:
        NotOffered: GPU, driver or package do not have it.
        DevicePermissionError: This user may not do so.
        GpuLost: The GPU does not answer any more.
        DeviceError: Anything else; trying again may help.
    """
    module = pynvml()
    function = getattr(module, name, None)
    if function is None:
        raise NotOffered(
            f"{what}: the installed package pynvml ({getattr(module, '__file__', None) or 'built in'}) has no {name}: "
            f"it is older than pfo-fs needs; `pip uninstall pynvml`, then `pip install -U nvidia-ml-py`"
        )
    try:
        return function(*args)
    except module.NVMLError as error:
        code = int(getattr(error, "value", -1))
        kind, meaning = _ERRORS.get(code, (DeviceError, str(error)))
        raise kind(f"{what}: {meaning} (NVML error {code} of {name})") from None
    except Exception as error:  # noqa: BLE001  an old package over a new driver raises errors of Python's own
        raise DeviceError(f"{what}: {name} of the package pynvml failed with {error!r}") from None


def text_of(value: str | bytes) -> str:
    """Returns a text of NVML, which older packages return as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def mig_divides(handle: object) -> bool:
    """Returns whether MIG divides a GPU; False if the driver does not say."""
    try:
        return bool(call("reading the MIG mode", "nvmlDeviceGetMigMode", handle)[0])
    except DeviceError:
        return False
