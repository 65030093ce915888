"""Whether the time of a step has changed since the power limit was chosen. The caller gives the times."""

from __future__ import annotations

from statistics import median


class DriftWatch:
    """Compares the median step time of each window with that of the first window.

    An evaluation or a checkpoint between two steps hardly changes a median. Two windows in a row must differ.

    Args:
        threshold: A median may differ by this share, 0.1 for 10 %.
        settle_steps: Number of steps that are left out at the start.
        window_steps: Number of steps in a window.
    """

    def __init__(self, threshold: float, settle_steps: int, window_steps: int) -> None:
        self._threshold = threshold
        self._left_out = settle_steps + 1
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
