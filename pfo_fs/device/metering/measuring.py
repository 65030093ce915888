"""The measuring half of the clock process: reads the energy counter and the marks, and reports what follows from them.

Setting clocks has priority: a reading is made only when the last one is old enough, and the arithmetic stops every few
marks to apply a new clock. After an error of the energy counter, or of measuring itself, clocks are still set, and the
next attempt follows after growing pauses.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pfo_fs.device import shared_page
from pfo_fs.device.clock_backends.power_cap import PowerCapGpu
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.clock_setter import ClockSetter
from pfo_fs.device.clocks.driver_calls import DriverCalls
from pfo_fs.device.clocks.undo import GpuUndo
from pfo_fs.device.gpu.driver_errors import Pauses
from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.device.metering.meter import StepMeter
from pfo_fs.device.metering.read_back import ReadBack
from pfo_fs.device.metering.reporter import Reporter
from pfo_fs.device.metering.step_metrics import Readings
from pfo_fs.device.shared_page import MarkReader, SharedPage
from pfo_fs.ipc.messages import ProgressReport, SwitchingReport, TimedStep

_LOOK_EVERY_NS = 100_000_000
"""How often marks and energy are read while training writes no marks of instructions."""
_READING_SHARE = 20
"""Readings that take t are at least 20 t apart: setting clocks must not queue behind a slow energy counter."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
"""After an error, nothing is measured for a pause, which grows from the first of these to the second."""
_NO_ENERGY_NS = 10_000_000_000
"""Without energy for ten seconds, results have times only."""


class Measuring:
    """Reads the energy counter and the marks whenever `next_look_ns` has come.

    Args:
        apply: Sets the clock that is wanted now; called between two pieces of arithmetic.
        switching: Returns how clocks are switched, for the report; called with True, it adds the latency of each clock.

    Attributes:
        held: Whether the GPU must keep default clocks, whatever training requests.
    """

    def __init__(
        self,
        gpu: Gpu,
        shared: SharedPage,
        options: ClockOptions,
        setter: ClockSetter,
        undo: GpuUndo,
        driver: DriverCalls,
        reporter: Reporter,
        apply: Callable[[], None],
        switching: Callable[[bool], SwitchingReport | None],
    ) -> None:
        top_mhz = max(gpu.supported_clocks_mhz(), default=0)
        self._words = words = shared.words
        self._meter = StepMeter(options.profile_steps, shared.name, options.profile_s, top_mhz)
        self._readings = Readings(words, top_mhz if setter.controls else 0)
        self._read_back = ReadBack(gpu, top_mhz)
        self._leaves_clocks = options.leave_clocks
        self._gpu, self._setter, self._undo, self._driver = gpu, setter, undo, driver
        self._reporter, self._apply, self._switching = reporter, apply, switching
        self._marks = MarkReader(words)
        self._pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._energy_pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._said: set[type[Exception]] = set()  # kinds of errors that were printed
        self._breaks = gpu.energy_breaks
        self._why_no_energy = ""
        self._last_energy_ns = time.monotonic_ns()  # the time of the last reading that succeeded
        self._reading_ns = 0
        self.next_look_ns = 0
        self.held = False

    def clock_was_set(self, t_ns: int, mhz: int, acts_ns: int) -> None:
        """Notes that the clock was set to `mhz` (0: the default) at a time, and when it acts."""
        self._meter.clock_acts(acts_ns, mhz)
        self._readings.clock_set(t_ns, mhz)
        self._read_back.clock_set(t_ns, mhz)

    def interrupted(self) -> None:
        """Drops the step whose marks are being read: this process was stopped meanwhile."""
        self._meter.lost()

    def poll(self, now_ns: int, *, everything: bool = False) -> None:
        """Measures and reports; after an error nothing is measured for a while, but clocks are still set."""
        try:
            if now_ns >= self._pauses.due_ns:
                self._measure(now_ns, everything)
        except Exception as error:  # noqa: BLE001  the clock process must go on to set clocks
            self._pauses.failed(now_ns, error)
            self._meter.lost()
            if type(error) not in self._said:
                self._said.add(type(error))
                with suppress(OSError, ValueError):
                    sys.stderr.write(
                        f"pfo-fs: measuring has failed ({self._pauses.text}); clocks are still set: {error!r}\n"
                    )
        with suppress(Exception):  # as above
            why = self._reporter.why_held()
            if why is not None:
                self.held = bool(why)
        self._meter.held = self.held or bool(self._read_back.overruled)
        pause_ns = self._meter.curve.pause_ns() if self._words[shared_page.MEASURING] else _LOOK_EVERY_NS
        self.next_look_ns = now_ns + max(pause_ns, _READING_SHARE * self._reading_ns, self._driver.read(now_ns))

    def finish(self) -> None:
        self.poll(time.monotonic_ns(), everything=True)

    def report(self, message: str = "", *, released: bool = False) -> None:
        """Reports the state of the GPU's clock and power limit after the trainer has ended.

        Args:
            released: Whether the clocks are reset, and stay so: then this is the last report.
        """
        with suppress(Exception):  # a reporter that fails must not keep the clocks from being reset
            self._reporter.progress(self._progress(message), now=True)
            if released:
                self._reporter.released()
                self._reporter.finish(0.5)
            else:
                self._reporter.send_waiting()

    def _progress(self, message: str = "", iteration_times: Sequence[TimedStep] = ()) -> ProgressReport:
        step, undo, mhz = self._meter.last_step, self._undo, self._setter.clock_mhz
        self._words[shared_page.UNDO_FAILURES] = undo.failures
        why_clocks_stay = "" if self._leaves_clocks else self._setter.message
        overruled = self._read_back.overruled
        return ProgressReport(
            step=-1 if step is None else step.step,
            number=-1 if step is None else step.number,
            iter_time=None if step is None else round(step.time_s, 6),
            iter_energy=round(step.energy_j, 4) if step is not None and step.energy_j > 0 else None,
            energy_j=round(self._meter.total_j, 4) or None,
            clock_mhz=mhz or None,
            message=message or undo.problem or why_clocks_stay or overruled or self._why_no_energy,
            iteration_times=[(number, schedule, round(span_s, 6)) for number, schedule, span_s in iteration_times],
            throttled=self._read_back.held_back,
            overruled=bool(overruled),
            switching=self._switching(False),
            undo_owed=undo.owed,
            undo_failures=undo.failures,
            held=self.held and not (mhz or undo.owed or undo.limit.value is not None),
        )

    def _measure(self, now_ns: int, everything: bool) -> None:
        self._read_energy(now_ns)
        self._read_marks(everything)
        self._read_clock(now_ns)
        pace = self._meter.pace
        if self._reporter.progress(self._progress("", pace)):
            pace.clear()
        self._reporter.send_waiting()

    def _read_energy(self, now_ns: int) -> None:
        """Adds a reading to the energy curve; after an error only time is measured until the next attempt."""
        pauses, curve = self._energy_pauses, self._meter.curve
        if now_ns < pauses.due_ns:
            return
        try:
            energy_j = self._gpu.energy_j()
        except Exception as error:  # noqa: BLE001  without energy, time is still measured
            if not self._why_no_energy:
                pauses.start_anew()
                curve.break_off()
                self._readings.break_off(now_ns)
            elif now_ns - self._last_energy_ns > _NO_ENERGY_NS:
                curve.clear()
            pauses.failed(now_ns, error)
            self._why_no_energy = f"no energy ({pauses.text}): {error}"
            return
        ended_ns = time.monotonic_ns()
        self._reading_ns, read_ns = ended_ns - now_ns, (now_ns + ended_ns) // 2
        if self._why_no_energy or self._gpu.energy_breaks != self._breaks:
            self._why_no_energy, self._breaks = "", self._gpu.energy_breaks
            curve.break_off()
            self._readings.break_off(read_ns)
        self._last_energy_ns = read_ns
        curve.add(read_ns, energy_j)
        self._readings.write(read_ns, energy_j)

    def _read_marks(self, everything: bool) -> None:
        marks = self._marks.read(everything=everything)
        if marks is None:
            self._meter.lost()
            return
        for measured in self._meter.take(marks, everything=everything):
            if measured is not None:
                if isinstance(self._gpu, PowerCapGpu):
                    self._gpu.learn(measured.powers)
                self._reporter.measured(measured, self._switching(True))
            self._apply()  # a new clock does not wait until all arithmetic is done
        self._words[shared_page.MEASURED_NUMBER] = self._meter.done_number

    def _read_clock(self, now_ns: int) -> None:
        step = self._meter.last_step
        with suppress(Exception):  # an old driver may not support it; slow steps show the same
            why = self._read_back.look(now_ns, 1.0 if step is None else step.time_s)
            if why is not None:
                self._setter.failed(why)
