"""Which schedule is followed at which step."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

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
        self.switcher.expect(NewSchedule(number=number, start_step=start_step, steps=steps))

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
    assert "no new schedule has come for 3 steps" in text
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


RANKS = 2
REASONS = ("directory lost", "lease over")


class RanksThatHearAtDifferentTimes(RuleBasedStateMachine):
    """Ranks go through the same steps and hear of the same schedules: late, twice, in any order, or never."""

    @initialize()
    def begin(self) -> None:
        self.published: list[NewSchedule] = []
        self.ranks = [Rank() for _ in range(RANKS)]
        self.heard: list[set[int]] = [set() for _ in range(RANKS)]
        self.reasons: list[set[str]] = [set() for _ in range(RANKS)]
        self.spoiled: list[set[int]] = [set() for _ in range(RANKS)]
        self.step = -1

    def due(self, rank: int) -> NewSchedule | None:
        """The newest schedule that this rank has heard of and that has started."""
        started = [self.published[number] for number in self.heard[rank]]
        return max((one for one in started if one.start_step <= self.step), key=lambda one: one.number, default=None)

    @rule(start_in=st.integers(-2, 6), steps=st.sampled_from([0, 0, 1, 4]))
    def publish(self, start_in: int, steps: int) -> None:
        number = len(self.published)
        start_step = max(0, self.step + start_in)
        self.published.append(NewSchedule(number=number, start_step=start_step, steps=steps))

    @rule(rank=st.integers(0, RANKS - 1), which=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def hear(self, rank: int, which: int) -> None:
        if which < len(self.published):
            schedule = self.published[-1 - which]
            self.heard[rank].add(schedule.number)
            self.ranks[rank].switcher.expect(schedule)

    @rule(rank=st.integers(0, RANKS - 1), reason=st.sampled_from(REASONS))
    def suspend(self, rank: int, reason: str) -> None:
        self.reasons[rank].add(reason)
        self.ranks[rank].switcher.suspend(reason, "text")

    @rule(rank=st.integers(0, RANKS - 1), reason=st.sampled_from(REASONS))
    def resume(self, rank: int, reason: str) -> None:
        was_suspended = reason in self.reasons[rank]
        self.reasons[rank].discard(reason)
        self.ranks[rank].switcher.resume(reason)
        in_force = self.ranks[rank].switcher.number
        if was_suspended and not self.reasons[rank] and in_force >= 0 and self.published[in_force].steps:
            self.spoiled[rank].add(in_force)

    @rule()
    def run_a_step(self) -> None:
        self.step += 1
        for number, rank in enumerate(self.ranks):
            rank.steps(1)
            due = self.due(number)
            assert rank.switcher.number == (due.number if due else -1)

    @invariant()
    def each_rank_runs_the_newest_that_is_due_or_default_clocks(self) -> None:
        if self.step < 0:
            return
        for number, rank in enumerate(self.ranks):
            in_force = rank.switcher.number
            if rank.runs is not None:
                assert rank.runs == f"schedule {in_force}"
                assert not self.reasons[number]
            elif in_force >= 0 and not self.reasons[number]:
                schedule = self.published[in_force]
                over = schedule.steps and self.step >= schedule.start_step + schedule.steps
                assert over or in_force in self.spoiled[number]
            assert rank.switcher.measured_number in (-1, in_force)

    @invariant()
    def ranks_that_have_heard_the_same_are_on_the_same_schedule(self) -> None:
        for one in range(RANKS):
            for other in range(one):
                due = self.due(one)
                numbers = {self.ranks[one].switcher.number, self.ranks[other].switcher.number}
                if due is not None and due == self.due(other) and numbers == {due.number}:
                    assert len({self.ranks[one].runs, self.ranks[other].runs} - {None}) <= 1


RanksThatHearAtDifferentTimes.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestRanksThatHearAtDifferentTimes = RanksThatHearAtDifferentTimes.TestCase
