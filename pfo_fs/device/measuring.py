"""The measuring half of the clock process: reads the energy counter and the marks, and reports what follows from them.

Setting clocks has priority: a reading is made only when the last one is old enough, the arithmetic stops every few
marks to apply a new clock, and after an error measuring stops but clocks are still set.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

from pfo_fs.device import shared_page
from pfo_fs.device.clock_setter import ClockSetter
from pfo_fs.device.gpu import Gpu
from pfo_fs.device.meter import StepMeter
from pfo_fs.device.readings import Readings
from pfo_fs.device.reporter import Reporter
from pfo_fs.device.shared_page import MarkReader
from pfo_fs.ipc.messages import SwitchingReport

_LOOK_EVERY_NS = 100_000_000
"""How often marks and energy are read while training writes no marks of instructions."""
_ASK_EVERY_NS = 2_000_000_000
"""How often the GPU is asked whether it is throttled."""
_READING_SHARE = 20
"""Readings that take t are at least 20 t apart: setting clocks must not queue behind a slow energy counter."""
_SOON_NS = 5_000_000
"""After a change of the clock, energy is read if the last reading is older than this."""
_MANY_MARKS = 2048
"""With more unread marks than this, the pause before the next reading is a tenth."""


class Measuring:
    """Reads the energy counter and the marks whenever `next_look_ns` has come.

    Args:
        gpu: The GPU whose energy is read.
        words: The page that is shared with training.
        meter: Turns marks and readings into times and energies.
        setter: Sets the clocks; knows which is in force and what is wrong.
        apply: Sets the clock that is wanted now; called between two pieces of arithmetic.
        switching: Returns how clocks are switched, for the report; with True, with the latency of each clock.
        reporter: Sends results and progress to the helper.
        readings: Leaves each reading of the energy counter to training.

    Attributes:
        next_look_ns: The monotonic time at which the next reading is due.
    """

    def __init__(
        self,
        gpu: Gpu,
        words: memoryview,
        meter: StepMeter,
        setter: ClockSetter,
        reporter: Reporter,
        apply: Callable[[], bool],
        switching: Callable[[bool], SwitchingReport | None],
        readings: Readings,
    ) -> None:
        self._switching = switching
        self._readings = readings
        self._apply = apply
        self._gpu = gpu
        self._words = words
        self._meter = meter
        self._setter = setter
        self._reporter = reporter
        self._marks = MarkReader(words)
        self._works = True
        self._why_no_energy = ""
        self._reading_ns = 0
        self._ask_at_ns = 0
        self._why_throttled = ""
        self.next_look_ns = 0

    def clock_changed(self) -> None:
        """Makes a reading due now: power changes with the clock, so the energy curve has a corner here."""
        if self._words[shared_page.MEASURING] and time.monotonic_ns() - self._meter.curve.last_ns() > _SOON_NS:
            self.next_look_ns = 0

    def poll(self, now_ns: int, *, everything: bool = False) -> None:
        """Measures and reports; after an error measuring stops, but clocks are still set.

        Args:
            now_ns: The monotonic time.
            everything: Read all marks and compute all steps, since training has stopped writing.
        """
        try:
            if self._works:
                self._measure(now_ns, everything)
        except Exception as error:  # noqa: BLE001  the clock process must go on to set clocks
            self._works = False
            with suppress(OSError, ValueError):
                sys.stderr.write(f"pfo-fs: measuring has failed and ends; clocks are still set: {error!r}\n")
        pause_ns = self._meter.curve.pause_ns() if self._words[shared_page.MEASURING] else _LOOK_EVERY_NS
        if self._marks.behind > _MANY_MARKS:
            pause_ns //= 10
        self.next_look_ns = now_ns + max(pause_ns, _READING_SHARE * self._reading_ns)

    def finish(self) -> None:
        """Measures the marks that training left, sends the result, and reports that the clocks are reset."""
        self.poll(time.monotonic_ns(), everything=True)
        if self._works:
            self._reporter.progress(self._meter.last_step, 0, self._message(), now=True)
            self._reporter.released()
            self._reporter.finish(0.5)

    def _message(self) -> str | None:
        return self._setter.message or self._why_no_energy or None

    def _measure(self, now_ns: int, everything: bool) -> None:
        self._read_energy(now_ns)
        self._read_marks(everything)
        self._reporter.progress(
            self._meter.last_step,
            self._setter.clock_mhz,
            self._message(),
            iteration_times=self._meter.pace,
            throttled=self._throttled(now_ns),
            switching=self._switching(False),
        )
        self._reporter.send_waiting()

    def _read_energy(self, now_ns: int) -> None:
        """Adds a reading to the energy curve; after an error energy is not read again, and only time is measured."""
        if self._why_no_energy:
            return
        try:
            energy_j = self._gpu.energy_j()
            self._reading_ns = time.monotonic_ns() - now_ns
            self._meter.curve.add(now_ns + self._reading_ns // 2, energy_j)
            self._readings.write(now_ns + self._reading_ns // 2, energy_j)
        except Exception as error:  # noqa: BLE001  without energy, time is still measured
            self._meter.curve.no_more()
            self._why_no_energy = f"no energy: {error}"

    def _read_marks(self, everything: bool) -> None:
        marks = self._marks.read(everything=everything)
        if marks is None:
            self._meter.lost()
            return
        for measured in self._meter.take(marks, everything=everything):
            if measured is not None:
                self._reporter.measured(measured, self._switching(True))
            self._apply()  # a new clock does not wait until all arithmetic is done
        self._words[shared_page.MEASURED_NUMBER] = self._meter.done_number

    def _throttled(self, now_ns: int) -> str:
        """Returns what holds the clocks back; asks the GPU every two seconds."""
        if now_ns >= self._ask_at_ns:
            self._ask_at_ns = now_ns + _ASK_EVERY_NS
            with suppress(Exception):  # an old driver may not support it; slow steps show the same
                self._why_throttled = self._gpu.throttled()
        return self._why_throttled
