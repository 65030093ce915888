"""Leaves readings of energy and clock in the shared page, for the metrics of training."""

from __future__ import annotations

import time

from pfo_fs.device.shared_page import Reading, write_reading

_INT64 = (1 << 63) - 1


class Readings:
    """Adds the clock that is set up over time, and writes it beside each reading of the energy counter.

    Args:
        words: The page that is shared with training.
        top_mhz: The highest clock, in MHz, which the default clock counts as; 0 if clocks are not set.
    """

    def __init__(self, words: memoryview, top_mhz: int) -> None:
        self._words = words
        self._top_mhz = self._mhz = top_mhz
        self._since_ns = time.monotonic_ns()
        self._sum_mhz_ns = 0

    def clock_set(self, t_ns: int, mhz: int) -> None:
        """Notes that the clock was set to `mhz` (0: the default) at `t_ns`."""
        self._add(t_ns)
        self._mhz = mhz or self._top_mhz

    def write(self, t_ns: int, energy_j: float) -> None:
        """Writes a reading of the energy counter."""
        self._add(t_ns)
        write_reading(self._words, Reading(t_ns, min(round(energy_j * 1e6), _INT64), self._sum_mhz_ns // 1000))

    def _add(self, t_ns: int) -> None:
        self._sum_mhz_ns += self._mhz * max(0, t_ns - self._since_ns)
        self._since_ns = max(self._since_ns, t_ns)
