"""Which schedule is followed at which step."""

from __future__ import annotations

import pytest

from pfo_fs.ipc.messages import NewSchedule
from pfo_fs.training.schedule_feed import ScheduleSwitcher


class Rank:
    """What a switcher has set, and said."""

    def __init__(self) -> None:
        self.runs: str | None = None
        self.said: list[str] = []
        self.switcher = ScheduleSwitcher(self._set, self.said.append)
        self.step = -1

    def _set(self, schedule: NewSchedule | None) -> None:
        self.runs = None if schedule is None else f"schedule {schedule.number}"

    def expect(self, number: int, start_step: int = 0, steps: int = 0) -> None:
        until = start_step + steps if steps else 0
        self.switcher.expect(NewSchedule(number=number, start_step=start_step, until=until))

    def steps(self, count: int) -> list[str | None]:
        seen = []
        for _ in range(count):
            self.step += 1
            self.switcher.step_begin(self.step)
            seen.append(self.runs)
        return seen


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_after_a_withdrawal_clocks_are_default_until_a_schedule_comes_whatever_its_number(rank: Rank) -> None:
    rank.expect(7, steps=1)
    rank.expect(9, start_step=6)
    assert rank.steps(3) == ["schedule 7", None, None]
    rank.switcher.withdraw()
    assert (rank.runs, rank.switcher.number) == (None, -1)
    rank.expect(2, start_step=4)
    assert rank.steps(5) == [None, "schedule 2", "schedule 2", "schedule 2", "schedule 2"]


def test_schedules_that_pile_up_without_ever_starting_do_not_fill_the_memory(rank: Rank) -> None:
    assert (rank.switcher.number, rank.switcher.newest) == (-1, -1)
    for number in range(1000):
        rank.expect(number, start_step=1000 + number)
    assert rank.switcher.newest == 999
    followed = rank.steps(2000)
    assert followed[-1] == "schedule 999"
    assert len(set(followed) - {None}) <= 64


def test_a_schedule_that_holds_for_some_steps_ends_by_itself_and_is_not_measured_any_more(rank: Rank) -> None:
    rank.expect(0, start_step=1, steps=3)
    assert rank.steps(6) == [None] + ["schedule 0"] * 3 + [None] * 2
    assert (rank.switcher.number, rank.switcher.measured_number) == (0, -1)
    (text,) = rank.said
    assert "schedule 0 has ended, and no other one has come; default clocks" in text
    rank.expect(1, start_step=7)
    assert rank.steps(3) == [None, "schedule 1", "schedule 1"]
    assert rank.switcher.measured_number == 1


def test_that_no_new_schedule_has_come_is_said_once(rank: Rank) -> None:
    for number in range(3):
        rank.expect(number, start_step=2 * number, steps=1)
    assert rank.steps(6) == ["schedule 0", None, "schedule 1", None, "schedule 2", None]
    assert len(rank.said) == 1


def test_a_suspended_schedule_is_followed_again_when_the_last_reason_is_gone(rank: Rank) -> None:
    rank.expect(0)
    rank.steps(1)
    for why in ("directory lost", "lease over", "lease over"):
        rank.switcher.suspend(why, f"warning: {why}")
    assert rank.said == ["warning: directory lost", "warning: lease over"]
    rank.switcher.resume("directory lost")
    rank.switcher.resume("something else")
    assert rank.steps(1) == [None]
    rank.switcher.resume("lease over")
    assert rank.steps(1) == ["schedule 0"]


def test_a_schedule_for_measuring_is_not_followed_again_after_a_suspension(rank: Rank) -> None:
    rank.expect(0, steps=100)
    rank.steps(1)
    rank.switcher.suspend("directory lost", "text")
    rank.switcher.resume("directory lost")
    assert rank.steps(1) == [None]
    assert rank.switcher.measured_number == -1
