"""When a plan may be measured again, so that a job whose iteration times are never steady is not always measured."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.scheduler.base import IterationTime

_FIRST_PAUSE, _LONGEST_PAUSE = 16, 4096
"""Number of iterations from one measurement to the next: first, longest."""
_CALM_PAUSES = 4
"""After this many pauses without a question, a confirmed change sets the pause to the first one."""


class RemeasureBackoff:
    """Doubles the pause with each question (a request to measure the plan in force again).

    The pause becomes short again only if a question after a long time without any found a change.
    """

    def __init__(self) -> None:
        self._step = -1
        self._not_before = -1
        self._pause = _FIRST_PAUSE
        self._was_calm = True

    @property
    def step(self) -> int:
        """The latest iteration's step; -1 before the first."""
        return self._step

    def note(self, iteration_times: Sequence[IterationTime]) -> None:
        """Notes iterations that have ended."""
        self._step = max([self._step, *(one.step for one in iteration_times)])

    def take_turn(self) -> bool:
        """Returns whether to measure now; if so, the next pause begins and is twice as long."""
        if self._step < self._not_before:
            return False
        self._was_calm = self._step > self._not_before + _CALM_PAUSES * self._pause
        self._not_before = self._step + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True

    def confirm(self) -> None:
        """Notes that the latest question has found a change."""
        if self._was_calm:
            self._not_before, self._pause = self._step + _FIRST_PAUSE, 2 * _FIRST_PAUSE
