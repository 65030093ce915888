"""Sets the clock that is requested: chooses one that the GPU offers, limits how often it changes, and stops."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext, suppress

from pfo_fs.device import shared_page
from pfo_fs.device.gpu import Gpu
from pfo_fs.device.host_driver import HostDriver


class ClockSetter:
    """Keeps the GPU at the requested clock.

    When the driver refuses, or the clock process has got SIGTERM, this object resets the clocks and makes no further
    change; training goes on at the driver's default.

    Args:
        gpu: The GPU whose clock is set.
        words: The page that is shared with training.
        clock_was_set: Called with (time in ns, MHz) after each change; 0 MHz is the driver's default.
        min_dwell_ms: Least time between two changes of the clock, resets excepted.
        why_clocks_stay: Why clocks cannot be set; empty if they can.
        called: Called after each call of the driver with its duration, and how long it waited for other GPUs, in ns.
        driver: This process's place at the driver; None if calls need not wait for those of other GPUs.

    Attributes:
        target: The requested clock that is in force, in MHz; 0 for the driver's default.
        clock_mhz: The clock that the GPU was set to; differs from `target` if the GPU does not offer that.
        controls: Whether this object still changes clocks.
        message: Why clocks are not set; empty while they are.
        terminated: Whether the clock process has got SIGTERM; the next `apply` then resets the clocks.
        not_before_ns: The monotonic time before which the clock must not change again.
    """

    def __init__(
        self,
        gpu: Gpu,
        words: memoryview,
        clock_was_set: Callable[[int, int], None],
        *,
        min_dwell_ms: float,
        why_clocks_stay: str,
        called: Callable[[int, int], None] = lambda took_ns, waited_ns: None,
        driver: HostDriver | None = None,
    ) -> None:
        self._driver = driver
        self._called = called
        self._gpu = gpu
        self._words = words
        self._clock_was_set = clock_was_set
        self._supported = sorted(gpu.supported_clocks_mhz())
        self._clock_for: dict[int, int] = {0: 0}
        self._dwell_ns = round(min_dwell_ms * 1e6)
        self.target = 0
        self.clock_mhz = 0
        self.controls = not why_clocks_stay
        self.message = why_clocks_stay
        self.terminated = False
        self.not_before_ns = 0

    def apply(self, target: int, newest: Callable[[], int] | None = None) -> bool:
        """Sets a clock unless it is in force; returns whether the clock has changed.

        Args:
            target: The clock in MHz; 0 for the driver's default.
            newest: Returns the clock that is wanted when this process's turn at the driver has come.
        """
        words = self._words
        if not self.controls or (target == self.target and not self.terminated):
            return False
        if self.terminated:
            self.release()
            self._give_up("the clock process got SIGTERM; clocks stay at their default")
            return True
        if target and self._dwell_ns and time.monotonic_ns() < self.not_before_ns:
            return False
        clock_mhz = self._clock_of(target)
        changes = clock_mhz != self.clock_mhz
        began_ns = time.monotonic_ns()
        try:
            if changes:
                with self._driver.turn() if self._driver is not None else nullcontext():
                    if newest is not None:
                        target = newest()
                        clock_mhz = self._clock_of(target)
                    changes = clock_mhz != self.clock_mhz
                    if changes:
                        self._call(clock_mhz)
        except Exception as error:  # noqa: BLE001  after any error of a driver, clocks are reset and training goes on
            self.release()
            self._give_up(str(error) or repr(error))
            return True
        if changes:
            ended_ns = time.monotonic_ns()
            waited_ns = 0 if self._driver is None else self._driver.waited_ns
            self._called(ended_ns - began_ns - waited_ns, waited_ns)
            self._clock_was_set(ended_ns, clock_mhz)
        self.target, self.clock_mhz = target, clock_mhz
        words[shared_page.CLOCK_MHZ] = clock_mhz
        if self._dwell_ns:
            self.not_before_ns = time.monotonic_ns() + self._dwell_ns
        return changes

    def _call(self, clock_mhz: int) -> None:
        if clock_mhz:
            self._gpu.lock_clock_mhz(clock_mhz)
        else:
            self._gpu.reset_clocks()

    def _clock_of(self, target: int) -> int:
        """Returns the clock on offer that stands for a requested one."""
        clock_mhz = self._clock_for.get(target)
        if clock_mhz is None:
            clock_mhz = self._clock_for[target] = self._offered(target)
        return clock_mhz

    def _offered(self, mhz: int) -> int:
        """Returns the lowest clock on offer that is not below `mhz`; the highest one if all are below."""
        clocks = self._supported
        return clocks[min(bisect_left(clocks, mhz), len(clocks) - 1)] if clocks else mhz

    def release(self) -> None:
        """Resets the clocks; an error of the driver is ignored, since nothing else can be done about the clock."""
        if self.controls:
            with suppress(Exception):
                self._gpu.reset_clocks()
        if self.clock_mhz:
            self._clock_was_set(time.monotonic_ns(), 0)
        self.target = self.clock_mhz = self._words[shared_page.CLOCK_MHZ] = 0

    def release_for_good(self) -> None:
        """Resets the clocks and changes none from now on, even though the page still holds the last request."""
        self.release()
        self.controls = False

    def _give_up(self, message: str) -> None:
        """Makes no further change; prints the reason once, and `message` carries it to the helper."""
        self.controls = False
        self.message = message
        if not self.terminated:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"pfo-fs: {message}\n")
