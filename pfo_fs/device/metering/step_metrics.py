"""Readings of energy and clock in the shared page: the clock process writes them, training averages them over steps."""

import time
from collections.abc import Sequence

from pfo_fs.device.shared_page import UNDO_FAILURES, Reading, newest_reading, write_change, write_reading

_OLD_NS = 5_000_000_000
_AT_TOP = 0.995
"""An average clock of at least this share of the highest one counts as the highest."""
_INT64 = (1 << 63) - 1
_BREAK_UJ = 10**15
"""A break sets the counter back by this: more than a GPU consumes in weeks."""


class Readings:
    """The clock process's side: writes each reading of the energy counter, and the sum of the clock over time.

    Args:
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
        self._add(t_ns)
        self._mhz = mhz or self._top_mhz
        write_change(self._words, t_ns, mhz)

    def write(self, t_ns: int, energy_j: float) -> None:
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


class StepMetrics:
    """Training's side: counts steps, and averages energy, power and clock over the steps since the last `since_last`.

    The clock process reads the energy counter ten times a second, so averages over short intervals are rough. If no
    reading has come since the last call, power and clock are those of the call before. If the counter could not be
    read, they are not known.

    Args:
        pages: The page of each GPU of this process; its words are only read.
    """

    def __init__(self, pages: Sequence[memoryview]) -> None:
        self._pages = pages
        self._steps = 0
        self._first_ns = self._last_ns = 0  # begins of the first and the last step since the last call
        self._paused_ns = 0
        self._pause_began_ns: int | None = None
        self._from = [newest_reading(words) for words in pages]
        self._sums = [Reading(0, 0, 0)] * len(pages)
        self._broken = [False] * len(pages)
        self._known: dict[str, float] = {}
        self._top_j: float | None = None

    def step_begins(self) -> None:
        self._last_ns = time.monotonic_ns()
        if self._first_ns == 0:
            self._first_ns = self._last_ns
        else:
            self._steps += 1

    def pause(self) -> None:
        """Leaves out what runs until `resume`."""
        if self._pause_began_ns is None:
            self._pause_began_ns = time.monotonic_ns()
            self._add_readings()

    def resume(self) -> None:
        """Ends `pause`; does nothing without it."""
        if self._pause_began_ns is not None:
            self._paused_ns += time.monotonic_ns() - self._pause_began_ns
            self._pause_began_ns = None
            self._from = [newest_reading(words) for words in self._pages]

    def since_last(self, top_mhz: int | None = None) -> dict[str, float]:
        """Returns the averages since the last call; a value that is not known has no key.

        Args:
            top_mhz: The GPU's highest clock. If it is given, `saving` compares the energy of a step with that of this
                run's last steps at the highest clock.
        """
        known = self._known
        if self._pause_began_ns is None:
            self._add_readings()
        if self._steps:
            lasted_ns = max(0, self._last_ns - self._first_ns - self._paused_ns)
            known["pfo_fs/step_time_s"] = lasted_ns / 1e9 / self._steps
            self._steps, self._first_ns, self._paused_ns = 0, self._last_ns, 0
        by_gpu = [total for total in self._sums if total.time_ns > 0]
        if any(self._broken) or self._is_old():
            known |= {"pfo_fs/power_w": 0.0, "pfo_fs/clock_mhz": 0.0}
        elif by_gpu:
            known["pfo_fs/power_w"] = sum(total.energy_uj * 1e3 / total.time_ns for total in by_gpu)
            integral = sum(total.clock_mhz_us for total in by_gpu)
            known["pfo_fs/clock_mhz"] = integral * 1e3 / sum(total.time_ns for total in by_gpu)
        if by_gpu:
            self._sums = [Reading(0, 0, 0)] * len(self._pages)
        self._broken = [False] * len(self._pages)
        known["pfo_fs/undo_failures"] = float(sum(words[UNDO_FAILURES] for words in self._pages))
        found = {name: value for name, value in known.items() if value or name == "pfo_fs/step_time_s"}
        if "pfo_fs/power_w" not in found or not known.get("pfo_fs/step_time_s"):
            return found
        energy_j = found["pfo_fs/energy_j"] = found["pfo_fs/power_w"] * found["pfo_fs/step_time_s"]
        if top_mhz is not None and known["pfo_fs/clock_mhz"]:
            if known["pfo_fs/clock_mhz"] >= _AT_TOP * top_mhz:
                self._top_j = energy_j
            if self._top_j is not None:
                found["pfo_fs/saving"] = 1 - energy_j / self._top_j
        return found

    def _add_readings(self) -> None:
        now = [newest_reading(words) for words in self._pages]
        for place, (before, after) in enumerate(zip(self._from, now, strict=True)):
            if before is not None and after is not None and after.time_ns > before.time_ns:
                if after.energy_uj < before.energy_uj:
                    self._broken[place] = True
                else:
                    self._sums[place] = self._sums[place].plus(after, before)
        self._from = now

    def _is_old(self) -> bool:
        """Whether a GPU has had no reading for so long that the last one says nothing about now."""
        return any(one is not None and time.monotonic_ns() - one.time_ns > _OLD_NS for one in self._from)
