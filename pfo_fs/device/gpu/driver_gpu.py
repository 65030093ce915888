"""What GPUs behind a driver share: an energy counter that never goes back, and how setting clocks is tried."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from pfo_fs.errors import DeviceError, DevicePermissionError, NotOffered

_MOST_W = 5000.0
"""No GPU takes more than this: a counter that grows faster has jumped."""
_TICK_S = 1.5
"""The counter ticks at least this often."""
_STANDS_S = 5.0
"""A counter that has not changed for five seconds, while the GPU takes power, stands still."""
_FAILURES = 3
"""After three failed readings in turn, or if there is no counter that this process may read, power is read."""


class EnergyCounter:
    """A count of joules that never goes back.

    When the counter begins at 0 again, jumps, or cannot be read for a while, what was consumed then is not known:
    `breaks` is counted up, and the sum goes on from where it was.

    Args:
        counter_j: Reads the GPU's counter, in J.
        power_w: Reads the power in W, which is integrated where there is no counter.

    Attributes:
        breaks: How often it was not known what was consumed between two readings.
    """

    def __init__(self, counter_j: Callable[[], float], power_w: Callable[[], float]) -> None:
        self._counter_j, self._power_w = counter_j, power_w
        self._sum_j = 0.0
        self._raw_j: float | None = None
        self._read_s = self._changed_s = time.monotonic()
        self._power: tuple[float, float] | None = None  # monotonic s, W
        self._failures = 0
        self.breaks = 0
        self._why_power = ""  # why power is integrated
        try:
            self._sum_j = self._raw_j = self._counter_j()
        except (NotOffered, DevicePermissionError) as error:
            self._why_power = str(error)
        except DeviceError:
            pass  # it is asked again

    def read_j(self) -> float:
        """Returns the joules so far.

        Raises:
            DeviceError: Neither counter nor power can be read now.
        """
        now_s = time.monotonic()
        if not self._why_power:
            try:
                self._add_counter(self._counter_j(), now_s)
                self._failures = 0
            except DeviceError as error:
                self._failures += 1
                if self._failures < _FAILURES and not isinstance(error, NotOffered):
                    raise
                self._take_power(str(error))
        if self._why_power:
            self._add_power(now_s)
        return self._sum_j

    def _add_counter(self, raw_j: float, now_s: float) -> None:
        if self._raw_j is None:
            self.breaks += 1
        else:
            more_j = raw_j - self._raw_j
            if 0 <= more_j <= _MOST_W * (now_s - self._read_s + _TICK_S):
                self._sum_j += more_j
            else:
                self.breaks += 1
        if raw_j != self._raw_j:
            self._changed_s = now_s
        elif now_s - self._changed_s > _STANDS_S:
            self._changed_s = now_s
            if self._power_w() > 0:
                self._take_power("the energy counter stands still")
        self._raw_j, self._read_s = raw_j, now_s

    def _take_power(self, why: str) -> None:
        self._why_power = why
        self.breaks += 1

    def _add_power(self, now_s: float) -> None:
        power_w = self._power_w()
        if self._power is not None:
            if now_s - self._power[0] > _STANDS_S:
                self.breaks += 1  # what was consumed in between is not known
            else:
                self._sum_j += (now_s - self._power[0]) * (power_w + self._power[1]) / 2
        self._power = (now_s, power_w)


class DriverGpu(ABC):
    """What GPUs behind a driver share.

    Attributes:
        why_no_clocks: Why the clocks that the GPU offers are not known; empty if they are.
    """

    why_no_clocks = ""

    def __init__(self) -> None:
        self._energy = EnergyCounter(self._counter_j, self._power_w)

    @abstractmethod
    def _counter_j(self) -> float:
        """Reads the energy counter, in J."""

    @abstractmethod
    def _power_w(self) -> float:
        """Reads the power, in W."""

    @abstractmethod
    def reset_clocks(self) -> None:
        """As `Gpu.reset_clocks`."""

    def why_not(self) -> str:
        return ""

    def try_reset(self) -> str:
        """Resets the clocks, which needs the same permission as locking them; returns why that failed, or ''."""
        try:
            self.reset_clocks()
        except DeviceError as error:
            return str(error)
        return self.why_no_clocks

    def energy_j(self) -> float:
        return self._energy.read_j()

    @property
    def energy_breaks(self) -> int:
        return self._energy.breaks
