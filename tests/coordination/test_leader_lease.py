"""Who leads, decided without a file system and on a virtual clock."""

from __future__ import annotations

import pytest

from pfo_fs.coordination.leader import LeaderLease
from pfo_fs.store import bodies

LEASE_S = 3.0


def leader(generation: int, counter: int, *, stopped: bool = False) -> bodies.DaemonBody:
    return bodies.DaemonBody(
        generation=generation,
        counter=counter,
        host="there",
        pid=1,
        version="1",
        scheduler="Manual",
        interval_s=1,
        stopped=stopped,
    )


def watch(lease: LeaderLease, begin: float, seconds: float, newest: int) -> str:
    """Looks twice a second at a leader that says nothing new; returns the last step."""
    looks = round(2 * seconds)
    steps = [lease.next_step(begin + seconds * look / looks, newest, leader(1, 7)) for look in range(looks + 1)]
    return steps[-1]


def test_a_leader_whose_counter_moves_is_left_alone() -> None:
    lease = LeaderLease(LEASE_S, 0.0)
    for second in range(100):
        assert lease.next_step(float(second), 1, leader(1, second)) == "wait"


@pytest.mark.parametrize(
    ("newest", "heartbeat", "step"),
    [(0, None, "claim"), (1, leader(1, 5, stopped=True), "claim"), (2, leader(1, 5, stopped=True), "wait")],
    ids=["no daemon before", "the leader has resigned", "an older leader has resigned"],
)
def test_a_daemon_claims_at_once_where_nobody_leads(
    newest: int, heartbeat: bodies.DaemonBody | None, step: str
) -> None:
    assert LeaderLease(LEASE_S, 0.0).next_step(0.0, newest, heartbeat) == step


@pytest.mark.parametrize(("silent_s", "step"), [(LEASE_S - 0.1, "wait"), (LEASE_S, "claim")])
def test_a_silent_leader_is_replaced_after_the_lease(silent_s: float, step: str) -> None:
    assert watch(LeaderLease(LEASE_S, 0.0), 10.0, silent_s, 1) == step


def test_a_standby_daemon_that_was_stopped_itself_does_not_count_that_time_as_the_leaders_silence() -> None:
    lease = LeaderLease(LEASE_S, 0.0)
    lease.next_step(0.0, 1, leader(1, 7))
    assert lease.next_step(600.0, 1, leader(1, 7)) == "wait", "its view may be as old as its last look"
    assert lease.next_step(600.5, 1, leader(1, 99)) == "wait"


def test_a_claim_without_a_heartbeat_gets_a_whole_lease_time() -> None:
    lease = LeaderLease(LEASE_S, 0.0)
    lease.next_step(0.0, 1, leader(1, 7))
    assert lease.next_step(LEASE_S, 2, leader(1, 7)) == "wait"
    assert watch(lease, LEASE_S, LEASE_S - 0.5, 2) == "wait"
    assert watch(lease, 2 * LEASE_S - 0.5, 0.5, 2) == "claim"


def test_the_first_heartbeat_after_a_claim_is_due_until_it_is_written() -> None:
    lease = LeaderLease(LEASE_S, 0.0)
    lease.claimed(1)
    assert [lease.next_step(second, 1, None) for second in (0.0, 0.1, 0.2)] == ["beat"] * 3
    lease.beat(0.2)
    assert lease.next_step(0.3, 1, None) == "wait"
    assert lease.next_step(0.2 + lease.beat_interval_s, 1, None) == "beat"


def test_a_leader_steps_down_for_a_newer_generation_only() -> None:
    lease = LeaderLease(LEASE_S, 0.0)
    lease.claimed(2)
    assert lease.next_step(0.0, 1, None) == "beat"
    assert lease.next_step(0.0, 3, None) == "step down"


def test_silence_during_an_outage_of_the_directory_does_not_count() -> None:
    lease = LeaderLease(LEASE_S, 0.0)
    lease.next_step(0.0, 1, leader(1, 7))
    lease.forget_silence(100.0)
    assert lease.next_step(100.0, 1, leader(1, 7)) == "wait"


@pytest.mark.parametrize("lease_s", [0.2, 1.0, 3.0, 600.0])
def test_a_leader_beats_three_times_in_a_lease_and_once_a_second_at_least(lease_s: float) -> None:
    assert LeaderLease(lease_s, 0.0).beat_interval_s <= min(1.0, lease_s / 3)
