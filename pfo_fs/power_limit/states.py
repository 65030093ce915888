"""What the power-limit optimizer makes of the steps of training: its states, epochs that are too short, and drift.

States count the steps that begin. A level (`..._power_limit`, as in Zeus)
is a power limit in W, or a clock in MHz, and `unit` says which.

    Ready ─▶ Warmup ─▶ Profiling ─▶ Warmup for the next level ... ─▶ Done
      ▲────────┴──────────┘  an epoch's end: the same level again, an incomplete window is dropped

If levels cannot be set or measured, the state is `Off`: the optimizer leaves training alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


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


def too_short(epoch_steps: int, warmup_steps: int, window_steps: int) -> str:
    """Returns what to do if no level can be measured within an epoch of this many steps; empty if one can."""
    needed = 1 + warmup_steps + window_steps
    if epoch_steps >= needed:
        return ""
    return (
        f"an epoch of {epoch_steps} steps ends before a level is measured, which takes {needed} steps of one epoch (1 "
        f"+ {warmup_steps} to warm up + {window_steps} to measure), so nothing is measured. Give fewer "
        "warmup_steps and profile_steps, or call pause_measurement() instead of on_epoch_end()"
    )


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
