"""How a plan that was measured, and does not keep to its target, is brought there."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_TIME_MARGIN = 0.25
"""How much longer slowed instructions may be taken to be, before full speed is all that is left."""
_MOST_GAIN = 4.0
"""How fast that may grow."""
MOST_CORRECTIONS = 5
"""How many times in a row a plan is made faster or slower after measuring it."""


@dataclass
class Corrections:
    """What was tried for one target.

    Attributes:
        count: Plans that were made because one was off its target.
        power_scale: What the planner is asked for, against the cap on power.
        given_up: Only full speed keeps to the target.
    """

    count: int = 0
    power_scale: float = 1.0
    given_up: bool = False
    _tried: tuple[float, float] | None = field(default=None, repr=False)  # the last time_margin, and how far it was off

    def count_anew(self) -> None:
        """There may be as many corrections again; what they have led to stays."""
        self.count, self._tried = 0, None

    def next_time_margin(self, time_margin: float, off: float) -> float:
        """Returns the time margin that should bring a plan to its target: a secant, once there are two points.

        Args:
            time_margin: That of the plan that was measured.
            off: How much longer than the target it took, relative.
        """
        gain = 1.0
        if self._tried is not None and off != self._tried[1]:
            gain = min(_MOST_GAIN, max(1.0, (self._tried[0] - time_margin) / (off - self._tried[1])))
        self._tried = time_margin, off
        return round(max(-MOST_TIME_MARGIN, time_margin + gain * off), 5)
