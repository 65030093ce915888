"""The energy of an NVIDIA GPU: its counter, or the integral of its power where the counter cannot be used."""

from __future__ import annotations

import time

from pfo_fs.device.gpu.nvml_calls import call
from pfo_fs.errors import DeviceError, GpuLost, NotOffered

_MOST_W = 5000.0
"""No GPU takes more than this: a counter that grows faster has jumped."""
_TICK_S = 1.5
"""The counter ticks at least this often."""
_STANDS_S = 5.0
"""A counter that has not changed for five seconds, while the GPU takes power, stands still."""
_FAILURES = 3
"""After three failed readings in turn, power is read in place of the counter."""


class EnergyCounter:
    """Joules that never go back.

    When the counter begins at 0 again, jumps, or cannot be read for a while, what was consumed then is not known:
    `breaks` is counted up, and the sum goes on from where it was.

    Attributes:
        breaks: How often it was not known what was consumed between two readings.
        why_power: Why power is integrated; empty while the counter is used.
    """

    def __init__(self, handle: object) -> None:
        self._handle = handle
        self._sum_j = 0.0
        self._raw_j: float | None = None
        self._read_s = self._changed_s = time.monotonic()
        self._power: tuple[float, float] | None = None  # monotonic s, W
        self._failures = 0
        self.breaks = 0
        self.why_power = ""
        try:
            self._sum_j = self._raw_j = self._counter_j()
        except GpuLost:
            pass  # power could not be read either; both are asked again
        except DeviceError as error:
            self.why_power = str(error)

    def read_j(self) -> float:
        """Returns the joules so far.

        Raises:
            DeviceError: Neither counter nor power can be read now.
        """
        now_s = time.monotonic()
        if not self.why_power:
            try:
                self._add_counter(self._counter_j(), now_s)
            except DeviceError as error:
                self._failures += 1
                if self._failures < _FAILURES and not isinstance(error, NotOffered):
                    raise
                self._take_power(str(error))
            else:
                self._failures = 0
                return self._sum_j
        self._add_power(now_s)
        return self._sum_j

    def _counter_j(self) -> float:
        energy_mj = call("reading the energy counter", "nvmlDeviceGetTotalEnergyConsumption", self._handle)
        return float(energy_mj) / 1000

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
        self.why_power = why
        self.breaks += 1

    def _add_power(self, now_s: float) -> None:
        power_w = self._power_w()
        if self._power is not None:
            if now_s - self._power[0] > _STANDS_S:
                self.breaks += 1  # what was consumed in between is not known
            else:
                self._sum_j += (now_s - self._power[0]) * (power_w + self._power[1]) / 2
        self._power = (now_s, power_w)

    def _power_w(self) -> float:
        return float(call("reading the power", "nvmlDeviceGetPowerUsage", self._handle)) / 1000
