"""What the power-limit optimizer makes of the steps of training: its states, what it shows of them, and drift.

States count the steps that begin. A level (`..._power_limit`, as in Zeus)
is a power limit in W, or a clock in MHz, and `unit` says which.

    Ready ─▶ Warmup ─▶ Profiling ─▶ Warmup for the next level ... ─▶ Done
      ▲────────┴──────────┘  an epoch's end: the same level again, an incomplete window is dropped

If levels cannot be set or measured, the state is `Off`: the optimizer leaves training alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.guard import Guard, ZeusCallbacks
from pfo_fs.power_limit.measurements import KNOBS, Knob, KnobMeasurement, saving


@dataclass
class Ready:
    """Goes to `Warmup` when `steps` more steps have begun."""

    next_power_limit: int
    steps: int
    unit: str = "W"


@dataclass
class _AtLevel:
    current_power_limit: int
    steps: int
    unit: str = "W"

    @property
    def level(self) -> int:
        """The level that is in force."""
        return self.current_power_limit


class Warmup(_AtLevel):
    """The level was set and takes effect; goes to `Profiling` when `steps` more steps have begun."""


class Profiling(_AtLevel):
    """Steps are measured; the measurement is complete when `steps` more steps have begun."""


@dataclass
class Done:
    """The best level is in force."""

    optimal_power_limit: int
    unit: str = "W"

    @property
    def level(self) -> int:
        """The level that is in force."""
        return self.optimal_power_limit


@dataclass
class Off:
    """Levels are left alone; `reason` is the reason, as text for the user."""

    reason: str


State = Ready | Warmup | Profiling | Done | Off


class ShownOptimizer(ZeusCallbacks):
    """What users and loggers see of the optimizer.

    Attributes:
        state: `Ready`, `Warmup`, `Profiling`, `Done` or `Off`.
        measurements: The measurements so far.
        errors: Relative standard errors of time and energy of each level beside the others, where steps have loads.
        power_limits: The levels to choose from, highest first; empty if `Off` from the start.
        knob: What is set.
    """

    def _show(self, state: State, guard: Guard) -> None:
        self.state, self.guard = state, guard
        self.measurements: Sequence[KnobMeasurement] = []
        self.errors: Mapping[int, tuple[float, float]] = {}
        self.power_limits: list[int] = []
        self.knob: Knob = "power_limit"
        self._metrics = StepMetrics([])

    @abstractmethod
    def pause(self) -> None:
        """Restores the earlier levels until the next step begins."""

    @abstractmethod
    def pause_measurement(self) -> None:
        """Leaves out of what is measured all that runs until the next step begins."""

    @abstractmethod
    def resume_measurement(self) -> None:
        """Ends `pause_measurement`."""

    @property
    def unit(self) -> str:
        """The unit of a level: `W` or `MHz`."""
        return KNOBS[self.knob].unit

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


class DriftWatch:
    """Compares the median step time of each window with that of the first window.

    An evaluation or a checkpoint between two steps hardly changes a median. Two windows in a row must differ.

    Args:
        threshold: A median may differ by this share, 0.1 for 10 %.
        left_out_steps: Number of steps that are left out at the start.
        window_steps: Number of steps in a window.
    """

    def __init__(self, threshold: float, left_out_steps: int, window_steps: int) -> None:
        self._threshold = threshold
        self._left_out = left_out_steps + 1
        self._window_steps = window_steps
        self._last_s: float | None = None
        self._times_s: list[float] = []
        self._reference_s: float | None = None
        self._off = 0

    def step_begins(self, now_s: float) -> float | None:
        """Notes the begin of a step; if that completes a window, returns its relative difference, else None."""
        last_s, self._last_s = self._last_s, now_s
        if self._left_out:
            self._left_out -= 1
            return None
        if last_s is not None:
            self._times_s.append(now_s - last_s)
        if len(self._times_s) < self._window_steps:
            return None
        middle_s = median(self._times_s)
        self._times_s.clear()
        if self._reference_s is None:
            self._reference_s = middle_s
        return abs(middle_s / self._reference_s - 1) if self._reference_s > 0 else 0.0

    def has_drifted(self, off: float) -> bool:
        """Whether the last two windows differed by more than the threshold; `off` is the largest of all ranks."""
        self._off = self._off + 1 if off > self._threshold else 0
        return self._off >= 2
