"""Which changes are made, and what is made of what they show."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.doctor.settling import Settling, chain, spread_targets

CLOCKS = st.lists(st.integers(200, 3000), min_size=2, max_size=60, unique=True)


@given(clocks_mhz=CLOCKS, count=st.integers(2, 20))
def test_targets_are_clocks_on_offer_with_the_lowest_and_the_highest(clocks_mhz: list[int], count: int) -> None:
    targets = spread_targets(clocks_mhz, count)
    assert set(targets) <= set(clocks_mhz)
    assert len(targets) == len(set(targets)) == min(count, len(clocks_mhz))
    assert targets[0] == min(clocks_mhz)
    assert targets[-1] == max(clocks_mhz)


@given(clocks_mhz=CLOCKS, rounds=st.integers(1, 5))
def test_each_target_comes_once_per_round_and_never_after_itself(clocks_mhz: list[int], rounds: int) -> None:
    order = chain(clocks_mhz, rounds)
    size = len(clocks_mhz)
    for number in range(rounds):
        assert sorted(order[number * size : (number + 1) * size]) == sorted(clocks_mhz)
    assert all(before != after for before, after in pairwise(order))


def test_a_target_is_reached_from_different_clocks() -> None:
    order = chain(range(200, 1400, 100), 4)
    for target in range(200, 1400, 100):
        assert len({before for before, after in pairwise(order) if after == target}) > 1


def test_the_latency_of_a_clock_is_the_median_and_never_negative() -> None:
    seen = Settling(samples_s={900: [0.002, 0.09, 0.004], 300: [-0.001]})
    assert seen.latency_s == {300: 0.0, 900: 0.004}


def test_how_steady_changes_are_is_known_only_of_clocks_that_were_set_more_than_once() -> None:
    assert Settling(requested_s={900: [0.01]}).unsteady_s is None
    assert Settling(requested_s={900: [0.01, 0.012, 0.017], 300: [0.5]}).unsteady_s == pytest.approx(0.007 / 3)
