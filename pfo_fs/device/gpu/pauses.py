"""When to try again what a driver has refused: soon at first, then ever more rarely, and never if it cannot help."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pfo_fs.errors import DeviceError, DevicePermissionError, GpuLost, NotOffered

T = TypeVar("T")

NEVER = (1 << 63) - 1
"""A time on the monotonic clock, in ns, that does not come."""


def passes(error: BaseException) -> bool:
    """Returns whether trying again soon may help."""
    return isinstance(error, DeviceError) and not isinstance(error, NotOffered | DevicePermissionError | GpuLost)


class Pauses:
    """Growing pauses between attempts; the kind of the error decides.

    An error that may pass: `first_s`, then twice as long each time, up to `longest_s`. A missing permission and a lost
    GPU: `longest_s` at once. What GPU, driver or package do not have: never again, unless `even_if_missing`.

    Args:
        first_s: The first pause.
        longest_s: The longest pause.
        even_if_missing: Whether every kind of error may pass.

    Attributes:
        failures: How often it has failed so far.
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
        """Notes that an attempt has failed."""
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
        """Whether trying again cannot help."""
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
        make: Makes a call of the driver.
        attempts: The most calls.
        first_s: The first pause; each further one is twice as long.
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
