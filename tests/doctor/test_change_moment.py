"""When a change of the clock acts, found from the durations of kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.doctor.change_moment import Change, Kernel, find_change

REQUESTED_S = 100.06
BEGAN_S = 100.0
MS = 1e-3


def kernels(
    before_s: float,
    after_s: float,
    acts_s: float,
    until_s: float,
    stands_still_s: float = 0.0,
    noise: Callable[[], float] = lambda: 1.0,
) -> list[Kernel]:
    """Kernels that run back to back from `BEGAN_S`, on a GPU whose clock changes at `acts_s`."""
    ran, now_s, waits = [], BEGAN_S, stands_still_s > 0
    while now_s < until_s:
        factor, begin_s = noise(), now_s
        old_s, new_s = before_s * factor, after_s * factor
        if now_s >= acts_s:
            now_s += new_s
        elif now_s + old_s <= acts_s:
            now_s += old_s
        else:
            done = (acts_s - now_s) / old_s
            now_s = acts_s + (1 - done) * new_s
            if waits:
                now_s, waits = now_s + stands_still_s, False
        ran.append(Kernel(begin_s, now_s))
    return ran


@given(
    before_ms=st.floats(0.2, 2.0),
    ratio=st.floats(0.3, 0.9) | st.floats(1.1, 3.0),
    settles_ms=st.floats(0.0, 150.0),
)
def test_the_moment_is_found_within_a_part_of_a_kernel(before_ms: float, ratio: float, settles_ms: float) -> None:
    acts_s = REQUESTED_S + settles_ms * MS
    ran = kernels(before_ms * MS, before_ms * ratio * MS, acts_s, acts_s + 0.3)
    change = find_change(ran, REQUESTED_S)
    assert change is not None
    assert change.acted_s == pytest.approx(acts_s, abs=0.02 * MS)
    assert change.before_s == pytest.approx(before_ms * MS, rel=1e-6)
    assert change.after_s == pytest.approx(before_ms * ratio * MS, rel=1e-6)


@given(seed=st.integers(0, 10_000), settles_ms=st.floats(0.0, 100.0), ratio=st.sampled_from([0.7, 0.85, 1.2, 1.6]))
def test_noise_and_single_long_kernels_move_it_by_few_kernels(seed: int, settles_ms: float, ratio: float) -> None:
    chance = random.Random(seed)

    def noise() -> float:
        return chance.gauss(1, 0.02) * (chance.uniform(2, 10) if chance.random() < 0.02 else 1)

    acts_s = REQUESTED_S + settles_ms * MS
    ran = kernels(0.5 * MS, 0.5 * ratio * MS, acts_s, acts_s + 0.3, noise=noise)
    change = find_change(ran, REQUESTED_S)
    assert change is not None
    assert change.acted_s == pytest.approx(acts_s, abs=12 * MS)


def test_noise_moves_the_median_of_some_changes_by_less_than_a_kernel() -> None:
    errors_s = []
    for seed in range(21):
        chance = random.Random(seed)
        acts_s = REQUESTED_S + 0.02
        ran = kernels(0.5 * MS, 0.6 * MS, acts_s, acts_s + 0.3, noise=lambda c=chance: c.gauss(1, 0.02))
        change = find_change(ran, REQUESTED_S)
        assert change is not None
        errors_s.append(change.acted_s - acts_s)
    assert abs(sorted(errors_s)[10]) < 0.5 * MS


def test_a_gpu_that_stands_still_shows_for_how_long() -> None:
    acts_s = REQUESTED_S + 0.01
    ran = kernels(0.5 * MS, 0.8 * MS, acts_s, acts_s + 0.3, stands_still_s=0.004)
    change = find_change(ran, REQUESTED_S)
    assert change is not None
    assert change.stood_still_s == pytest.approx(0.004, abs=0.8 * MS)


def test_a_gpu_that_computes_on_did_not_stand_still() -> None:
    acts_s = REQUESTED_S + 0.01
    change = find_change(kernels(0.5 * MS, 0.8 * MS, acts_s, acts_s + 0.3), REQUESTED_S)
    assert isinstance(change, Change)
    assert change.stood_still_s == 0


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        ([], "no kernels"),
        (kernels(0.5 * MS, 0.5 * MS, 101, 100.5), "the same duration"),
        (kernels(0.5 * MS, 0.505 * MS, 100.1, 100.5), "a difference of 1 %"),
        (kernels(0.5 * MS, 0.8 * MS, 100.1, 100.065), "hardly a kernel after the request"),
        (kernels(0.5 * MS, 0.8 * MS, 100.45, 100.5), "the kernels end soon after the change"),
        (kernels(0.5 * MS, 0.8 * MS, 99, 100.5), "it had changed before the first kernel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_shows_no_change_gives_none(ran: list[Kernel], why: str) -> None:
    assert find_change(ran, REQUESTED_S) is None, why


def test_noise_without_a_change_gives_none() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        durations = (0.5 * MS * chance.gauss(1, 0.1) for _ in range(800))
        ends_s = accumulate(durations, initial=BEGAN_S)
        assert find_change([Kernel(*ends) for ends in pairwise(ends_s)], REQUESTED_S) is None


@given(late_ms=st.floats(0.0, 1.2), settles_ms=st.floats(1.0, 50.0))
def test_gaps_in_which_the_host_launched_late_do_not_count(late_ms: float, settles_ms: float) -> None:
    acts_s = REQUESTED_S + settles_ms * MS
    ran = kernels(0.5 * MS, 0.8 * MS, acts_s, acts_s + 0.3)
    gone_s, change_at = 0.0, sum(kernel.end_s <= acts_s for kernel in ran)
    moved = []
    for number, kernel in enumerate(ran):
        gone_s += late_ms * MS if number > change_at and number % 3 == 0 else 0
        moved.append(Kernel(kernel.begin_s + gone_s, kernel.end_s + gone_s))
    change = find_change(moved, REQUESTED_S)
    assert change is not None
    assert change.acted_s == pytest.approx(acts_s, abs=1.3 * MS)
    assert change.stood_still_s == 0


def test_a_change_in_a_long_gap_gives_none() -> None:
    ran = kernels(0.5 * MS, 0.8 * MS, REQUESTED_S + 0.02, REQUESTED_S + 0.3)
    with_gap = [kernel for kernel in ran if not 0.015 < kernel.begin_s - REQUESTED_S < 0.025]
    assert find_change(with_gap, REQUESTED_S) is None
