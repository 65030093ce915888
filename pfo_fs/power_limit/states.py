"""What users and training see of the power-limit optimizer: its options, its states, and metrics.

States count the steps that begin. A level (`..._power_limit`, as in Zeus) is a power limit in W, or a clock in MHz, and
`unit` says which.

    Ready ─▶ Warmup ─▶ Profiling ─▶ Warmup for the next level ... ─▶ Done
      ▲────────┴──────────┘  an epoch's end: the same level again, an incomplete window is dropped

If levels cannot be set or measured, the state is `Off`: the optimizer leaves training alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.errors import ConfigError, InvalidArgument
from pfo_fs.guard import Guard, ZeusCallbacks
from pfo_fs.power_limit.measurements import KNOBS, Knob, KnobMeasurement, saving

_LEAST = {"wait_steps": 0, "warmup_steps": 0, "profile_steps": 1, "pl_step": 1, "clock_step": 1}


def check_numbers(given: Mapping[str, Any]) -> None:
    """Raises `InvalidArgument` where Zeus's class raises a ValueError: a number is too low."""
    for name, least in _LEAST.items():
        value = given.get(name, least)
        if isinstance(value, Real) and not float(value) >= least:
            raise InvalidArgument(f"{name} is {value}; give at least {least}")


def check_others(given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if another argument is not valid; an argument that is not given is valid."""
    for name in _LEAST:
        if not isinstance(given.get(name, 1), Integral):
            raise ConfigError(f"{name} is {given[name]!r}; give a whole number")
    if given["knob"] not in KNOBS:
        raise ConfigError(f"knob is {given['knob']!r}; it can be 'power_limit' or 'clock'")
    selector = given["optimum_selector"]
    if selector is not None and (isinstance(selector, type) or not hasattr(selector, "select")):
        raise ConfigError(f"optimum_selector is {selector!r}; give a selector, such as Energy()")


def too_short(epoch_steps: int, warmup_steps: int, window_steps: int) -> str:
    """Returns what to do if no level can be measured within an epoch of this many steps; else empty."""
    needed = 1 + warmup_steps + window_steps
    if epoch_steps >= needed:
        return ""
    return (
        f"an epoch of {epoch_steps} steps ends before a level is measured, which takes {needed} steps of one epoch (1 "
        f"+ {warmup_steps} to warm up + {window_steps} to measure), so nothing is measured. Give fewer "
        "warmup_steps and profile_steps, or call pause_measurement() instead of on_epoch_end()"
    )


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
        return self.current_power_limit


class Warmup(_AtLevel):
    """The level was set and takes effect; goes to `Profiling` when `steps` more steps have begun."""


class Profiling(_AtLevel):
    """Steps are measured; the measurement is complete when `steps` more steps have begun."""


@dataclass
class Done:
    optimal_power_limit: int
    unit: str = "W"

    @property
    def level(self) -> int:
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
        power_limits: The levels to choose from, highest first; empty if `Off` from the start.
    """

    def _show(self, state: State, guard: Guard) -> None:
        self.state, self.guard = state, guard
        self.measurements: Sequence[KnobMeasurement] = []
        self.power_limits: list[int] = []
        self.knob: Knob = "power_limit"
        self._metrics = StepMetrics([])

    @property
    def unit(self) -> str:
        return KNOBS[self.knob].unit

    @property
    def _name(self) -> str:
        return self.knob.replace("_", " ")

    def metrics(self) -> dict[str, float]:
        """Returns averages over the steps since the last call, for a logger; docs/reports.md has the keys.

        It reads memory only: no file, lock or driver. Energy and power are the sum over the GPUs of this process.
        """
        metrics: dict[str, float] = {}
        with self.guard:
            metrics = self._metrics.since_last()
        level = getattr(self.state, "level", None)
        if self.knob == "power_limit":
            metrics.pop("pfo_fs/clock_mhz", None)
            if level is not None:
                metrics["pfo_fs/power_limit_w"] = float(level)
        saved = saving(self.measurements, self.state.optimal_power_limit) if isinstance(self.state, Done) else None
        return metrics if saved is None else {**metrics, "pfo_fs/saving": saved}
