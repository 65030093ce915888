"""Which schedule is followed from which step on: the rule that a rank goes by, in training and in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_OVER = "over"
"""The reason that ends with the next schedule: this one was there for some steps, and they are over."""

What = TypeVar("What")
"""What a rank has to know of a schedule to follow it."""


@dataclass(frozen=True)
class PendingSchedule(Generic[What]):
    """A schedule that has arrived.

    Attributes:
        number: Its number; -1 for one that only stands for default clocks.
        start_step: The step from which on it is followed.
        steps: For how many steps it holds at most; 0 for ever.
        what: The schedule.
    """

    number: int
    start_step: int
    steps: int
    what: What


class ScheduleSwitcher(Generic[What]):
    """Follows schedules, each from its step on, and lets go of them where it must.

    Args:
        set_schedule: Makes a schedule the one that the next step runs by; None: default clocks.
        warn: Called with (text, reason) whenever a schedule is let go of.

    Attributes:
        number: Of the schedule in force, followed or not; -1 for none.
    """

    def __init__(self, set_schedule: Callable[[What | None], None], warn: Callable[[str, str], None]) -> None:
        self.number = -1
        self._set_schedule = set_schedule
        self._warn = warn
        self._coming: PendingSchedule[What] | None = None
        self._in_force: PendingSchedule[What] | None = None
        self._suspended_for: set[str] = set()

    @property
    def newest(self) -> int:
        """The number of the newest schedule that has arrived."""
        return max(self.number, self._coming.number if self._coming else -1)

    @property
    def measured_number(self) -> int:
        """The schedule that a step's measurements are of; -1 for none: what was let go of is not what is measured."""
        return -1 if self._suspended_for else self.number

    def expect(self, coming: PendingSchedule[What]) -> None:
        """Takes note of a schedule, in place of one that has not started yet."""
        self._coming = coming

    def step_begin(self, step: int) -> PendingSchedule[What] | None:
        """Does what is due at this step; returns the schedule that comes into force with it, if one does."""
        coming = self._coming
        if coming is not None and step >= coming.start_step:
            self._coming, self._in_force, self.number = None, coming, coming.number
            self._suspended_for.discard(_OVER)
            self._set_schedule(None if self._suspended_for else coming.what)
        else:
            coming = None
        in_force = self._in_force
        if in_force is not None and in_force.steps and step >= in_force.start_step + in_force.steps:
            self.suspend(_OVER, f"nothing new has come for {in_force.steps} steps; default clocks until it does")
        return coming

    def suspend(self, why: str, text: str) -> None:
        """Default clocks, until `resume` for the same reason, whatever schedules come meanwhile."""
        if why not in self._suspended_for:
            self._suspended_for.add(why)
            self._set_schedule(None)
            self._warn(text, why)

    def resume(self, why: str) -> None:
        """A reason for `suspend` is gone; what was there for measuring is not taken up again."""
        if why not in self._suspended_for:
            return
        self._suspended_for.remove(why)
        if self._suspended_for or self._in_force is None:
            return
        if self._in_force.steps:
            self._suspended_for.add(_OVER)
        else:
            self._set_schedule(self._in_force.what)
