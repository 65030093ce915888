"""How long changes of the clock take, learned from calls and from instructions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.clocks.switch_latency import SETTLED_NS, Ran, SwitchLatency

MS = 1_000_000
CALL_NS = 5 * MS
FAST_NS, SLOW_NS = 100 * MS, 140 * MS  # at 1410 and at 900 MHz


def settled(**options: Any) -> SwitchLatency:
    """A latency that knows what the instruction 0 takes at 1410 and at 900 MHz, and what a call takes."""
    latency = SwitchLatency(top_mhz=1410, **options)
    for _ in range(5):
        latency.called(CALL_NS)
        latency.ran_steadily(Ran(0, 1410, FAST_NS))
        latency.ran_steadily(Ran(0, 900, SLOW_NS))
    return latency


def took(late_ns: float, own_ns: int, other_ns: int) -> int:
    """The duration of an instruction whose clock changes this long after its begin."""
    return round(late_ns + (1 - late_ns / other_ns) * own_ns)


@given(st.integers(0, 85 * MS), st.booleans())
def test_an_instruction_shows_when_its_clock_acted(acts_ns: int, up: bool) -> None:
    latency = settled()
    own_mhz, other_mhz, own_ns, other_ns = (1410, 900, FAST_NS, SLOW_NS) if up else (900, 1410, SLOW_NS, FAST_NS)
    for _ in range(4):
        latency.ran_first(Ran(0, own_mhz, took(acts_ns, own_ns, other_ns)), other_mhz, 0)
    assert 1e9 * latency.learned_s[own_mhz] == pytest.approx(max(0, acts_ns - CALL_NS), abs=1.5 * MS)
    assert latency.lead_ns(own_mhz) <= max(CALL_NS, acts_ns) + MS <= latency.lead_ns(own_mhz, up=True) + 2 * MS


def test_a_clock_that_acts_only_in_the_second_instruction_is_learned_from_that() -> None:
    latency = settled()
    for _ in range(4):
        latency.ran_first(Ran(0, 900, FAST_NS), 1410, 0)
        latency.ran_on(Ran(0, 900, took(30 * MS, SLOW_NS, FAST_NS)), FAST_NS)
    assert 1e9 * latency.learned_s[900] == pytest.approx(FAST_NS + 30 * MS - CALL_NS, rel=0.01)


def test_an_instruction_at_a_third_clock_teaches_nothing_of_the_change_before() -> None:
    latency = settled()
    for _ in range(5):
        latency.ran_steadily(Ran(0, 1200, 120 * MS))
    latency.ran_first(Ran(0, 900, FAST_NS), 1410, 0)
    latency.ran_on(Ran(0, 1200, FAST_NS), 10 * MS)
    assert latency._estimates.clocks() == [900]


def test_a_request_that_came_early_shows_only_that_the_clock_acts_no_later() -> None:
    latency = settled()
    for _ in range(9):
        latency.ran_first(Ran(0, 900, SLOW_NS), 1410, 20 * MS)
        latency.ran_on(Ran(0, 900, SLOW_NS), 200 * MS)
    assert not latency.knows(900)
    assert 1e9 * latency.learned_s[900] <= 20 * MS - CALL_NS


def noisy(acts_ns: int, changes: int) -> SwitchLatency:
    """What is learned if durations scatter by 2 %, of a clock that acts this long after the begin."""
    latency, rnd = SwitchLatency(call_ns=CALL_NS, top_mhz=1410), random.Random(1)
    for _ in range(40):
        for mhz, usual_ns in ((1410, FAST_NS), (1305, round(1.15 * FAST_NS))):
            latency.ran_steadily(Ran(0, mhz, round(usual_ns * rnd.gauss(1, 0.02))))
    for _ in range(changes):
        took_ns = took(acts_ns, round(1.15 * FAST_NS), FAST_NS)
        latency.ran_first(Ran(0, 1305, round(took_ns * rnd.gauss(1, 0.02))), 1410, 0)
    return latency


@pytest.mark.parametrize("acts_ns", [CALL_NS + 2 * MS, 70 * MS])
def test_where_durations_scatter_a_latency_is_known_roughly_and_then_the_longest_likely_one(acts_ns: int) -> None:
    latency = noisy(acts_ns, 12)
    assert not latency.knows(1305)
    assert 1e9 * latency.learned_s[1305] >= latency.settle_ns(1305)
    assert 1e9 * latency.learned_s[1305] == pytest.approx(acts_ns - CALL_NS, abs=0.25 * FAST_NS)


def test_a_latency_that_few_changes_have_shown_is_not_known_roughly() -> None:
    assert not noisy(CALL_NS, 2).learned_s


def test_a_change_in_between_spoils_the_measurement() -> None:
    latency = settled()
    for _ in range(9):
        latency.ran_first(Ran(0, 900, FAST_NS), 1410, 0)
        latency.disturbed()
        latency.ran_on(Ran(0, 900, took(30 * MS, SLOW_NS, FAST_NS)), FAST_NS)
    assert not latency.learned_s


def test_an_instruction_that_the_clock_hardly_changes_shows_nothing() -> None:
    latency = SwitchLatency(top_mhz=1410)
    for _ in range(9):
        latency.ran_steadily(Ran(0, 1410, FAST_NS))
        latency.ran_steadily(Ran(0, 900, FAST_NS + MS))
        latency.ran_first(Ran(0, 900, FAST_NS), 1410, 0)
    assert not latency.learned_s


def test_the_call_of_the_request_counts_and_not_a_slow_one_that_came_later() -> None:
    latency = settled()
    for _ in range(4):
        latency.called(CALL_NS)
        call = latency.calls_made
        latency.called(60 * MS)
        latency.ran_first(Ran(0, 900, took(20 * MS, SLOW_NS, FAST_NS)), 1410, 0, call)
    assert 1e9 * latency.learned_s[900] == pytest.approx(20 * MS - CALL_NS, abs=MS)


@pytest.mark.parametrize(("own_ms", "last_ms"), [(CALL_NS // MS, 60), (60, CALL_NS // MS)])
def test_a_clock_has_acted_by_the_call_of_its_own_request_and_not_by_the_last_one(own_ms: int, last_ms: int) -> None:
    latency = settled(settle_ns={900: 2 * MS})
    latency.called(own_ms * MS)
    call = latency.calls_made
    before_ns = latency.settled_ns(900, call)
    latency.called(last_ms * MS)
    assert latency.settled_ns(900, call) == before_ns
    assert latency.settled_ns(900, call) >= own_ms * MS
    assert latency.settled_ns(900, latency.calls_made + 1) == SETTLED_NS, "that call has not returned"


def test_a_clock_has_not_acted_before_its_call_returns_however_long_that_takes() -> None:
    latency = settled()
    latency.called(3 * SETTLED_NS)
    assert latency.settled_ns(900, latency.calls_made) >= 3 * SETTLED_NS


@pytest.mark.parametrize(
    ("acts_ns", "low_ns", "high_ns"), [(0, 0, 2 * MS), (10 * MS, 8 * MS, 12 * MS), (70 * MS, 30 * MS, 999 * MS)]
)
def test_an_instruction_in_which_the_next_clock_was_requested_shows_whether_it_acted_before_the_end(
    acts_ns: int, low_ns: int, high_ns: int
) -> None:
    latency = settled()
    for _ in range(20):
        began_before_ns = SLOW_NS - 40 * MS  # the request comes 40 ms before the instruction would end
        took_ns = took(min(began_before_ns + CALL_NS + acts_ns, SLOW_NS), FAST_NS, SLOW_NS)
        latency.ran_before(Ran(0, 1410, took_ns), 900, -began_before_ns, 0)
    assert low_ns <= latency.settle_ns(1410) <= high_ns


def test_an_instruction_whose_call_has_not_returned_teaches_nothing() -> None:
    latency = settled()
    latency.ran_first(Ran(0, 900, SLOW_NS), 1410, 0, latency.calls_made + 1)
    assert latency._estimates.changes(900) == 0


def test_a_latency_that_seems_sure_is_corrected_by_instructions_that_take_as_long_as_at_the_clock_before() -> None:
    latency = settled(settle_ns={900: MS})
    for _ in range(40):
        latency.ran_first(Ran(0, 900, FAST_NS), 1410, 20 * MS)
    assert latency.lead_ns(900) > 20 * MS


def test_an_outlier_does_not_move_what_is_learned() -> None:
    latency = settled()
    for acts_ns in (20, 20, 20, 80, 20, 20):
        latency.ran_first(Ran(0, 900, took(acts_ns * MS, SLOW_NS, FAST_NS)), 1410, 0)
    assert 1e9 * latency.learned_s[900] == pytest.approx(15 * MS, rel=0.01)


def test_what_was_learned_while_the_gpu_was_throttled_is_replaced_by_later_measurements() -> None:
    latency = settled()
    for acts_ns in (5,) * 9 + (30,) * 60:
        latency.ran_first(Ran(0, 900, took(acts_ns * MS, SLOW_NS, FAST_NS)), 1410, 0)
    assert 1e9 * latency.learned_s[900] == pytest.approx(25 * MS, abs=2 * MS)


@given(st.lists(st.tuples(st.integers(-(10**12), 10**12), st.integers(0, 10**12)), max_size=20))
def test_whatever_is_observed_a_latency_is_neither_negative_nor_endless(observed: list[tuple[int, int]]) -> None:
    latency = settled()
    for lead_ns, took_ns in observed:
        latency.ran_first(Ran(0, 900, took_ns), 1410, lead_ns)
        latency.ran_on(Ran(0, 900, took_ns), lead_ns + took_ns)
        latency.ran_steadily(Ran(0, 900, took_ns))
    assert all(0 <= 1e9 * settle_s <= SETTLED_NS for settle_s in latency.learned_s.values())
    assert CALL_NS <= latency.lead_ns(900) <= CALL_NS + SETTLED_NS


def test_a_call_takes_the_median_of_the_last_ones_and_waits_as_most_of_them_did() -> None:
    latency = SwitchLatency(call_ns=99 * MS)
    assert latency.call_ns == 99 * MS
    for took_ns in (4, 5, 30, 5, 4):
        latency.called(took_ns * MS, 10 * MS)
    assert latency.call_ns == 5 * MS
    assert latency.calls_made == 5
    assert latency.queue_ns == 10 * MS
    for _ in range(95):
        latency.called(5 * MS, 0)
    assert latency.queue_ns == 0


def test_an_unknown_clock_may_act_as_late_or_as_soon_as_the_others() -> None:
    latency = SwitchLatency({900: 10 * MS, 1200: 30 * MS}, CALL_NS, 1410)
    assert latency.lead_ns(915) < CALL_NS + 15 * MS
    assert latency.lead_ns(915, up=True) > CALL_NS + 25 * MS
    assert not latency.knows(915)


def test_where_all_clocks_act_after_the_same_time_a_further_one_is_known_without_samples() -> None:
    latency = SwitchLatency(dict.fromkeys(range(900, 1200, 30), 10 * MS), CALL_NS, 1410)
    assert latency.knows(915)
    assert not latency.explores(915)
    assert latency.settle_ns(915) == pytest.approx(10 * MS, rel=0.01)


def test_a_sample_of_two_clocks_that_hardly_differ_counts_little() -> None:
    latency = settled()
    for _ in range(5):
        latency.ran_steadily(Ran(1, 1410, FAST_NS))
        latency.ran_steadily(Ran(1, 900, round(1.03 * FAST_NS)))
    for _ in range(3):
        latency.ran_first(Ran(0, 900, took(20 * MS, SLOW_NS, FAST_NS)), 1410, 0)
        latency.ran_first(Ran(1, 900, took(80 * MS, round(1.03 * FAST_NS), FAST_NS)), 1410, 0)
    assert 1e9 * latency.learned_s[900] == pytest.approx(15 * MS, abs=MS)


def test_the_duration_at_a_clock_between_others_need_not_be_known() -> None:
    latency = settled()
    on_line = {mhz: (1 / mhz - 1 / 1410) / (1 / 900 - 1 / 1410) for mhz in (1050, 1200)}
    ns_of = {mhz: round(FAST_NS + (SLOW_NS - FAST_NS) * share) for mhz, share in on_line.items()}
    for _ in range(12):
        latency.ran_steadily(Ran(0, 1050, ns_of[1050]))
        latency.ran_first(Ran(0, 1200, took(25 * MS, ns_of[1200], SLOW_NS)), 900, 0)
    assert latency.settle_ns(1200) == pytest.approx(20 * MS, abs=3 * MS)


def test_a_clock_that_changes_nothing_under_a_power_limit_is_not_taken_for_one_that_never_acts() -> None:
    latency = settled()
    for _ in range(12):
        latency.ran_steadily(Ran(0, 1100, round(1.08 * FAST_NS)))
        latency.ran_first(Ran(0, 1300, FAST_NS), 1410, 0)
        latency.ran_on(Ran(0, 1300, FAST_NS), FAST_NS)
    assert latency.settle_ns(1300) < 20 * MS


def test_an_unknown_clock_is_explored_a_few_times_only() -> None:
    latency = SwitchLatency({900: 10 * MS}, CALL_NS, 1410)
    tries = 0
    while latency.explores(915) and tries < 100:
        latency.tried(915)
        tries += 1
    assert 1 <= tries < 20
    assert not latency.explores(900)


def test_the_wait_for_other_gpus_is_not_learned_as_the_latency_of_a_clock() -> None:
    latency = settled()
    for waited_ms in (0, 10, 20, 30, 15):
        latency.called(CALL_NS, waited_ms * MS)
        acts_ns = waited_ms * MS + CALL_NS + 12 * MS
        latency.ran_first(Ran(0, 900, took(acts_ns, SLOW_NS, FAST_NS)), 1410, 0)
    assert latency.learned_s[900] == pytest.approx(0.012, abs=0.0002)


def test_the_default_clock_acts_like_the_highest_and_is_not_explored() -> None:
    latency = SwitchLatency({1410: 9 * MS}, CALL_NS, top_mhz=1410)
    assert latency.knows(0)
    assert latency.lead_ns(0) == latency.lead_ns(1410)
    assert not SwitchLatency(None, CALL_NS, top_mhz=1410).explores(0)


def test_a_usual_duration_that_is_a_little_wrong_is_not_learned_as_a_long_latency() -> None:
    latency = settled()
    for _ in range(5):
        latency.ran_steadily(Ran(1, 1395, round(1.01 * FAST_NS)))
        latency.ran_steadily(Ran(1, 1410, FAST_NS))
    for _ in range(60):  # 0.5 % shorter than usual: half of what the change makes of it
        latency.ran_first(Ran(1, 1395, round(1.005 * FAST_NS)), 1410, 10 * MS)
    assert latency.settle_ns(1395) < 35 * MS


@pytest.mark.parametrize("up", [True, False])
def test_of_gpus_that_compute_together_the_first_one_slows_down_and_the_last_one_speeds_up(up: bool) -> None:
    latency = SwitchLatency(top_mhz=1410, tp_degree=8)
    latency.gpus = 8
    for _ in range(5):
        latency.called(CALL_NS, 7 * CALL_NS)  # the last one of eight
        latency.ran_steadily(Ran(0, 1410, FAST_NS))
        latency.ran_steadily(Ran(0, 900, SLOW_NS))
    acts_ns = (8 * CALL_NS if up else CALL_NS) + 20 * MS
    own_mhz, other_mhz, own_ns, other_ns = (1410, 900, FAST_NS, SLOW_NS) if up else (900, 1410, SLOW_NS, FAST_NS)
    for _ in range(6):
        latency.ran_first(Ran(0, own_mhz, took(acts_ns, own_ns, other_ns)), other_mhz, 0)
    assert latency.settle_ns(own_mhz) == pytest.approx(20 * MS, abs=1.5 * MS)


def test_the_time_for_which_the_next_clock_has_acted_before_the_end_is_counted() -> None:
    latency = settled()
    early_ns = 10 * MS
    for _ in range(20):
        took_ns = took(20 * MS, SLOW_NS, FAST_NS) - round(early_ns * (SLOW_NS / FAST_NS - 1))
        latency.ran_first(Ran(0, 900, took_ns, 1410, early_ns, MS), 1410, 0)
    assert abs(latency.settle_ns(900) - (20 * MS - latency.call_ns)) < 2 * MS
