"""Decides which schedule a rank follows at which step, by one rule for training and for the simulator.

Ranks receive schedules at different times. For all of them to run the same schedule at the same step, the rule depends
only on which schedules were received, and not on when: at each step, the schedule in force is the one with the highest
number among those whose start step has come. So a schedule is not dropped because a newer one was published before it
started; it is in force until the newer one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pfo_fs.ipc.messages import NewSchedule

_OVER = "over"
"""Reason for default clocks: the schedule in force was only for some steps, and these have passed."""
MOST_PENDING = 64
"""Most schedules that wait for their start step: far more than are published while one travels to the ranks."""


@dataclass
class ScheduleSwitcher:
    """Brings schedules into force, each at its step, and suspends them while there is a reason for default clocks.

    Args:
        set_schedule: Makes the next step follow a schedule; None: default clocks.
        warn: Called with a text when a schedule is suspended; that it was for some steps only is said once.

    Attributes:
        number: The number of the schedule in force, suspended or not; -1 for none.
    """

    set_schedule: Callable[[NewSchedule | None], None]
    warn: Callable[[str], object]

    def __post_init__(self) -> None:
        self.number = -1
        self._pending: dict[int, NewSchedule] = {}
        self._in_force: NewSchedule | None = None
        self._reasons: set[str] = set()
        self._has_said_over = False

    @property
    def newest(self) -> int:
        """The number of the newest schedule that has arrived."""
        return max(self.number, *self._pending) if self._pending else self.number

    @property
    def is_suspended(self) -> bool:
        """Whether there is a reason for default clocks."""
        return bool(self._reasons)

    @property
    def measured_number(self) -> int:
        """The number of the schedule that a step measures; -1 for none, also while the schedule is suspended."""
        return -1 if self._reasons else self.number

    def number_at(self, step: int) -> int:
        """Returns the number of the schedule that is in force at the next step, if that is `step`."""
        return max(
            (number for number, coming in self._pending.items() if coming.start_step <= step), default=self.number
        )

    def expect(self, coming: NewSchedule) -> None:
        """Adds a schedule. One that can never be in force, or that is known already, is ignored."""
        if coming.number <= self.number or coming.number in self._pending:
            return
        for other in self._pending.values():
            if other.number > coming.number and other.start_step <= coming.start_step:
                return  # when `coming` would start, the newer one is in force
        self._pending = {
            number: other
            for number, other in self._pending.items()
            if number > coming.number or other.start_step < coming.start_step
        }
        self._pending[coming.number] = coming
        if len(self._pending) > MOST_PENDING:
            del self._pending[min(self._pending)]

    def withdraw(self) -> None:
        """Drops all schedules, the one in force too: default clocks until another one comes, whatever its number."""
        self.number, self._in_force, self._pending = -1, None, {}
        self._reasons.discard(_OVER)
        self.set_schedule(None)

    def step_begin(self, step: int) -> NewSchedule | None:
        """Does what is due at this step; returns the schedule that comes into force with it, if one does."""
        started = None
        number = self.number_at(step)
        if number > self.number:
            started = self._pending[number]
            self._pending = {number: coming for number, coming in self._pending.items() if coming.start_step > step}
            self._in_force, self.number = started, number
            self._reasons.discard(_OVER)
            self.set_schedule(None if self._reasons else started)
        in_force = self._in_force
        if in_force is not None and in_force.steps and step >= in_force.start_step + in_force.steps:
            text = f"no new schedule has come for {in_force.steps} steps; default clocks until one comes"
            self.suspend(_OVER, "" if self._has_said_over else text)
            self._has_said_over = True
        return started

    def suspend(self, reason: str, text: str) -> None:
        """Sets default clocks until `resume` for this reason, also under schedules that come into force meanwhile.

        Args:
            reason: A name of the reason.
            text: A warning; empty for none.
        """
        if reason not in self._reasons:
            self._reasons.add(reason)
            self.set_schedule(None)
            if text:
                self.warn(text)

    def resume(self, reason: str) -> None:
        """Ends a suspension; when no reason is left, the schedule in force is followed again.

        A schedule that holds for some steps only is not followed again: ranks would measure it from different steps on.
        """
        if reason not in self._reasons:
            return
        self._reasons.remove(reason)
        if self._reasons or self._in_force is None:
            return
        if self._in_force.steps:
            self._reasons.add(_OVER)
        else:
            self.set_schedule(self._in_force)
