"""The GPUs of one rank: sets their limit and measures windows of training."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pfo_fs.errors import DeviceError
from pfo_fs.power_limit.gpus import close_all, give_all_back, settle_all
from pfo_fs.power_limit.monitor import EnergyMonitor, Monitor, gpus_of


class GpuRange(NamedTuple):
    """One GPU and the range of limits that it accepts, in W; `position` counts the GPUs of a rank."""

    name: str
    lowest_w: float
    highest_w: float
    position: int


class WindowReport(NamedTuple):
    """Time and energy of a window on one rank; `problem` is the reason if there is no measurement, otherwise empty."""

    time_s: float
    energy_j: float
    problem: str


class RankGpus:
    """The GPUs of a rank, and the monitor that measures them.

    No method raises; the first problem is kept instead, because all ranks must reach their next exchange.

    Args:
        monitor: Measures time and energy, and names the GPUs; None for an `EnergyMonitor` of the current GPU.

    Attributes:
        monitor: The monitor.
        problem: Why limits are not set or measured; empty if they are.
    """

    def __init__(self, monitor: Monitor | None) -> None:
        self.monitor: Monitor = EnergyMonitor() if monitor is None else monitor
        self.problem = ""
        # A user who gives an `EnergyMonitor` closes it, and with it its GPUs.
        self._closes_gpus = monitor is None or not isinstance(monitor, EnergyMonitor)
        self._gpus = gpus_of(self.monitor)
        self._limit_w: int | None = None  # the limit that was requested last; None: the earlier limit
        self._open_window = ""

    def ranges(self) -> list[GpuRange]:
        """Returns the range of each GPU whose limit can be set."""
        found = []
        for position, gpu in enumerate(self._gpus):
            try:
                lowest_w, highest_w = gpu.range_w()
                found.append(GpuRange(gpu.name, lowest_w, highest_w, position))
            except DeviceError as error:
                self.note(str(error))
        return found

    def set_limit(self, limit_w: int) -> None:
        """Requests a limit, in W, unless it is the one that was requested last; does not wait."""
        if limit_w != self._limit_w:
            self._limit_w = limit_w
            for gpu in self._gpus:
                gpu.set_limit_w(limit_w)

    def restore(self) -> None:
        """Restores the limits that were in force before, and waits a few seconds for that."""
        self._limit_w = None
        give_all_back(self._gpus)

    def pause(self) -> None:
        """Does the same as `restore` if a limit was set."""
        if self._limit_w is not None:
            self.restore()

    def check(self) -> str:
        """Returns `problem`, updated from the answers of the clock processes. Takes some microseconds."""
        for gpu in self._gpus:
            self.note(gpu.check())
        return self.problem

    def note(self, problem: str) -> None:
        """Keeps the first problem."""
        self.problem = self.problem or problem

    def begin_window(self, limit_w: int) -> None:
        """Waits until the limit is in force, and begins to measure."""
        settle_all(self._gpus)
        # The same name as in Zeus's class, so that logs of its windows can be replayed to this one.
        self._open_window = f"__GlobalPowerLimitOptimizer_{limit_w}"
        try:
            self.monitor.begin_window(self._open_window)
        except Exception as error:  # noqa: BLE001  whatever a monitor raises, training goes on
            self.note(f"time and energy cannot be measured: {error}")

    def end_window(self) -> WindowReport:
        """Returns what was measured since `begin_window`."""
        time_s = energy_j = 0.0
        if not self.problem:
            try:
                measured = self.monitor.end_window(self._open_window)
                time_s, energy_j = float(measured.time), float(sum(measured.gpu_energy.values()))
            except Exception as error:  # noqa: BLE001
                self.note(f"time and energy cannot be measured: {error}")
        return WindowReport(time_s, energy_j, self.check())

    def cancel_window(self) -> None:
        """Drops what was measured since `begin_window`."""
        if not self.problem:
            with suppress(Exception):
                self.monitor.end_window(self._open_window, cancel=True)

    def close(self) -> None:
        """Restores the limits that were in force before, and closes the GPUs if the optimizer has opened them."""
        if self._closes_gpus:
            close_all(self._gpus)
        else:
            give_all_back(self._gpus)
