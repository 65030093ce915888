"""How many calls a GPU may make."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.clocks.call_budget import BUSY_SHARE, CallBudget

S = 1_000_000_000
CALL_NS = 5_000_000


def downs_in(budget: CallBudget, seconds: int, call_ns: int, gpus: int) -> int:
    """The number of changes down and up again that are made within some seconds, if one is wanted all the time."""
    made = 0
    for ms in range(seconds * 1000):
        if budget.allows_down(100 * S + ms * 1_000_000, call_ns, gpus):
            budget.called()
            budget.called()
            made += 1
    return made


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_the_calls_of_all_gpus_keep_the_driver_busy_for_a_share_of_the_time_at_most(gpus: int) -> None:
    made = gpus * 2 * downs_in(CallBudget(), 20, CALL_NS, gpus)
    room = BUSY_SHARE * 20 * S / CALL_NS
    assert 0.9 * room <= made <= room + 8 * gpus


def test_a_limit_that_is_given_counts_for_all_gpus_of_the_node() -> None:
    assert 2 * downs_in(CallBudget(20.0), 20, CALL_NS, 4) == pytest.approx(20 / 4 * 20 + 8, abs=3)


def test_after_a_pause_only_some_calls_are_saved_up() -> None:
    budget = CallBudget(1.0)
    made = 0
    while budget.allows_down(1000 * S, CALL_NS, 1):
        budget.called()
        budget.called()
        made += 1
    assert made == 4


def test_a_budget_that_is_used_up_recovers() -> None:
    budget = CallBudget(1.0)
    budget.allows_down(0, CALL_NS, 1)
    for _ in range(20):
        budget.called()
    assert not budget.allows_down(S, CALL_NS, 1)
    assert budget.allows_down(30 * S, CALL_NS, 1)


@given(
    st.one_of(st.none(), st.floats(min_value=0, allow_nan=False, exclude_min=True)),
    st.integers(0, 1 << 40),
    st.integers(1, 512),
)
def test_no_values_lead_to_an_error_or_to_a_budget_that_stays_empty(
    calls_per_s: float | None, call_ns: int, gpus: int
) -> None:
    budget = CallBudget(calls_per_s)
    budget.allows_down(S, call_ns, gpus)
    budget.called()
    budget.allows_down(S, call_ns, gpus)
    assert not math.isnan(budget._saved)
    assert budget.allows_down(1 << 200, call_ns, gpus) or (calls_per_s or 1) < 1e-30
