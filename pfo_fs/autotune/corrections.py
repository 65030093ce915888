"""Corrects what the planner is asked for after a measured plan missed its target."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_TIME_MARGIN = 0.25
"""Relative: the largest time margin of slowed instructions; if it does not suffice, all run at full speed."""
_LARGEST_STEP = 4.0
"""The margin changes by at most this multiple of the relative error of the plan."""
MOST_CORRECTIONS = 5
"""A plan is made faster or slower at most this many times in a row after measuring it."""


@dataclass
class Corrections:
    """What was tried for one target.

    Attributes:
        count: Number of plans that were made because one was off its target.
        power_scale: The power that the planner is asked for, as a multiple of the cap on power.
        full_speed_only: Whether all instructions run at the highest clocks, because no plan keeps to the target.
    """

    count: int = 0
    power_scale: float = 1.0
    full_speed_only: bool = False
    _last: tuple[float, float] | None = field(default=None, repr=False)  # time margin, and how far the plan was off

    def count_anew(self) -> None:
        """Starts the count of corrections again; their effect stays."""
        self.count, self._last = 0, None

    def next_time_margin(self, time_margin: float, off: float) -> float:
        """Returns the time margin that should bring a plan to its target, by the secant method from two points on.

        Args:
            time_margin: The time margin of the measured plan.
            off: How much longer than the target the plan took, relative.
        """
        step = 1.0
        if self._last is not None and off != self._last[1]:
            step = min(_LARGEST_STEP, max(1.0, (self._last[0] - time_margin) / (off - self._last[1])))
        self._last = time_margin, off
        return round(max(-MOST_TIME_MARGIN, time_margin + step * off), 5)
