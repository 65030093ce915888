"""Corrects what the planner is asked for after a measured plan missed its target."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_TIME_MARGIN = 0.25
"""How much longer slowed instructions may be taken to be, relative, before only full speed is left."""
_LARGEST_STEP = 4.0
"""The margin changes by at most this multiple of the relative error of the plan."""
MOST_CORRECTIONS = 5
"""How many times in a row a plan is made faster or slower after measuring it."""


@dataclass
class Corrections:
    """What was tried for one target.

    Attributes:
        count: Plans that were made because one was off its target.
        power_scale: What the planner is asked for, as a multiple of the cap on power.
        full_speed_only: No plan keeps to the target, so that all instructions run at the highest clocks.
    """

    count: int = 0
    power_scale: float = 1.0
    full_speed_only: bool = False
    _last: tuple[float, float] | None = field(default=None, repr=False)  # time margin, and how far the plan was off

    def count_anew(self) -> None:
        """Allows as many corrections again; what they have led to stays."""
        self.count, self._last = 0, None

    def next_time_margin(self, time_margin: float, off: float) -> float:
        """Returns the time margin that should bring a plan to its target: a secant, once there are two points.

        Args:
            time_margin: That of the plan that was measured.
            off: How much longer than the target it took, relative.
        """
        step = 1.0
        if self._last is not None and off != self._last[1]:
            step = min(_LARGEST_STEP, max(1.0, (self._last[0] - time_margin) / (off - self._last[1])))
        self._last = time_margin, off
        return round(max(-MOST_TIME_MARGIN, time_margin + step * off), 5)
