"""Which schedule is followed at which step."""

from __future__ import annotations

import pytest

from pfo_fs.training.schedule_switcher import PendingSchedule, ScheduleSwitcher


class Rank:
    """What a switcher has set, and said."""

    def __init__(self) -> None:
        self.runs: str | None = None
        self.said: list[str] = []
        self.switcher: ScheduleSwitcher[str] = ScheduleSwitcher(self._set, lambda _, why: self.said.append(why))
        self.step = -1

    def _set(self, what: str | None) -> None:
        self.runs = what

    def expect(self, number: int, start_step: int = 0, steps: int = 0) -> None:
        self.switcher.expect(PendingSchedule(number, start_step, steps, f"schedule {number}"))

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


def test_a_schedule_comes_into_force_at_its_step(rank: Rank) -> None:
    rank.expect(4, start_step=2)
    assert rank.switcher.newest == 4
    assert rank.switcher.number == -1
    assert rank.steps(4) == [None, None, "schedule 4", "schedule 4"]
    assert rank.switcher.number == rank.switcher.measured_number == 4


def test_whoever_learns_too_late_of_a_schedule_follows_it_at_once(rank: Rank) -> None:
    rank.steps(5)
    rank.expect(0, start_step=2)
    applied = rank.switcher.step_begin(5)
    assert applied is not None
    assert applied.start_step == 2
    assert rank.runs == "schedule 0"


def test_a_newer_schedule_takes_the_place_of_one_that_has_not_started(rank: Rank) -> None:
    rank.expect(0, start_step=3)
    rank.expect(1, start_step=4)
    assert rank.steps(6) == [None] * 4 + ["schedule 1"] * 2


def test_a_schedule_that_holds_for_some_steps_ends_by_itself_and_is_not_measured_any_more(rank: Rank) -> None:
    rank.expect(0, start_step=1, steps=3)
    assert rank.steps(6) == [None] + ["schedule 0"] * 3 + [None] * 2
    assert (rank.switcher.number, rank.switcher.measured_number) == (0, -1)
    assert rank.said == ["over"]
    rank.expect(1, start_step=7)
    assert rank.steps(3) == [None, "schedule 1", "schedule 1"]
    assert rank.switcher.measured_number == 1


def test_what_was_let_go_of_is_taken_up_when_the_last_reason_is_gone(rank: Rank) -> None:
    rank.expect(0)
    rank.steps(1)
    for why in ("release", "hold", "hold"):
        rank.switcher.suspend(why, "text")
    assert rank.said == ["release", "hold"]
    rank.switcher.resume("release")
    rank.switcher.resume("something else")
    assert rank.steps(1) == [None]
    rank.switcher.resume("hold")
    assert rank.steps(1) == ["schedule 0"]


def test_what_was_there_for_measuring_is_not_taken_up_again(rank: Rank) -> None:
    rank.expect(0, steps=100)
    rank.steps(1)
    rank.switcher.suspend("release", "text")
    rank.switcher.resume("release")
    assert rank.steps(1) == [None]
    assert rank.switcher.measured_number == -1


def test_a_new_schedule_is_not_followed_while_there_is_a_reason_not_to(rank: Rank) -> None:
    rank.expect(0)
    rank.steps(1)
    rank.switcher.suspend("hold", "text")
    rank.expect(1, start_step=2)
    assert rank.steps(2) == [None, None]
    assert (rank.switcher.number, rank.switcher.measured_number) == (1, -1)
    rank.switcher.resume("hold")
    assert rank.steps(1) == ["schedule 1"]
    assert rank.switcher.measured_number == 1


def test_what_is_not_taken_up_again_does_not_stand_in_the_way_of_the_next_schedule(rank: Rank) -> None:
    rank.expect(0, steps=100)
    rank.steps(1)
    rank.switcher.suspend("hold", "text")
    rank.switcher.resume("hold")
    rank.expect(1)
    assert rank.steps(1) == ["schedule 1"]
