"""How long calls take and wait, and how many a GPU may make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.clocks.driver_calls import BUSY_SHARE, DriverCalls

S, MS = 1_000_000_000, 1_000_000
CALL_NS = 5 * MS


def calls_of(gpus: int = 1, calls_per_s: float | None = None) -> DriverCalls:
    calls = DriverCalls(CALL_NS, calls_per_s)
    calls.gpus = gpus
    return calls


def downs_in(calls: DriverCalls, seconds: int) -> int:
    """The number of changes down and up again that are made within some seconds, if one is wanted all the time."""
    made = 0
    for ms in range(seconds * 1000):
        if calls.allows_down(100 * S + ms * MS):
            calls.called(CALL_NS)
            calls.called(CALL_NS)
            made += 1
    return made


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_the_calls_of_all_gpus_keep_the_driver_busy_for_a_share_of_the_time_at_most(gpus: int) -> None:
    made = gpus * 2 * downs_in(calls_of(gpus), 20)
    room = BUSY_SHARE * 20 * S / CALL_NS
    assert 0.9 * room <= made <= room + 8 * gpus


def test_a_limit_that_is_given_counts_for_all_gpus_of_the_node() -> None:
    assert 2 * downs_in(calls_of(4, 20.0), 20) == pytest.approx(20 / 4 * 20 + 8, abs=3)


def test_after_a_pause_only_some_calls_are_saved_up() -> None:
    calls = calls_of(calls_per_s=1.0)
    made = 0
    while calls.allows_down(1000 * S):
        calls.called(CALL_NS)
        calls.called(CALL_NS)
        made += 1
    assert made == 4


def test_a_budget_that_is_used_up_recovers() -> None:
    calls = calls_of(calls_per_s=1.0)
    calls.allows_down(0)
    for _ in range(20):
        calls.called(CALL_NS)
    assert not calls.allows_down(S)
    assert calls.allows_down(30 * S)


@given(
    st.one_of(st.none(), st.floats(min_value=0, allow_nan=False, exclude_min=True)),
    st.integers(0, 1 << 40),
    st.integers(1, 512),
)
def test_no_values_lead_to_an_error_or_to_a_budget_that_stays_empty(
    calls_per_s: float | None, call_ns: int, gpus: int
) -> None:
    calls = DriverCalls(call_ns, calls_per_s)
    calls.gpus = gpus
    calls.allows_down(S)
    calls.called(call_ns)
    calls.allows_down(S)
    assert calls.allows_down(1 << 200) or (calls_per_s or 1) < 1e-30


def test_a_call_takes_the_median_of_the_last_ones_and_waits_as_most_of_them_did() -> None:
    calls = DriverCalls(99 * MS)
    assert calls.call_ns == 99 * MS
    for took_ns in (4, 5, 30, 5, 4):
        calls.called(took_ns * MS, 10 * MS)
    assert calls.call_ns == 5 * MS
    assert calls.made == 5
    assert calls.queue_ns == 10 * MS
    for _ in range(95):
        calls.called(5 * MS, 0)
    assert calls.queue_ns == 0
