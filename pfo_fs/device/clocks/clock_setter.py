"""Sets the clock that is requested: chooses one that the GPU offers, waits after errors, and undoes it."""

import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress

from pfo_fs.device import shared_page
from pfo_fs.device.clocks.driver_calls import HostDriver
from pfo_fs.device.clocks.undo import Undo
from pfo_fs.device.gpu.driver_errors import Pauses
from pfo_fs.device.gpu.interface import CAP_ACTS_S, POWER_CAP, Gpu

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
"""After a clock could not be set, clocks stay at their default for a pause that grows from the first to the second."""
_LOOK_AFTER_NS = 1_000_000_000
"""The GPU is asked whether a reset has had its effect only after a second at the default: asking costs a call."""


class ClockSetter:
    """Keeps the GPU at the requested clock.

    When the driver refuses, this object resets the clocks and tries again after growing pauses, unless that cannot
    help; training goes on at the driver's default meanwhile. After a failed reset, no clock is set until the clocks are
    reset. When the clock process has got SIGTERM, this object resets the clocks and makes no further change.

    Args:
        clock_was_set: Called after each change with the time in ns, the clock in MHz (0: the driver's default), and how
            long the call waited for those of other GPUs, in ns.
        why_clocks_stay: Why clocks cannot be set; empty if they can.

    Attributes:
        target: The requested clock that is in force, in MHz; 0 for the driver's default.
        clock_mhz: The clock that the GPU was set to; differs from `target` if the GPU does not offer `target`, or if
            the driver does not reset the clock.
        controls: Whether this object still changes clocks.
        terminated: Whether the clock process has got SIGTERM; the next `apply` then resets the clocks.
    """

    def __init__(
        self,
        gpu: Gpu,
        words: memoryview,
        undo: Undo,
        clock_was_set: Callable[[int, int, int], None],
        *,
        why_clocks_stay: str,
        driver: HostDriver,
    ) -> None:
        self._driver = driver
        self._gpu = gpu
        self._words = words
        self._clock_was_set = clock_was_set
        self._supported = sorted(gpu.supported_clocks_mhz())
        self._pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._why_not = why_clocks_stay
        self._rests_ns = round(CAP_ACTS_S * 1e9) if gpu.clock_backend == POWER_CAP else 0
        self._rests_until_ns = 0
        self._said = ""
        self.target = 0
        self.clock_mhz = 0
        self.controls = not why_clocks_stay
        self.terminated = False
        self.undo = undo
        undo.in_force = self._in_force

    @property
    def message(self) -> str:
        """Why clocks are not set, or not reset; empty while all is well."""
        return self.undo.problem or self._why_not

    @property
    def not_before_ns(self) -> int:
        """The monotonic time in ns before which some clocks may not be set (`may_set`)."""
        due_ns = max(self._pauses.due_ns, self._rests_until_ns)
        return max(due_ns, self.undo.due_ns) if self.undo.owed else due_ns

    def may_set(self, mhz: int, now_ns: int) -> bool:
        """Returns whether a clock may be set now: none if a reset is owed, else the default; others after pauses."""
        if self.undo.owed or mhz == 0:
            return not self.undo.owed
        is_lower = self.clock_mhz == 0 or mhz < self.clock_mhz
        return now_ns >= max(self._pauses.due_ns, self._rests_until_ns if is_lower else 0)

    def apply(self, wanted: Callable[[], int]) -> None:
        """Sets the clock that is wanted unless it is in force.

        Args:
            wanted: Returns the clock in MHz, 0 for the driver's default; called again when this process may
                call the driver.
        """
        if self.terminated and self.controls:
            self._stop("the clock process got SIGTERM; clocks stay at their default")
            self.release()
        target = wanted()
        if not self.controls or target == self.target or not self.may_set(target, time.monotonic_ns()):
            return
        clock_mhz = self._offered(target)
        changes = clock_mhz != self.clock_mhz
        began_ns = time.monotonic_ns()
        try:
            if changes:
                with self._driver.access():
                    target = wanted()
                    if not self.may_set(target, time.monotonic_ns()):
                        return
                    clock_mhz = self._offered(target)
                    changes = clock_mhz != self.clock_mhz
                    if changes:
                        self._call(clock_mhz)
        except Exception as error:  # noqa: BLE001  after any error of a driver, clocks are reset and training goes on
            self.failed(error)
            return
        ended_ns = time.monotonic_ns()
        if changes:
            waited_ns = self._driver.waited_ns
            self._driver.called(ended_ns, ended_ns - began_ns - waited_ns, waited_ns)
            self._clock_was_set(ended_ns, clock_mhz, waited_ns)
            self._why_not, self._rests_until_ns = "", ended_ns + self._rests_ns
        self.target, self.clock_mhz = target, clock_mhz
        self._words[shared_page.CLOCK_MHZ] = clock_mhz

    def _call(self, clock_mhz: int) -> None:
        if clock_mhz:
            self.undo.will_set(clock_mhz, 0)
            self._gpu.lock_clock_mhz(clock_mhz)
        else:
            self._gpu.reset_clocks()
            self.undo.was_put_back(time.monotonic_ns(), _LOOK_AFTER_NS)

    def _offered(self, mhz: int) -> int:
        """Returns the lowest clock on offer that is not below `mhz`; the highest one if all are below; 0 for 0."""
        clocks = self._supported
        return clocks[min(bisect_left(clocks, mhz), len(clocks) - 1)] if mhz and clocks else mhz

    def go_on(self, now_ns: int) -> None:
        """Goes on with a reset that has failed, or looks whether it has had its effect."""
        if now_ns >= self.undo.due_ns:
            self.undo.go_on(now_ns)
            self._say(self.undo.problem)

    def release(self) -> None:
        """Resets the clocks now; if the driver refuses, `go_on` tries again.

        `clock_mhz` is the clock that was set until the driver has reset it.
        """
        self.target = 0
        self.undo.now()
        self._say(self.undo.problem)

    def release_for_good(self) -> None:
        """Does what `release` does, and sets no clock from now on; also resets a clock that the trainer has locked."""
        if self.controls and self.undo.value is None:
            self.undo.owe(0.0)
        self.controls = False
        self.release()

    def _in_force(self, mhz: float) -> None:
        """Tells the clock that a reset has left in force."""
        if self.clock_mhz != round(mhz):
            self.clock_mhz = round(mhz)
            self._clock_was_set(time.monotonic_ns(), self.clock_mhz, 0)
        self._words[shared_page.CLOCK_MHZ] = self.clock_mhz

    def failed(self, error: Exception) -> None:
        """Resets the clocks, and waits before the next attempt to set one; makes none if trying again cannot help."""
        self._pauses.failed(time.monotonic_ns(), error)
        self._why_not = f"{str(error) or repr(error)}; clocks are at their default, {self._pauses.text}"
        self._say(self._why_not)
        self.release()
        if self._pauses.for_good:
            self._stop(self._why_not)

    def _stop(self, why: str) -> None:
        self.controls = False
        self._why_not = why

    def _say(self, message: str) -> None:
        """Prints a problem unless the last one gave the same reason; `message` carries each to the helper."""
        kind = message.rpartition(": ")[2]
        if message and kind != self._said:
            self._said = kind
            with suppress(OSError, ValueError):
                sys.stderr.write(f"pfo-fs: {message}\n")
