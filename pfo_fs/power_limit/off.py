"""What a power-limit optimizer is while it sets nothing: before its start, after an error, and as a copy of another."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.errors import ConfigError, InvalidArgument
from pfo_fs.guard import Guard, ZeusCallbacks
from pfo_fs.power_limit.choosing import Chooser
from pfo_fs.power_limit.file_client import FileClient
from pfo_fs.power_limit.measurements import KNOBS, Knob, KnobMeasurement, saving
from pfo_fs.power_limit.rank_gpus import RankGpus
from pfo_fs.power_limit.selectors import OptimumSelector, ZeusCost
from pfo_fs.power_limit.states import Done, DriftWatch, Off, State

log = logging.getLogger("pfo_fs")

_LEAST = {"wait_steps": 0, "warmup_steps": 0, "profile_steps": 1, "pl_step": 1, "clock_step": 1}


class OffOptimizer(ZeusCallbacks):
    """All methods can be called, and do nothing."""

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


def check_numbers(given: Mapping[str, Any]) -> None:
    """Checks the arguments for which Zeus's class raises a ValueError, by name.

    Raises:
        InvalidArgument: A number is too low.
    """
    for name, least in _LEAST.items():
        value = given.get(name, least)
        if isinstance(value, Real) and not float(value) >= least:
            raise InvalidArgument(f"{name} is {value}; give at least {least}")


def check_others(given: Mapping[str, Any]) -> None:
    """Checks the other arguments, by name; what is not given is valid.

    Raises:
        ConfigError: An argument is not valid.
    """
    for name in _LEAST:
        if not isinstance(given.get(name, 1), Integral):
            raise ConfigError(f"{name} is {given[name]!r}; give a whole number")
    if given["knob"] not in KNOBS:
        raise ConfigError(f"knob is {given['knob']!r}; it can be 'power_limit' or 'clock'")
    drift, selector = given["reprofile_drift"], given["optimum_selector"]
    if drift is not None and not (isinstance(drift, Real) and 0 < float(drift) < math.inf):
        raise ConfigError(f"reprofile_drift is {drift!r}; 0.2 is for steps that take 20 % more or less time")
    if selector is not None and (isinstance(selector, type) or not hasattr(selector, "select")):
        raise ConfigError(f"optimum_selector is {selector!r}; give a selector, such as Energy()")
