"""When it is worth writing down how long a pipeline's iterations take: at once when that changes, else seldom."""

from __future__ import annotations

import math
from collections.abc import Sequence

_KEPT = 16
_CHANGED = 0.01
"""Relative: an iteration this much longer or shorter than the last one written is news."""
_QUIET = 15
"""News apart, one word in so many times the shortest interval."""

TimedStep = tuple[int, int, float]
"""(step, schedule number, s until the rank's last instruction had ended)."""


class IterationTimeLog:
    """The last iterations of one rank, and what has been written of them.

    Args:
        interval_s: Never write more often than this.
    """

    def __init__(self, interval_s: float) -> None:
        self.steps: list[TimedStep] = []
        self.throttled = ""
        self._interval_s = interval_s
        self._written_at = -math.inf
        self._written: tuple[int, float, str] | None = None

    def add(self, steps: Sequence[TimedStep], throttled: str) -> None:
        """Adds iterations that have ended since."""
        self.steps = [*self.steps, *steps][-_KEPT:]
        self.throttled = throttled

    def due(self, now: float) -> bool:
        """Whether it should be written now (monotonic s): there is status_text, or nothing was heard of it for long."""
        since_s = now - self._written_at
        if since_s < self._interval_s or (not self.steps and self.throttled == (self._written or (0, 0, ""))[2]):
            return False
        if self._written is None or since_s >= _QUIET * self._interval_s:
            return True
        number, span_s, throttled = self._written
        changed = self.throttled != throttled
        if self.steps:
            _, now_number, now_s = self.steps[-1]
            changed = changed or now_number != number or abs(now_s - span_s) > _CHANGED * span_s
        return changed

    def written(self, now: float) -> None:
        """Notes that it was written."""
        self._written_at = now
        _, number, span_s = self.steps[-1] if self.steps else (0, -1, 0.0)
        self._written = number, span_s, self.throttled

    def not_written(self) -> None:
        """Notes that what `written` said did not happen."""
        self._written = None
