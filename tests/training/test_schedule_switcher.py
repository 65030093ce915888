"""Which schedule is followed at which step."""

from __future__ import annotations

from typing import Any

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

    def expect(self, number: int, start_step: int = 0, steps: int = 0, **term: Any) -> None:
        term = {"until": start_step + steps if steps else 0, **term}
        self.switcher.expect(NewSchedule(number=number, start_step=start_step, **term))

    def turns(self, count: int) -> str:
        """For each of the next steps, the number of the schedule that this rank follows; - is for default clocks."""
        seen = ""
        for _ in range(count):
            (runs,) = self.steps(1)
            seen += runs[-1] if runs and self.switcher.has_turn(self.step) else "-"
        return seen

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


@pytest.mark.parametrize("half", [0, 1])
def test_each_half_follows_a_schedule_in_its_turns_and_at_its_end_all_follow_the_one_before(
    rank: Rank, half: int
) -> None:
    rank.switcher.half = half
    rank.expect(0)
    rank.expect(2, start_step=1, until=8, after=0, turns=[3, 0, 1, 2])
    seen = rank.turns(11)
    expected = "0" + "".join("2" if [3, 0, 1, 2][step % 4] >> half & 1 else "-" for step in range(1, 8)) + "000"
    assert seen == expected
    assert rank.switcher.measured_number == 0
    assert rank.switcher.measured_until == -1, "it was measured before"


def test_a_schedule_can_be_followed_in_turns_without_an_end(rank: Rank) -> None:
    rank.expect(0, turns=[1, 2])
    assert rank.turns(200) == "0-" * 100


def test_a_schedule_that_is_followed_in_turns_without_an_end_has_them_again_after_another_one(rank: Rank) -> None:
    rank.expect(0, turns=[1, 2])
    rank.expect(1, start_step=2, until=5, after=0)
    assert rank.turns(10) == "0-111-0-0-"


def test_a_plan_that_stays_after_its_turns_is_followed_in_all_steps(rank: Rank) -> None:
    rank.expect(3, until=4, after=3, turns=[2, 1])
    assert rank.turns(8) == "-3-33333"
    rank.expect(4, start_step=8, until=9, after=3)
    assert rank.turns(4) == "4333"


def test_a_rank_that_comes_late_and_lacks_the_schedule_that_is_to_follow_goes_to_default_clocks(rank: Rank) -> None:
    rank.expect(2, until=3, after=1)
    assert rank.turns(5) == "222--"
    rank.expect(3, start_step=5)
    assert rank.turns(2) == "33"


def test_a_rank_that_hears_of_a_schedule_after_its_end_follows_the_one_before_at_once(rank: Rank) -> None:
    rank.expect(0)
    assert rank.turns(3) == "000"
    rank.expect(1, until=2, after=0)
    assert rank.turns(2) == "00"
    assert (rank.switcher.number, rank.switcher.measured_number) == (1, 0)


def test_a_schedule_whose_place_a_newer_one_takes_at_once_is_the_one_that_follows_it(rank: Rank) -> None:
    rank.expect(0)
    rank.expect(1, start_step=2)
    assert rank.turns(1) == "0"
    rank.step = 4  # training has not heard of the steps between
    rank.expect(2, start_step=3, until=7, after=1)
    assert rank.turns(4) == "2211"


def test_a_persons_schedule_is_followed_again_after_a_suspension_until_its_end(rank: Rank) -> None:
    rank.expect(0)
    rank.expect(1, start_step=1, until=6, after=0, turns=[3], by_hand=True)
    assert rank.turns(2) == "01"
    rank.switcher.suspend("switched off", "text")
    assert rank.turns(2) == "--"
    rank.switcher.resume("switched off")
    assert rank.turns(4) == "1100"


def test_a_schedule_that_ends_while_it_is_suspended_is_not_followed_again(rank: Rank) -> None:
    rank.expect(0)
    rank.expect(1, start_step=1, until=3, after=0, turns=[1], by_hand=True)
    assert rank.turns(2) == "01"
    rank.switcher.suspend("switched off", "text")
    assert rank.turns(3) == "---"
    rank.switcher.resume("switched off")
    assert rank.turns(2) == "00"


def test_a_trial_that_was_suspended_gives_way_to_the_schedule_before(rank: Rank) -> None:
    rank.expect(0)
    rank.expect(1, start_step=1, until=9, after=0, turns=[3])
    assert rank.turns(2) == "01"
    rank.switcher.suspend("switched off", "text")
    rank.switcher.resume("switched off")
    assert rank.turns(2) == "00"
    assert rank.switcher.measured_number == 0


def test_after_a_withdrawal_there_are_no_turns_and_no_end(rank: Rank) -> None:
    rank.expect(5, until=4, turns=[2], after=3)
    assert rank.turns(1) == "-"
    rank.switcher.withdraw()
    assert rank.switcher.has_turn(1)
    rank.expect(0, start_step=2)
    assert rank.turns(6) == "-00000"


@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize(
    ("turns", "until", "measured"),
    [([1, 2, 3, 0], 0, 25), ([1, 2, 3, 0], 12, 12), ([3] * 7, 500, 29), ([3] * 30, 0, 31)],
)
def test_a_persons_turns_are_measured_in_whole_rounds_that_end_at_one_step_on_all_ranks(
    rank: Rank, turns: list[int], until: int, measured: int, first: int
) -> None:
    rank.step = first - 1
    rank.expect(0, until=until, turns=turns, by_hand=True)
    rank.steps(1)
    assert rank.switcher.measured_until == measured
