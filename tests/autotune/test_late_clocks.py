"""How late clocks act, from what instructions take after changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.autotune.late_clocks import LateClocks
from pfo_fs.autotune.samples import Point

F = (0, "forward")
TIMES_S = {1410: 0.10, 1200: 0.115, 900: 0.15}


def points(times_s: dict[int, float]) -> dict[tuple[int, str], dict[int, Point]]:
    found = {mhz: Point() for mhz in times_s}
    for mhz, time_s in times_s.items():
        found[mhz].add_times(50, time_s, 0.0002 * time_s)
    return {F: found}


def after_a_change(from_mhz: int, mhz: int, latency_s: float) -> float:
    share = min(1.0, latency_s / TIMES_S[from_mhz])
    return share * TIMES_S[from_mhz] + (1 - share) * TIMES_S[mhz]


def test_nothing_is_known_at_first() -> None:
    assert LateClocks().latency_s({}) == pytest.approx(0.01, rel=0.1)


@settings(max_examples=30)
@given(st.floats(0.0, 0.09), st.integers(0, 10**9))
def test_the_latency_is_learned_from_changes_up_and_down(latency_s: float, seed: int) -> None:
    rng, late = random.Random(seed), LateClocks()
    for from_mhz, mhz in ((1410, 900), (900, 1200), (1200, 900), (900, 1410)) * 4:
        error_s = 0.0004
        late.add(F, from_mhz, mhz, 5, after_a_change(from_mhz, mhz, latency_s) + rng.gauss(0, error_s), error_s)
    assert late.latency_s(points(TIMES_S)) == pytest.approx(latency_s, abs=0.003)


def test_clocks_at_which_an_instruction_takes_the_same_time_tell_nothing() -> None:
    late = LateClocks()
    late.add(F, 1410, 1395, 100, 0.1, 1e-5)
    known = points({1410: 0.1, 1395: 0.1002})
    assert late.latency_s(known) == LateClocks().latency_s(known)


def test_a_duration_with_another_cause_does_not_count_for_much() -> None:
    late = LateClocks()
    for _ in range(10):
        late.add(F, 1410, 900, 5, after_a_change(1410, 900, 0.02), 0.0004)
        late.add(F, 900, 1410, 5, after_a_change(900, 1410, 0.02), 0.0004)
    late.add(F, 1410, 1200, 1, 0.4, 0.0004)
    assert late.latency_s(points(TIMES_S)) == pytest.approx(0.02, abs=0.002)
