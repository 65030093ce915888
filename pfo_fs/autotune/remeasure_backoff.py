"""When a plan may be measured again, so that a job whose iteration times are never steady is not always measured."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.scheduler.base import IterationTime

_FIRST_PAUSE, _LONGEST_PAUSE = 16, 4096
"""Number of iterations from one measurement to the next: first, longest."""


class RemeasureBackoff:
    """Doubles the pause with each measurement that an alarm of the monitor asks for."""

    def __init__(self) -> None:
        self._step = -1
        self._not_before = -1
        self._pause = _FIRST_PAUSE

    def note(self, iteration_times: Sequence[IterationTime]) -> None:
        """Notes iterations that have ended."""
        self._step = max([self._step, *(one.step for one in iteration_times)])

    def take_turn(self) -> bool:
        """Returns whether to measure now; if so, the next pause begins and is twice as long."""
        if self._step < self._not_before:
            return False
        self._not_before = self._step + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True
