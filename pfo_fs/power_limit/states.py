"""States of the power-limit optimizer; they count the steps that begin. Limits are in W.

    Ready ─▶ Warmup ─▶ Profiling ─▶ Warmup for the next limit ... ─▶ Done
      ▲────────┴──────────┘  an epoch's end: the same limit again, an incomplete window is dropped

If limits cannot be set or measured, the state is `Off`: the optimizer leaves training alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ready:
    """Goes to `Warmup` when `steps` more steps have begun."""

    next_power_limit: int
    steps: int


@dataclass
class Warmup:
    """The limit was set and takes effect; goes to `Profiling` when `steps` more steps have begun."""

    current_power_limit: int
    steps: int


@dataclass
class Profiling:
    """Steps are measured; the measurement is complete when `steps` more steps have begun."""

    current_power_limit: int
    steps: int


@dataclass
class Done:
    """The best limit is in force."""

    optimal_power_limit: int


@dataclass
class Off:
    """Power limits are left alone; `reason` is the reason, as text for the user."""

    reason: str


State = Ready | Warmup | Profiling | Done | Off
