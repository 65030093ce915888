"""In which steps instructions are marked, so that the clock process can measure them."""

from __future__ import annotations


class MeasuredSteps:
    """Counts the steps in which instructions are marked under one schedule number.

    Args:
        most: Marks end after this many steps, even if the clock process never reports a complete result.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._number: int | None = None
        self._steps = 0

    def begin_step(self, number: int, done_number: int) -> bool:
        """Returns whether the instructions of the step that begins are marked."""
        if number != self._number:
            self._number, self._steps = number, 0
        self._steps += 1
        return done_number != number and self._steps <= self._most
