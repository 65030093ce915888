"""How long a new job waits for a daemon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.coordination.claim_wait import LONGEST_S, SILENT_S, ClaimWait
from pfo_fs.store import bodies


def heartbeat(counter: int, *, stopped: bool = False, interval_s: float = 1.0) -> bodies.DaemonBody:
    return bodies.DaemonBody(
        generation=1,
        counter=counter,
        host="there",
        pid=1,
        version="1",
        scheduler="Manual",
        interval_s=interval_s,
        stopped=stopped,
    )


def test_without_a_daemon_a_job_does_not_wait() -> None:
    assert ClaimWait(0.0).look(0.0, None, claimed=False) == "alone"
    assert ClaimWait(0.0).look(0.0, heartbeat(1, stopped=True), claimed=False) == "alone"


def test_a_job_that_is_claimed_does_not_wait_on() -> None:
    assert ClaimWait(0.0).look(0.0, heartbeat(1), claimed=True) == "claimed"


def test_a_busy_daemon_is_waited_for_as_long_as_its_heartbeat_moves() -> None:
    wait = ClaimWait(0.0)
    for second in range(int(LONGEST_S)):
        assert wait.look(float(second), heartbeat(second), claimed=False) == "wait"
    assert wait.look(LONGEST_S, heartbeat(99), claimed=False) == "alone"


@given(st.floats(min_value=1e-300, max_value=1.7e308))
def test_a_heartbeat_that_stands_still_is_not_waited_for_whatever_interval_it_names(interval_s: float) -> None:
    wait = ClaimWait(0.0)
    assert wait.look(0.0, heartbeat(1, interval_s=interval_s), claimed=False) == "wait"
    assert wait.look(SILENT_S, heartbeat(1, interval_s=interval_s), claimed=False) == "alone"


@given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), min_size=1, max_size=200))
def test_every_wait_ends(looks: list[tuple[float, bool]]) -> None:
    wait, now, counter = ClaimWait(0.0), 0.0, 0
    for pause_s, moves in looks:
        now, counter = now + pause_s, counter + moves
        if wait.look(now, heartbeat(counter), claimed=False) == "alone":
            return
        assert now < LONGEST_S
