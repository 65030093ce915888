"""States of the power-limit optimizer; they count the steps that begin. A level (`..._power_limit`, as in Zeus)
is a power limit in W, or a clock in MHz, and `unit` says which.

    Ready ─▶ Warmup ─▶ Profiling ─▶ Warmup for the next level ... ─▶ Done
      ▲────────┴──────────┘  an epoch's end: the same level again, an incomplete window is dropped

If levels cannot be set or measured, the state is `Off`: the optimizer leaves training alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ready:
    """Goes to `Warmup` when `steps` more steps have begun."""

    next_power_limit: int
    steps: int
    unit: str = "W"


@dataclass
class Warmup:
    """The level was set and takes effect; goes to `Profiling` when `steps` more steps have begun."""

    current_power_limit: int
    steps: int
    unit: str = "W"

    @property
    def level(self) -> int:
        """The level that is in force."""
        return self.current_power_limit


@dataclass
class Profiling:
    """Steps are measured; the measurement is complete when `steps` more steps have begun."""

    current_power_limit: int
    steps: int
    unit: str = "W"

    @property
    def level(self) -> int:
        """The level that is in force."""
        return self.current_power_limit


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
