"""What has changed between two windows of the same plan, and what follows for the samples."""

from __future__ import annotations

import numpy as np
import pytest

from pfo_fs.autotune.drift import (
    Change,
    PlanWindow,
    change_between,
    keep_highest_only,
    odd_kinds,
    restore_missing,
    shift_samples,
)
from pfo_fs.autotune.samples import Point, Samples

FORWARD, BACKWARD = (0, "forward"), (0, "backward")
LAST = (1, "forward")


def window(span_s: float = 2.0, scatter: float = 0.0, seed: int = 0, **slower: float) -> PlanWindow:
    """Five iterations of two ranks that run the forward of their stage."""
    noise = 1 + scatter * np.random.default_rng(seed).standard_normal(5)
    times = {
        kind: [s * slower.get(f"stage{kind[0]}", 1.0) * x for x in noise] for kind, s in ((FORWARD, 0.1), (LAST, 0.2))
    }
    return PlanWindow({0: [span_s * x for x in noise]}, {kind: {kind[0]: values} for kind, values in times.items()})


def test_of_two_stages_the_one_that_got_slower_is_named() -> None:
    change = change_between(window(), window(2.1, stage1=1.05), 0.001)
    assert change is not None
    assert change.iterations == pytest.approx(1.05)
    assert change.shifts == {LAST: pytest.approx(1.05)}
    assert str(change) == "iterations take +5.0% time under the same plan (forward of stage 1 +5.0%)"


def test_iterations_that_are_longer_though_no_instruction_is_have_a_change_without_instructions() -> None:
    assert change_between(window(), window(2.1), 0.001) == Change(pytest.approx(1.05), {})


def test_an_instruction_whose_change_does_not_reach_the_iterations_is_no_change() -> None:
    assert change_between(window(), window(2.0, stage1=1.05), 0.001) is None


def test_a_difference_within_the_noise_of_five_iterations_is_no_change() -> None:
    assert change_between(window(), window(2.04), 0.02) is None
    assert change_between(window(), window(2.04), 0.001) is not None


def test_windows_of_the_same_job_with_other_noise_hardly_ever_differ() -> None:
    differ = sum(
        change_between(window(scatter=0.01, seed=seed), window(scatter=0.01, seed=seed + 1), 0.01) is not None
        for seed in range(0, 2000, 2)
    )
    assert differ <= 3


def test_pipelines_without_a_common_window_are_not_compared() -> None:
    assert change_between(PlanWindow({}, {}), window(), 0.001) is None
    assert change_between(PlanWindow({1: [1.0] * 5}, {}), window(), 0.001) is None


# ---- samples


def samples() -> Samples:
    def point(time_s: float) -> Point:
        found = Point()
        found.add_times(20, time_s, 0.0)
        found.add_power(300.0, 1.0)
        return found

    return Samples({kind: {1400: point(1.0), 1000: point(1.3)} for kind in (FORWARD, BACKWARD)})


def times_of(found: Samples) -> dict[tuple[int, str], dict[int, float]]:
    return {kind: {mhz: round(point.time_s, 6) for mhz, point in found.curve(kind).items()} for kind in found.points}


def test_only_what_has_changed_is_scaled_and_its_highest_clock_is_to_be_measured_again() -> None:
    found = samples()
    removed = shift_samples(found, {FORWARD: 1.1})
    assert times_of(found) == {FORWARD: {1000: 1.43}, BACKWARD: {1400: 1.0, 1000: 1.3}}
    assert removed[FORWARD][0] == 1400
    assert removed[FORWARD][1].time_s == pytest.approx(1.1)


def test_a_highest_clock_that_was_not_measured_again_keeps_the_scaled_time() -> None:
    found = samples()
    assert odd_kinds(found, shift_samples(found, {FORWARD: 1.1})) == []
    assert times_of(found)[FORWARD] == {1400: 1.1, 1000: 1.43}


@pytest.mark.parametrize(("measured_s", "odd"), [(1.1, []), (1.11, []), (1.0, [FORWARD])])
def test_a_kind_that_has_changed_otherwise_at_the_highest_clock_is_odd(measured_s: float, odd: list[object]) -> None:
    found = samples()
    removed = shift_samples(found, {FORWARD: 1.1})
    found.points[FORWARD][1400] = samples().points[FORWARD][1400]
    found.points[FORWARD][1400].scale(measured_s, 1.0)
    assert odd_kinds(found, removed) == odd


def test_lower_clocks_that_were_not_measured_again_are_restored() -> None:
    found = samples()
    removed = keep_highest_only(found, [FORWARD, BACKWARD])
    assert times_of(found) == {FORWARD: {1400: 1.0}, BACKWARD: {1400: 1.0}}
    found.points[BACKWARD][1200] = Point(count=2, time_s=1.2, weight=1.0, power_w=300)
    restore_missing(found, removed)
    assert times_of(found) == {FORWARD: {1400: 1.0, 1000: 1.3}, BACKWARD: {1400: 1.0, 1200: 1.2}}
