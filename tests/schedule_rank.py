"""A rank that follows schedules, for tests of which it follows."""

from typing import Any

from pfo_fs.ipc.messages import NewSchedule
from pfo_fs.training.schedule_feed import ScheduleSwitcher


class Rank:
    """What a switcher has set, and said.

    Attributes:
        runs: The number of the schedule; None for default clocks.
    """

    def __init__(self) -> None:
        self.runs: int | None = None
        self.said: list[str] = []
        self.switcher = ScheduleSwitcher(self._set, self.said.append)
        self.step = -1

    def _set(self, schedule: NewSchedule | None) -> None:
        self.runs = None if schedule is None else schedule.number

    def expect(self, number: int, start_step: int = 0, **term: Any) -> None:
        self.switcher.expect(NewSchedule(number=number, start_step=start_step, **term))

    def steps(self, count: int) -> str:
        """For each of the next steps, the number of the schedule that this rank follows; - is for default clocks."""
        seen = ""
        for _ in range(count):
            self.step += 1
            self.switcher.step_begin(self.step)
            follows = self.runs is not None and self.switcher.has_turn(self.step)
            seen += str(self.runs % 10) if self.runs is not None and follows else "-"
        return seen
