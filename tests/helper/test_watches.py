"""Which schedule a host follows when `current.json` names an older one, or is gone; whether the directory answers."""

from __future__ import annotations

import errno
import logging

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.errors import StoreError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import ScheduleFound
from pfo_fs.helper.watches import BELIEVED_AFTER_S, DirectoryHealth, ScheduleWatch
from pfo_fs.ipc import messages as m
from pfo_fs.ipc.messages import PaceLeaseRenewed
from pfo_fs.store.bodies import CurrentBody

Pair = tuple[int, int]
"""Generation and number that `current.json` names."""


class Ranks:
    """The ranks of a host whose helper polls `current.json` once a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.watch = ScheduleWatch(1.0, Around(lambda: self.now_s, seed=0))
        self.follow: int | None = None

    def see(self, current: Pair | None, polls: int = 1) -> int | None:
        """Polls while the file says this; returns the number that the ranks follow then; None: default clocks."""
        for _ in range(polls):
            self.now_s += 1.0
            body = current and CurrentBody(generation=current[0], number=current[1], state="running")
            is_new = current is not None and current[1] >= 0 and current > self.watch.known
            found = ScheduleFound(body, m.NewSchedule(number=current[1]) if current and is_new else None)
            for told in self.watch.learn(found):
                if isinstance(told, m.SchedulesWithdrawn):
                    self.follow = None
                elif isinstance(told, m.NewSchedule):
                    self.follow = told.number
            self.watch.polled()
        return self.follow


LONG = int(BELIEVED_AFTER_S) + 3
pairs = st.tuples(st.sampled_from([0, 1, 2, 999_999_999]), st.sampled_from([-1, 0, 1, 7, 999_999_999]))


@given(st.lists(st.tuples(st.none() | pairs, st.integers(1, 30)), max_size=6), st.none() | pairs)
def test_whatever_was_written_before_ranks_follow_what_the_file_says_for_long(
    earlier: list[tuple[Pair | None, int]], last: Pair | None
) -> None:
    ranks = Ranks()
    for current, polls in earlier:
        ranks.see(current, polls)
    assert ranks.see(last, LONG) == (last[1] if last is not None and last[1] >= 0 else None)


@pytest.mark.parametrize("stale", [(1, 3), (0, 9), (1, -1), None])
def test_one_stale_read_changes_nothing(stale: Pair | None) -> None:
    ranks = Ranks()
    for _ in range(20):
        assert ranks.see((1, 4), 3) == 4
        assert ranks.see(stale, 3) == 4


def test_words_that_hold_a_schedule_are_passed_on() -> None:
    watch, told = ScheduleWatch(1.0, Around()), []
    for number, lease_s, word in [(-1, 0, 0), (0, 0, 0), (0, 60, 1), (0, 60, 2), (0, 60, 0), (-1, 0, 0), (0, 0, 0)]:
        current = CurrentBody(generation=1, number=number, state="running", lease_s=lease_s, heartbeat=word)
        told.append([m.lease_s for m in watch.learn(ScheduleFound(current)) if isinstance(m, PaceLeaseRenewed)])
    # None: this coordinator does not follow the straggler, or knows nothing of schedules yet.
    assert told == [[], [0.0], [62.0], [62.0], [], [], [0.0]]


def test_a_schedule_that_came_after_a_withdrawal_stays() -> None:
    ranks = Ranks()
    ranks.see((999_999_999, 7))
    ranks.see((1, 2), LONG)
    assert ranks.see((1, 2), 5 * LONG) == 2
    assert ranks.see((1, 3)) == 3


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> DirectoryHealth:
    caplog.set_level(logging.WARNING, "pfo_fs")
    return DirectoryHealth(clock)


FULL = StoreError(errno.ENOSPC, "no space left")


def test_an_outage_is_said_when_it_begins_and_when_it_ends(
    outage: DirectoryHealth, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        outage.ended("read", FULL)
        clock.now += 1
    assert outage.error == "no space left"
    clock.now += 10
    outage.ended("read", None)
    outage.ended("read", None)
    assert outage.error == ""
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the shared directory does not answer; training goes on with its present schedule",
        "the shared directory answers again",
    ]


def test_a_full_disk_that_takes_some_writes_is_one_outage(
    outage: DirectoryHealth, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        outage.ended("write", FULL)
        clock.now += 1
        outage.ended("write", None)
    assert len(caplog.records) == 1


def test_what_cannot_be_written_does_not_hide_that_nothing_is_read(outage: DirectoryHealth, clock: Clock) -> None:
    for _ in range(2):
        outage.ended("read", FULL)
        clock.now += 350
    outage.ended("write", None)
    assert outage.is_lost
    outage.ended("read", None)
    outage.ended("write", FULL)
    clock.now += 700
    assert not outage.is_lost
    assert outage.error == "no space left"


def test_what_a_plan_saves_is_logged_when_it_stays_and_again_only_when_that_changes() -> None:
    watch = ScheduleWatch(1.0, Around())
    tried = CurrentBody(generation=1, number=3, state="running", status_text="saves 9.0 ± 0.9 %")
    stays = tried.model_copy(update={"converged": True})
    again = stays.model_copy(update={"status_text": "saves 9.1 ± 0.2 %", "yaml_problem": "line 3: what?"})
    assert watch.texts_for_log(tried) == []
    assert watch.texts_for_log(stays) == [(logging.INFO, "schedule 3 stays: saves 9.0 ± 0.9 %")]
    assert watch.texts_for_log(stays) == []
    assert watch.texts_for_log(again) == [
        (logging.WARNING, "schedule.yaml: line 3: what?"),
        (logging.INFO, "schedule 3 stays: saves 9.1 ± 0.2 %"),
    ]
