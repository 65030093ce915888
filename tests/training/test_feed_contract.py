"""What both schedule feeds promise, whatever happens between the ranks and the process that schedules.

Messages are late, lost, doubled or out of order, helpers die and come back, leases end, and the exchange between ranks
fails on one of them. The promises are written once, in `FeedContract`; each feed has a machine that makes its faults.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fake_helper import FakeClient
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedule_rank import Rank as ScheduleRank

from pfo_fs.guard import WarnOnce
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport
from pfo_fs.training.schedule_feed import BroadcastFeed, ScheduleFeed

RANKS = 3
FLIGHT_STEPS = 3
JOIN = m.JoinJob(job_id="job", attempt="a", coordination="daemon", rank_body={})


def new_schedule(number: int, start_step: int = 0, steps: int = 0, **term: Any) -> m.NewSchedule:
    return m.NewSchedule(number=number, start_step=start_step, until=start_step + steps if steps else 0, **term)


class Rank(ScheduleRank):
    """A rank with a feed, as the optimizer connects them."""

    def __init__(self, world: FeedContract, number: int) -> None:
        super().__init__()
        self.number = number
        self.client: Any = FakeClient()
        self.link = HelperLink(WarnOnce(), world.now)
        self.link.client = self.client
        self.link.send_kept(JOIN)
        self.feed = world.make_feed(self)
        self.heard: set[int] = set()

    def run_step(self, step: int) -> None:
        told = self.link.poll()
        self.heard |= {message.number for message in told if isinstance(message, m.NewSchedule)}
        self.feed.step_begin(step, 0.1, told)
        applied = self.switcher.step_begin(step)
        if applied is not None:
            self.link.send_kept(m.ScheduleApplied(number=applied.number, step=step, late=False))


class FeedContract(RuleBasedStateMachine):
    """The promises, and the faults that both feeds have in common, where each rank hears from its host's helper."""

    @initialize()
    def begin(self) -> None:
        logging.getLogger("pfo_fs").setLevel(logging.CRITICAL)
        self.now_s = 1000.0
        self.step = -1
        self.published: list[m.NewSchedule] = []
        self.ranks = [Rank(self, number) for number in range(RANKS)]
        self.mail: list[list[m.ToTraining]] = [[] for _ in range(RANKS)]

    def teardown(self) -> None:
        logging.getLogger("pfo_fs").setLevel(logging.NOTSET)

    def now(self) -> float:
        return self.now_s

    def make_feed(self, rank: Rank) -> ScheduleFeed:
        return ScheduleFeed(rank.number, rank.switcher, monotonic=self.now)

    def readers(self) -> list[int]:
        """The ranks whose helper sends them schedules."""
        return list(range(RANKS))

    def has_heard_what_is_due(self, rank: int) -> bool:
        """Whether this rank can know what it should run."""
        due = [schedule.number for schedule in self.published if schedule.start_step <= self.step]
        return not due or max(due) in self.ranks[rank].heard

    # ---- what happens

    @rule(start_in=st.integers(1, 6), steps=st.sampled_from([0, 0, 5, 9]), by_hand=st.booleans())
    def publish(self, start_in: int, steps: int, by_hand: bool) -> None:
        after = max((one.number for one in self.published if not one.until), default=-1)
        start_step = max(self.step, 0) + start_in
        term: dict[str, Any] = {"after": after, "by_hand": by_hand, "turns": [1, 2, 3, 0]}
        schedule = new_schedule(len(self.published), start_step, steps, **term)
        self.published.append(schedule)
        for rank in self.readers():
            self.mail[rank].append(schedule)

    @rule(lease_s=st.sampled_from([0.0, 0.5, 5.0]))
    def renew_lease(self, lease_s: float) -> None:
        for rank in self.readers():
            self.mail[rank].append(m.PaceLeaseRenewed(lease_s=lease_s))

    @rule(rank=st.integers(0, RANKS - 1), which=st.integers(0, 3), twice=st.booleans())
    def deliver(self, rank: int, which: int, twice: bool) -> None:
        if which < len(self.mail[rank]):
            message = self.mail[rank].pop(which)
            if not self.ranks[rank].client.lost:
                self.ranks[rank].client.inbox.extend([message] * (1 + twice))

    @rule()
    def deliver_all(self) -> None:
        for rank, mail in enumerate(self.mail):
            if not self.ranks[rank].client.lost:
                self.ranks[rank].client.inbox.extend(mail)
            mail.clear()

    @rule(rank=st.integers(0, RANKS - 1), which=st.integers(0, 3))
    def drop(self, rank: int, which: int) -> None:
        if which < len(self.mail[rank]):
            self.mail[rank].pop(which)

    @rule(rank=st.integers(0, RANKS - 1))
    def helper_dies(self, rank: int) -> None:
        self.ranks[rank].client.die()

    @rule(rank=st.integers(0, RANKS - 1), lost=st.booleans())
    def directory_hangs_or_answers(self, rank: int, lost: bool) -> None:
        self.mail[rank].append(m.ClocksHeld(why="lost" if lost else ""))

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]), order=st.permutations(range(RANKS)))
    def run_step(self, seconds: float, order: list[int]) -> None:
        self.now_s += seconds
        self.step += 1
        for number in order:
            rank = self.ranks[number]
            revivals = len(rank.client.told_on_revival)
            rank.run_step(self.step)
            if len(rank.client.told_on_revival) > revivals:
                assert JOIN in rank.client.told_on_revival[-1]
                if self.published and number in self.readers():
                    rank.client.inbox.append(self.published[-1])  # what a new helper reads first

    @rule()
    def heal(self) -> None:
        """Everything is told to all, and time passes: all ranks run the newest schedule, or are at default clocks."""
        for _ in range(3):
            self.run_step(10.0, list(range(RANKS)))  # helpers come back
        for number in self.readers():
            inbox = self.ranks[number].client.inbox
            inbox.extend([*self.published, m.PaceLeaseRenewed(lease_s=0.0)])
        for rank in self.ranks:
            rank.client.inbox.append(m.ClocksHeld())
        for mail in self.mail:
            mail.clear()
        for _ in range(12):
            self.run_step(0.1, list(range(RANKS)))
        if self.published:
            newest = self.published[-1]
            assert {rank.runs for rank in self.ranks} <= {newest.number, newest.after, None}
            if not newest.until and not self.exchange_has_failed():
                assert {rank.runs for rank in self.ranks} == {newest.number}

    def exchange_has_failed(self) -> bool:
        return False

    # ---- what both feeds promise

    @invariant()
    def ranks_are_on_the_same_schedule_or_at_default_clocks(self) -> None:
        informed = [rank for number, rank in enumerate(self.ranks) if self.has_heard_what_is_due(number)]
        assert len({rank.runs for rank in informed} - {None}) <= 1

    @invariant()
    def a_schedule_is_not_followed_after_its_end(self) -> None:
        for rank in self.ranks:
            schedule = self.published[rank.runs] if rank.runs is not None else None
            if schedule is not None and schedule.until:
                late = 0 if schedule.by_hand else self.first_step(schedule.number) - schedule.start_step
                assert self.step < schedule.until + late

    def first_step(self, number: int) -> int:
        return self.published[number].start_step


class HelperFeedMachine(FeedContract):
    """Each rank hears from the helper of its host."""

    @invariant()
    def a_rank_that_knows_of_a_schedule_it_missed_is_at_default_clocks_until_the_next(self) -> None:
        for rank in self.ranks:
            started = [number for number in rank.heard if self.published[number].start_step <= self.step]
            if started:
                to_come = set(range(max(started) + 1, max(rank.heard) + 1))
                assert rank.runs is None or to_come <= rank.heard


class Medium:
    """The exchange between the ranks: packets arrive on all ranks at the same step."""

    def __init__(self) -> None:
        self.outbox: bytes | None = None
        self.arrives: dict[int, bytes] = {}
        self.failed: set[int] = set()


class FakeBroadcaster:
    """One rank's side of the medium."""

    def __init__(self, rank: int, medium: Medium) -> None:
        self.lost = False
        self._rank = rank
        self._medium = medium

    def offer(self, packet: bytes) -> None:
        self._medium.outbox = packet

    def step_begin(self, step: int, iter_time_s: float | None) -> bytes | None:
        medium = self._medium
        if self._rank in medium.failed or (medium.failed and step % FLIGHT_STEPS == 0):
            self.lost = True
        if self.lost:
            return None
        if self._rank == 0 and medium.outbox is not None:
            medium.arrives.setdefault(step + FLIGHT_STEPS, medium.outbox)
            medium.outbox = None
        return medium.arrives.get(step)

    def close(self) -> None:
        self.lost = True


class BroadcastFeedMachine(FeedContract):
    """Rank 0 hears from its helper, and the exchange carries what it hears."""

    @initialize()
    def begin(self) -> None:
        self.medium = Medium()
        super().begin()

    def make_feed(self, rank: Rank) -> ScheduleFeed:
        return broadcast_feed(rank, rank.number, self.medium, monotonic=self.now)

    def readers(self) -> list[int]:
        return [0]

    def has_heard_what_is_due(self, rank: int) -> bool:
        return True

    def exchange_has_failed(self) -> bool:
        return bool(self.medium.failed)

    def first_step(self, number: int) -> int:
        packets = [(step, transport.decode(packet, m.NewSchedule)) for step, packet in self.medium.arrives.items()]
        return min(step for step, schedule in packets if schedule.number == number)

    @precondition(lambda self: self.step > 5)
    @rule(rank=st.integers(0, RANKS - 1))
    def exchange_fails_on_one_rank(self, rank: int) -> None:
        self.medium.failed.add(rank)

    @invariant()
    def after_a_failure_of_the_exchange_all_ranks_end_at_default_clocks(self) -> None:
        for number in self.medium.failed:
            if self.ranks[number].feed.broadcaster.lost:  # type: ignore[attr-defined]
                assert self.ranks[number].runs is None
        if all(rank.feed.broadcaster.lost for rank in self.ranks):  # type: ignore[attr-defined]
            assert {rank.runs for rank in self.ranks} == {None}


CONTRACT = settings(max_examples=70, stateful_step_count=40)
TestHelperFeed = HelperFeedMachine.TestCase
TestHelperFeed.settings = CONTRACT
TestBroadcastFeed = BroadcastFeedMachine.TestCase
TestBroadcastFeed.settings = CONTRACT


# ---- single promises, over both feeds


def broadcast_feed(of: ScheduleRank, rank: int, medium: Medium, **options: Any) -> BroadcastFeed:
    broadcaster: Any = FakeBroadcaster(rank, medium)
    return BroadcastFeed(rank, of.switcher, broadcaster, WarnOnce(), **options)


def step_of(rank: ScheduleRank, feed: ScheduleFeed, step: int, *messages: m.ToTraining) -> int | None:
    """Begins a step in which messages come; returns the schedule that the rank follows."""
    feed.step_begin(step, 0.1, messages)
    rank.switcher.step_begin(step)
    return rank.runs


def test_a_lease_that_ends_takes_all_ranks_off_the_pace_of_a_straggler_at_one_step_and_back() -> None:
    medium, now_s = Medium(), [100.0]
    ranks = [ScheduleRank(), ScheduleRank()]
    feeds = [broadcast_feed(of, rank, medium, monotonic=lambda: now_s[0]) for rank, of in enumerate(ranks)]
    runs: list[list[int | None]] = [[], []]
    told: dict[int, list[m.ToTraining]] = {
        0: [new_schedule(0), m.PaceLeaseRenewed(lease_s=10.0)],
        12: [m.PaceLeaseRenewed(lease_s=60.0)],
    }
    for step in range(20):
        now_s[0] += 2.0
        for rank, of in enumerate(ranks):
            runs[rank].append(step_of(of, feeds[rank], step, *(told.get(step, ()) if rank == 0 else ())))
    assert runs[0] == runs[1]
    assert runs[0] == [None] * 3 + [0] * 5 + [None] * 7 + [0] * 5
    assert [len(rank.said) for rank in ranks] == [1, 0]


def test_a_broadcast_packet_that_is_not_a_schedule_is_one_warning_on_each_rank(
    rank: ScheduleRank, caplog: pytest.LogCaptureFixture
) -> None:
    medium = Medium()
    feed = broadcast_feed(rank, 1, medium)
    for step, packet in enumerate([b"rubbish", transport.encode(new_schedule(2**60)), transport.encode({"type": 1})]):
        medium.arrives[step] = packet
        assert step_of(rank, feed, step) is None
    assert caplog.text.count("a broadcast schedule is dropped") == 1


def test_only_rank_0_offers_what_the_helper_of_its_host_sends_to_all_ranks_there(rank: ScheduleRank) -> None:
    medium = Medium()
    feed = broadcast_feed(rank, 1, medium)
    step_of(rank, feed, 0, new_schedule(0), m.PaceLeaseRenewed(lease_s=1e-9))
    step_of(rank, feed, 1)
    assert medium.outbox is None


def test_a_job_of_one_rank_follows_its_own_helpers_schedules_from_the_step_at_which_they_are_heard(
    rank: ScheduleRank,
) -> None:
    feed = ScheduleFeed(0, rank.switcher, at_once=True)
    assert step_of(rank, feed, 7, new_schedule(3, start_step=50, steps=5)) == 3
    assert [step_of(rank, feed, step) for step in range(8, 14)] == [3] * 4 + [None] * 2


def test_after_a_withdrawal_lower_numbers_are_not_taken_for_missed_ones(rank: ScheduleRank) -> None:
    feed = ScheduleFeed(0, rank.switcher)
    assert step_of(rank, feed, 0, new_schedule(7), new_schedule(9, start_step=5)) is None
    assert ["a schedule after number 7 came too late" in text for text in rank.said] == [True]
    assert step_of(rank, feed, 2, m.SchedulesWithdrawn(), new_schedule(2), new_schedule(3, start_step=4)) == 2
    assert [step_of(rank, feed, step) for step in (3, 4, 5)] == [2, 3, 3]
