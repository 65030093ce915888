"""What a power-limit optimizer is while it sets nothing: before its start, after an error, and as a copy of another."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.guard import Guard, InTraining
from pfo_fs.power_limit.choosing import Chooser
from pfo_fs.power_limit.file_client import FileClient
from pfo_fs.power_limit.measurements import KNOBS, Knob, KnobMeasurement, saving
from pfo_fs.power_limit.rank_gpus import RankGpus
from pfo_fs.power_limit.selectors import OptimumSelector, ZeusCost
from pfo_fs.power_limit.states import Done, DriftWatch, Off, State

log = logging.getLogger("pfo_fs")


class OffOptimizer(InTraining):
    """All methods can be called; those of Zeus's callbacks that this optimizer does not need do nothing."""

    _gpus: RankGpus

    def _start_as_nothing(self, reason: str = "a copy of another optimizer", strict: bool = False) -> None:
        self.state: State = Off(reason)
        self.measurements: Sequence[KnobMeasurement] = []
        self.errors: Mapping[int, tuple[float, float]] = {}
        self.power_limits: list[int] = []
        self.knob: Knob = "power_limit"
        self.unit = KNOBS[self.knob].unit
        self.guard = Guard(self._go_without, strict=strict, what="the power-limit optimizer")
        self.optimum_selector: OptimumSelector = ZeusCost(0.5)
        self._metrics = StepMetrics([])
        self.profile_path: str | None = None
        self._drift_watch: DriftWatch | None = None
        self._files = FileClient(None, None, "")
        self._chooser: Chooser | None = None  # on rank 0
        self._closed = True

    @abstractmethod
    def _go_without(self, error: Exception) -> None:
        """Leaves levels and other ranks, after an error."""

    @abstractmethod
    def pause_measurement(self) -> None:
        """Leaves out of what is measured all that runs until the next step begins."""

    @abstractmethod
    def resume_measurement(self) -> None:
        """Ends `pause_measurement`."""

    @abstractmethod
    def pause(self) -> None:
        """Restores the earlier levels until the next step begins."""

    @property
    def _name(self) -> str:
        return self.knob.replace("_", " ")

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call, for a logger; docs/reports.md has the keys.

        It reads memory only: no file, lock or driver. Energy and power are the sum over the GPUs of this process.
        """
        found: dict[str, float] = {}
        with self.guard:
            found = self._metrics.since_last()
        level = getattr(self.state, "level", None)
        if self.knob == "power_limit":
            found.pop("pfo_fs/clock_mhz", None)
            if level is not None:
                found["pfo_fs/power_limit_w"] = float(level)
        saved = saving(self.measurements, self.state.optimal_power_limit) if isinstance(self.state, Done) else None
        return found if saved is None else {**found, "pfo_fs/saving": saved}

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Leaves the block out of what is measured; for training loops in which steps are followed by hooks."""
        self.pause_measurement()
        try:
            yield
        finally:
            self.resume_measurement()

    def on_epoch_begin(self) -> None:
        """An epoch begins."""

    def on_step_end(self) -> None:
        """A step ends."""

    def on_evaluate(self, metric: float) -> None:
        """The model was evaluated."""

    def on_instruction_begin(self, name: str) -> None:
        """An instruction begins."""

    def on_instruction_end(self, name: str) -> None:
        """An instruction ends."""

    def on_train_end(self) -> None:
        """Restores the earlier levels until the next step begins."""
        self.pause()

    def _leave_alone(self, reason: str, *, warn: bool) -> None:
        if warn:
            what = "Clocks" if self.knob == "clock" else "Power limits"
            log.warning("%s: %s. %s are left alone, and training goes on", self._name, reason, what)
        self.state = Off(reason)
        self._gpus.restore()
        self._files.leave()
