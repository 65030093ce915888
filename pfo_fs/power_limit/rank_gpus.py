"""The GPUs of one rank: sets their power limit or clock, and measures windows of training."""

import logging
import time
from contextlib import suppress
from typing import NamedTuple

from pfo_fs.device.gpu.driver_errors import Pauses, passes
from pfo_fs.guard import reason_of
from pfo_fs.power_limit.gpus import Levels, close_all, settle_all
from pfo_fs.power_limit.measurements import Knob
from pfo_fs.power_limit.monitor import EnergyMonitor, Monitor, gpus_of

log = logging.getLogger("pfo_fs")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""A level that could not be set is tried again after a pause, which grows from 1 s to 60 s."""
_SWITCHED_OFF = "the job was switched off"


class GpuRange(NamedTuple):
    """One GPU and the levels that it accepts; `position` counts the GPUs of a rank."""

    name: str
    levels: Levels
    position: int


class WindowReport(NamedTuple):
    """Time and energy of a window on one rank; `problem`: why no window is measured; `dropped`: why not this one."""

    time_s: float
    energy_j: float
    problem: str
    dropped: str = ""


class RankGpus:
    """The GPUs of a rank, and the monitor that measures them: if None, an `EnergyMonitor` of the current GPU.

    No method raises; the first problem is kept instead, because all ranks must reach their next exchange.

    Attributes:
        problem: Why levels are not set or measured; empty if they are.
    """

    def __init__(self, monitor: Monitor | None, knob: Knob = "power_limit") -> None:
        self.monitor: Monitor = EnergyMonitor(knob=knob) if monitor is None else monitor
        self.problem = ""
        self.gpus = gpus_of(self.monitor, knob)
        # A user who gives an `EnergyMonitor` closes it, and with it its GPUs.
        self._closes_gpus = not (isinstance(monitor, EnergyMonitor) and self.gpus is monitor.gpus)
        self._level: int | None = None  # requested last; None: the earlier one; -1: it failed, on one GPU at least
        self._held = (0.0, 0.0)  # time and energy of the window before it was interrupted
        self._window = ""
        self._is_open = False
        self._dropped = ""
        self._troubled = False  # the level that was requested last could not be set
        self._pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._is_off = False
        self._wanted: int | None = None

    def ranges(self) -> list[GpuRange]:
        """Returns the levels of each GPU on which levels can be set."""
        ranges = []
        for position, gpu in enumerate(self.gpus):
            try:
                ranges.append(GpuRange(gpu.name, gpu.bounds(), position))
            except Exception as error:  # noqa: BLE001  the other ranks must hear of it
                self.note(reason_of(error))
        return ranges

    def set_level(self, level: int) -> None:
        """Requests a level, unless the last request was for this level; does not wait.

        A level that could not be set is requested again after growing pauses.
        """
        self._wanted = level
        self._follow()

    def hold(self, off: bool) -> None:
        """Requests the earlier levels while the job is switched off, and the wanted level after that."""
        if off != self._is_off:
            self._is_off, self._dropped, self._troubled = off, _SWITCHED_OFF, False  # without a pause
            self._follow()

    def _follow(self) -> None:
        level = None if self._is_off else self._wanted
        if level == self._level or (self._troubled and time.monotonic_ns() < self._pauses.due_ns):
            return
        self._level, self._troubled = level, False
        for gpu in self.gpus:
            if level is None:
                gpu.restore()
            else:
                gpu.set_level(level)

    def restore(self) -> None:
        """Restores the levels that were in force before, and waits a few seconds for that."""
        self._level, self._wanted, self._troubled = None, None, False
        for gpu in self.gpus:
            gpu.restore()
        settle_all(self.gpus)

    def pause(self) -> None:
        """Does the same as `restore` if a level was set."""
        if self._level is not None:
            self.restore()

    def check(self) -> str:
        """Returns `problem`, updated from the answers of the clock processes. Takes some microseconds."""
        for gpu in self.gpus:
            self.note(gpu.check())
            if gpu.trouble:
                self._dropped, gpu.trouble = gpu.trouble, ""
                self._level, self._troubled = -1, True
                self._pauses.failed(time.monotonic_ns())
                log.warning("%s: %s; %s", gpu.name, self._dropped, self._pauses.text)
        return self.problem

    def note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def begin_window(self, level: int) -> None:
        """Waits until the level is in force, and begins to measure."""
        self._troubled = False  # so that `set_level` does not wait for the pause
        self.set_level(level)
        self._dropped = _SWITCHED_OFF if self._is_off else ""
        settle_all(self.gpus)
        self.check()
        # The same name as in Zeus's class, so that logs of that class's windows can be replayed to this class.
        self._window = f"__GlobalPowerLimitOptimizer_{level}"
        self._held = (0.0, 0.0)
        self.resume_window()

    def resume_window(self) -> None:
        """Measures again after `interrupt_window`."""
        if self._is_open or self._dropped or self.problem:
            return
        try:
            self.monitor.begin_window(self._window)
            self._is_open = True
        except Exception as error:  # noqa: BLE001  whatever a monitor raises, training goes on
            self._failed(error)

    def interrupt_window(self) -> None:
        """Interrupts the open window until `resume_window`; a second call does nothing."""
        if self.problem or self._dropped:
            self.cancel_window()
        if not self._is_open:
            return
        self._is_open = False
        try:
            measured = self.monitor.end_window(self._window)
            time_s, energy_j = float(measured.time), float(sum(measured.gpu_energy.values()))
        except Exception as error:  # noqa: BLE001
            self._failed(error)
        else:
            self._held = (self._held[0] + time_s, self._held[1] + energy_j)

    def end_window(self) -> WindowReport:
        self.interrupt_window()
        problem = self.check()
        return WindowReport(*self._held, problem, self._dropped)

    def _failed(self, error: Exception) -> None:
        if passes(error):
            self._dropped = str(error)
        else:
            self.note(f"time and energy cannot be measured: {error}")

    def cancel_window(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(Exception):
                self.monitor.end_window(self._window, cancel=True)

    def leave(self) -> None:
        """Lets the earlier levels be restored; does not wait."""
        for gpu in self.gpus:
            with suppress(Exception):
                (gpu.leave if self._closes_gpus else gpu.restore)()

    def close(self) -> None:
        """Restores the levels that were in force before, and closes the GPUs if the optimizer has opened them."""
        if self._closes_gpus:
            close_all(self.gpus)
        else:
            self.restore()
