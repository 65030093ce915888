"""Probabilities of latencies: of one clock, and of clocks that may be alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.clocks.latency_estimate import GRID_NS, LatencyEstimates

MS = 1_000_000


def about(ns: float, error_ns: float) -> list[float]:
    """How unlikely each latency is if one was measured with an error."""
    return [0.5 * ((at_ns - ns) / error_ns) ** 2 for at_ns in GRID_NS]


def measured(ns_of: dict[int, float], error_ns: float = MS, times: int = 3) -> LatencyEstimates:
    """Estimates after each of these latencies was measured so many times."""
    estimates = LatencyEstimates({})
    for mhz, ns in ns_of.items():
        for _ in range(times):
            estimates.add(mhz, about(ns, error_ns), is_first=True)
    return estimates


@given(st.floats(0, 190 * MS), st.floats(0.3 * MS, 5 * MS))
def test_a_measured_latency_is_within_its_errors(ns: float, error_ns: float) -> None:
    found = measured({1200: ns}, error_ns, times=9).of(1200)
    assert found.low_ns <= found.middle_ns <= found.high_ns
    assert abs(found.middle_ns - ns) <= 4 * error_ns / 9**0.5 + 2 * MS


def test_a_clock_is_taken_to_be_like_the_others_only_where_these_are_alike() -> None:
    alike = measured(dict.fromkeys(range(900, 1200, 60), 10 * MS))
    assert alike.are_alike
    assert alike.of(1300).middle_ns == pytest.approx(10 * MS, abs=MS)
    assert alike.of(1300).error_ns < 2 * MS
    different = measured({mhz: 10 * MS + 20 * MS * number for number, mhz in enumerate(range(900, 1200, 60))})
    assert not different.are_alike
    assert different.of(1300).error_ns > 20 * MS


def test_one_clock_that_differs_keeps_its_own_latency() -> None:
    estimates = measured(dict.fromkeys(range(900, 1200, 60), 10 * MS) | {1300: 75 * MS}, error_ns=2 * MS)
    assert estimates.of(1300).middle_ns == pytest.approx(75 * MS, abs=5 * MS)


def test_that_a_clock_had_acted_before_only_says_that_it_is_not_later() -> None:
    estimates = LatencyEstimates({})
    before = estimates.of(1200)
    for _ in range(9):
        estimates.add(1200, [0.0 if at_ns <= 8 * MS else 3.0 for at_ns in GRID_NS], is_first=True)
    after = estimates.of(1200)
    assert after.high_ns < 8 * MS < before.high_ns
    assert after.low_ns == pytest.approx(before.low_ns, abs=MS)


def test_old_changes_are_forgotten() -> None:
    estimates = measured({1200: 5 * MS}, times=20)
    for _ in range(120):
        estimates.add(1200, about(30 * MS, MS), is_first=True)
    assert estimates.of(1200).middle_ns == pytest.approx(30 * MS, abs=MS)


@given(st.lists(st.tuples(st.sampled_from([900, 1200, 1410]), st.floats(-1e9, 1e9), st.booleans()), max_size=30))
def test_whatever_is_added_latencies_stay_within_the_grid(added: list[tuple[int, float, bool]]) -> None:
    estimates = LatencyEstimates({900: 10 * MS})
    for mhz, ns, is_first in added:
        estimates.add(mhz, [min(8.0, cost) for cost in about(ns, MS)], is_first=is_first)
    for mhz in (900, 1200, 1410, 600):
        found = estimates.of(mhz)
        assert 0 <= found.low_ns <= found.middle_ns <= found.high_ns <= GRID_NS[-1]


def test_a_given_latency_holds_until_the_clock_is_observed() -> None:
    estimates = LatencyEstimates({900: 12_345_678})
    assert estimates.of(900).middle_ns == 12_345_678
    assert estimates.is_given(900)
    estimates.add(900, about(20 * MS, MS), is_first=True)
    assert not estimates.is_given(900)
