"""Daemons that lead, resign and wake up, in a real directory and on a virtual clock."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
from clock import Clock
from jobs import daemon_body, instead_of, leader_body

from pfo_fs.coordination.leader import Leader
from pfo_fs.errors import StoreError, StoreUnavailable
from pfo_fs.store import Files, SharedDirectory, bodies

LEASE_S = 3.0


@pytest.fixture
def shared(tmp_path: Path) -> SharedDirectory:
    return SharedDirectory.open(tmp_path / "pfo", create=True)


def daemon(shared: SharedDirectory, clock: Clock, lease_s: float = LEASE_S, scheduler: str = "Manual") -> Leader:
    return Leader(SharedDirectory(Files(shared.files.root)), lease_s, scheduler, 1.0, clock)


def look(leader: Leader, clock: Clock, seconds: float) -> int:
    """Polls for a while; returns the generation in which it leads then, 0 where it stands by."""
    end = clock.now + seconds
    while clock.now < end:
        leader.poll()
        clock.now += 0.5
    return leader.leadership.generation if leader.leadership is not None else 0


def leads_after(leader: Leader, clock: Clock, *gaps_s: float) -> bool:
    for gap_s in gaps_s:
        leader.poll()
        clock.now += gap_s
    leader.poll()
    return leader.leadership is not None


def test_a_daemon_that_claims_leads_even_if_its_first_heartbeat_is_written_later(
    shared: SharedDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = Mock(side_effect=StoreUnavailable(errno.EIO, "no answer"))
    leader = daemon(shared, clock)
    with monkeypatch.context() as outage:
        instead_of(outage, "write", bodies.DaemonBody, fails)
        leader.poll()
        for _ in range(3):
            with pytest.raises(StoreError):
                leader.poll()
    assert look(leader, clock, 0.5) == shared.read_daemon().generation == 1


def test_a_leader_that_resigns_is_replaced_at_once_and_one_that_was_replaced_says_no_goodbye(
    shared: SharedDirectory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = daemon(shared, clock), daemon(shared, clock, scheduler="PointSolution")
    assert look(first, clock, 1) == 1
    assert look(second, clock, 1) == 0
    assert caplog.text.count("start both with the same scheduler") == 1
    first.resign()
    assert shared.read_daemon().stopped
    assert look(second, clock, 1) == 2
    assert shared.leaders.claim(leader_body(3))
    second.resign()
    assert not shared.read_daemon().stopped


def test_a_leader_whose_counter_moves_is_left_alone(shared: SharedDirectory, clock: Clock) -> None:
    first, second = daemon(shared, clock), daemon(shared, clock)
    for _ in range(50):
        look(first, clock, 0.5)
        assert look(second, clock, 0.5) == 0


@pytest.mark.parametrize(
    ("gaps_s", "leads"),
    [
        ([0.5] * 5, False),
        ([0.5] * 6, True),
        ([600.0], False),  # it was stopped itself: its view may be as old as its last look
        ([600.0, 0.5, 0.5], False),
    ],
)
def test_silent_leaders_lose_the_lease(shared: SharedDirectory, clock: Clock, gaps_s: list[float], leads: bool) -> None:
    assert shared.leaders.claim(leader_body())
    shared.write(daemon_body(7))
    assert leads_after(daemon(shared, clock), clock, *gaps_s) == leads


def test_what_shows_life_or_hides_it_restarts_the_lease(shared: SharedDirectory, clock: Clock) -> None:
    assert shared.leaders.claim(leader_body())
    shared.write(daemon_body(7))
    standby = daemon(shared, clock)
    almost = [0.5] * 5
    assert not leads_after(standby, clock, *almost)
    shared.write(daemon_body(8))
    assert not leads_after(standby, clock, *almost), "a heartbeat"
    standby.forget_silence()
    assert not leads_after(standby, clock, *almost), "an outage of the directory"
    assert shared.leaders.claim(leader_body(2))
    shared.write(daemon_body(9, stopped=True))
    assert not leads_after(standby, clock, *almost), "a claim without a heartbeat, and the goodbye of an older leader"
    assert leads_after(standby, clock, 0.5)


@pytest.mark.parametrize("lease_s", [0.2, 1.0, 3.0, 600.0])
def test_a_leader_beats_thrice_a_lease_and_each_second(shared: SharedDirectory, clock: Clock, lease_s: float) -> None:
    leader = daemon(shared, clock, lease_s)
    leader.poll()
    assert leader.next_look_at <= clock.now, "the first heartbeat is due at once"
    leader.poll()
    assert clock.now < leader.next_look_at <= clock.now + min(1.0, lease_s / 3)
