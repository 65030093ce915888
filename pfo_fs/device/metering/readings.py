"""Leaves readings of energy and clock in the shared page, for the metrics of training."""

from __future__ import annotations

import time

from pfo_fs.device.shared_page import Reading, write_reading

_INT64 = (1 << 63) - 1
_BREAK_UJ = 10**15
"""A break sets the counter back by so much: more than a GPU consumes in weeks."""


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
        self._energy_uj = 0
        self._base_uj = 0

    def clock_set(self, t_ns: int, mhz: int) -> None:
        """Notes that the clock was set to `mhz` (0: the default) at `t_ns`."""
        self._add(t_ns)
        self._mhz = mhz or self._top_mhz

    def write(self, t_ns: int, energy_j: float) -> None:
        """Writes a reading of the energy counter."""
        self._energy_uj = round(energy_j * 1e6)
        self._write(t_ns)

    def break_off(self, t_ns: int) -> None:
        """Writes a reading below all earlier ones: what was consumed since the last reading is not known."""
        self._base_uj -= _BREAK_UJ
        self._write(t_ns)

    def _write(self, t_ns: int) -> None:
        self._add(t_ns)
        energy_uj = max(-_INT64, min(self._energy_uj + self._base_uj, _INT64))
        write_reading(self._words, Reading(t_ns, energy_uj, self._sum_mhz_ns // 1000))

    def _add(self, t_ns: int) -> None:
        self._sum_mhz_ns += self._mhz * max(0, t_ns - self._since_ns)
        self._since_ns = max(self._since_ns, t_ns)
