"""Decides when to write the iteration times of a pipeline: at once when they change, otherwise rarely."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pfo_fs.ipc.messages import TimedStep

_KEPT = 16
_CHANGED = 0.01
"""Relative: an iteration this much longer or shorter than the last one written is written at once."""
_QUIET = 15
"""While nothing changes, a record is written after this many times the shortest interval."""
_CONFIRMATIONS = 3
"""This many records follow a change, as soon as there are new iterations: the coordinator waits for a confirmation."""


class IterationTimeLog:
    """The last iterations of one rank, and what has been written of them.

    Args:
        interval_s: The shortest time between two records.
    """

    def __init__(self, interval_s: float) -> None:
        self.steps: list[TimedStep] = []
        self.throttled = ""
        self._interval_s = interval_s
        self._written_at = -math.inf
        self._written: tuple[int, float, str] | None = None
        self._confirmations = 0

    def add(self, steps: Sequence[TimedStep], throttled: str) -> None:
        """Adds iterations that have ended since the last call."""
        self.steps = [*self.steps, *steps][-_KEPT:]
        self.throttled = throttled

    def due(self, now: float) -> bool:
        """Returns whether to write a record now (monotonic s): after a change, or long after the last record."""
        since_s = now - self._written_at
        if since_s < self._interval_s or (not self.steps and self.throttled == (self._written or (0, 0, ""))[2]):
            return False
        return since_s >= _QUIET * self._interval_s or self._confirmations > 0 or self._has_changed()

    def _has_changed(self) -> bool:
        if self._written is None:
            return True
        number, span_s, throttled = self._written
        if self.throttled != throttled:
            return True
        if not self.steps:
            return False
        _, newest_number, newest_s = self.steps[-1]
        return newest_number != number or abs(newest_s - span_s) > _CHANGED * span_s

    def written(self, now: float) -> None:
        """Notes that a record was written."""
        is_change = self._written is not None and self._has_changed()
        self._confirmations = _CONFIRMATIONS if is_change else max(0, self._confirmations - 1)
        self._written_at = now
        _, number, span_s = self.steps[-1] if self.steps else (0, -1, 0.0)
        self._written = number, span_s, self.throttled

    def not_written(self) -> None:
        """Notes that a record could not be written: the next one is due after the shortest interval."""
        self._written = None
