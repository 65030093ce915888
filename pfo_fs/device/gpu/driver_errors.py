"""Errors of a GPU's driver: what each of NVML's means for this package, and when to try again.

No other module knows NVML's error codes. `pynvml` (the package nvidia-ml-py) is imported at the first call.
"""

import importlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from pfo_fs.errors import DeviceError, DevicePermissionError, GpuLost, NotOffered

_PERMISSION = (
    "this user may not do so through NVML. Setting GPU clocks and power limits takes root, or CAP_SYS_ADMIN "
    "(docker run --cap-add SYS_ADMIN); docs/clock-backends.md has other ways, such as zeusd. "
    "`nvidia-smi -acp 0` does not help: it permits application clocks only"
)

# NVML's error code -> (kind of error, its meaning). Any other code is a `DeviceError` with NVML's own text.
_ERRORS: dict[int, tuple[type[DeviceError], str]] = {
    3: (NotOffered, "this GPU does not support it"),
    4: (DevicePermissionError, _PERMISSION),
    6: (NotOffered, "this process sees no such GPU"),
    8: (GpuLost, "the GPU's external power cables are not attached"),
    9: (DeviceError, "the NVIDIA driver is not loaded"),
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
}


def pynvml() -> ModuleType:
    """Returns the module.

    Raises:
        NotOffered: It is not installed.
    """
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise NotOffered("the package nvidia-ml-py is not installed") from None


def call(what: str, name: str, *args: object) -> Any:
    """Calls NVML.

    Raises:
        NotOffered: GPU, driver or package do not have the function.
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


T = TypeVar("T")

NEVER = (1 << 63) - 1
"""A time on the monotonic clock, in ns, that does not come."""


def passes(error: BaseException) -> bool:
    """Returns whether trying again soon may help."""
    return isinstance(error, DeviceError) and not isinstance(error, NotOffered | DevicePermissionError | GpuLost)


class Pauses:
    """Growing pauses between attempts; the kind of the error decides.

    After an error that may pass: `first_s`, then twice as long each time, up to `longest_s`. After a missing permission
    or a lost GPU: `longest_s` at once. If a feature is missing: never, unless `even_if_missing`.

    Args:
        even_if_missing: Whether every kind of error counts as one that may pass.

    Attributes:
        due_ns: The monotonic time of the next attempt; 0 at first.
    """

    def __init__(self, first_s: float, longest_s: float, *, even_if_missing: bool = False) -> None:
        self._first_ns, self._longest_ns = round(first_s * 1e9), round(longest_s * 1e9)
        self._even_if_missing = even_if_missing
        self._pause_ns = 0
        self._failed_ns = 0
        self.failures = 0
        self.due_ns = 0

    def failed(self, now_ns: int, error: BaseException | None = None) -> None:
        kind = DeviceError if error is None or self._even_if_missing else type(error)
        self.failures += 1
        if issubclass(kind, NotOffered):
            self.due_ns = NEVER
            return
        if now_ns - self._failed_ns > 2 * self._longest_ns:
            self._pause_ns = 0  # it has worked for long: the pauses begin anew
        self._failed_ns = now_ns
        rarely = issubclass(kind, (DevicePermissionError, GpuLost))
        self._pause_ns = self._longest_ns if rarely else min(max(self._first_ns, 2 * self._pause_ns), self._longest_ns)
        self.due_ns = now_ns + self._pause_ns

    @property
    def for_good(self) -> bool:
        return self.due_ns == NEVER

    @property
    def text(self) -> str:
        """When the next attempt comes, for people."""
        return "it is not tried again" if self.for_good else f"tried again in {self._pause_ns / 1e9:g} s"

    def start_anew(self) -> None:
        """Makes an attempt due now, with short pauses after it."""
        self._pause_ns = self.due_ns = 0


def patiently(make: Callable[[], T], *, attempts: int = 5, first_s: float = 0.05, within_s: float = 2.0) -> T:
    """Returns what `make` returns; after an error that may pass, it is called again after short, growing pauses.

    Args:
        within_s: No call begins after this time, since calls that hang take seconds.

    Raises:
        DeviceError: The last error; at once, if it is one that does not pass.
    """
    began_s = time.monotonic()
    for attempt in range(attempts):
        try:
            return make()
        except DeviceError as error:
            pause_s = first_s * 2**attempt
            if not passes(error) or attempt == attempts - 1 or time.monotonic() + pause_s - began_s > within_s:
                raise
            time.sleep(pause_s)
    raise AssertionError("not reached")
