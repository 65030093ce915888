"""Curves from a few measured points: what they say between and beyond them, and how sure they are."""

import math
from collections.abc import Sequence

import pytest
from curve_points import CLOCKS, Truth, follows, points_of
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.autotune.clock_curves import Estimate, fit_curves
from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.samples import Point


def fitted(points: dict[Kind, dict[int, Point]]) -> dict[Kind, dict[int, Estimate]]:
    groups = fit_curves(points, dict.fromkeys(points, CLOCKS))
    return {kind: rows for group in groups for kind, rows in group.table().items()}


def distances(table: dict[Kind, dict[int, Estimate]], truth: Truth) -> list[tuple[float, float]]:
    """Relative error of each time, and the error that its estimate states."""
    return [
        (one.time_s / truth(kind, mhz)[0] - 1, one.time_error)
        for kind, row in table.items()
        for mhz, one in row.items()
    ]


def rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


@given(share=st.floats(0.05, 1.0), cap_mhz=st.sampled_from([10_000, 1290, 1170]), seed=st.integers(0, 100))
@settings(max_examples=30)
def test_four_clocks_fix_a_curve_within_the_error_that_it_states(share: float, cap_mhz: int, seed: int) -> None:
    truth = follows(share, cap_mhz)
    apart = distances(fitted(points_of(truth, {(0, "forward"): [1410, 1290, 1140, 960]}, seed=seed)), truth)
    assert rms([error for error, _ in apart]) < 0.014
    assert all(abs(error) < 4 * stated + 0.001 for error, stated in apart)


def test_stages_that_are_alike_tell_of_each_other() -> None:
    truth = follows(0.8)
    lower = {0: 1320, 1: 1200, 2: 1080, 3: 900}
    points = points_of(truth, {(stage, "forward"): [1410, mhz] for stage, mhz in lower.items()})
    assert rms([error for error, _ in distances(fitted(points), truth)]) < 0.004


def test_stages_that_are_not_alike_do_not_mislead_each_other() -> None:
    def truth(kind: Kind, mhz: int) -> tuple[float, float]:
        return follows([0.95, 0.2, 0.7, 0.4][kind[0]])(kind, mhz)

    points = points_of(truth, {(stage, "forward"): [1410, 1260, 1110, 930] for stage in range(4)})
    apart = distances(fitted(points), truth)
    assert rms([error for error, _ in apart]) < 0.004
    assert all(abs(error) < 5 * stated + 0.001 for error, stated in apart)


def test_an_instruction_that_was_measured_at_the_highest_clock_only_is_uncertain_below() -> None:
    table = fitted(points_of(follows(0.8), {(0, "forward"): [1410]}))[0, "forward"]
    errors = [one.time_error for one in table.values()]
    assert errors == sorted(errors)
    assert errors[0] < 0.001
    assert errors[-1] > 0.1


def test_a_plateau_is_found_as_one() -> None:
    truth = follows(0.9, cap_mhz=1250)
    table = fitted(points_of(truth, {(0, "forward"): [1410, 1350, 1290, 1260, 1200, 1080, 960]}))[0, "forward"]
    for mhz in (1395, 1380, 1320, 1275):
        assert table[mhz].time_s == pytest.approx(table[1410].time_s, rel=0.003)
        assert table[mhz].power_w == pytest.approx(table[1410].power_w, rel=0.02)
    assert table[1140].time_s > 1.05 * table[1410].time_s


def test_energy_falls_below_clocks_at_which_the_power_limit_makes_instructions_alike() -> None:
    measured = {(stage, "forward"): [1410, 1365, 1320] for stage in range(2)}
    table = fitted(points_of(follows(0.6, cap_mhz=1300), measured, error=0.002))
    for row in table.values():
        assert row[1200].time_s * row[1200].power_w < row[1410].time_s * row[1410].power_w


def test_noise_at_the_clocks_of_a_plateau_is_not_taken_for_a_slope() -> None:
    def truth(kind: Kind, mhz: int) -> tuple[float, float]:
        return (1 + kind[0]) * 0.05 * max(1.0, 1100 / mhz), 90 + 250 * (mhz / 1410) ** 2.5

    kinds = [(stage, name) for stage in range(2) for name in ("forward", "backward")]
    off = []
    for seed in range(8):
        points = points_of(truth, {kind: [1410, 1350, 1245, 1110, 975] for kind in kinds}, error=0.005, seed=seed)
        off += [row[1110].time_s / row[1410].time_s - 1 for row in fitted(points).values()]
    assert rms(off) < 0.002


def test_clocks_a_little_below_the_highest_one_may_be_the_fastest() -> None:
    """As in the published profile of Bloom on A100 GPUs."""
    times = {1410: 1.0, 1380: 0.9985, 1350: 1.009, 1275: 1.047, 1245: 1.07, 1095: 1.2}

    def truth(kind: Kind, mhz: int) -> tuple[float, float]:
        return (1 + kind[0]) * 0.05 * times[mhz], 90 + 250 * (mhz / 1410) ** 2.5

    kinds = [(stage, name) for stage in range(4) for name in ("forward", "backward")]
    table = fitted(points_of(truth, {kind: [*times] for kind in kinds}, error=0.0007))
    faster = [row[1380].time_s / row[1410].time_s - 1 for row in table.values()]
    assert sum(faster) / len(faster) == pytest.approx(-0.0015, abs=0.0006)


def test_a_highest_clock_that_is_slower_than_a_lower_one_stays_slower() -> None:
    def truth(kind: Kind, mhz: int) -> tuple[float, float]:
        time_s, power_w = follows(0.8, 1290)(kind, mhz)
        return time_s * (1.02 if mhz > 1350 else 1.0), power_w

    table = fitted(points_of(truth, {(0, "forward"): [1410, 1350, 1290, 1200, 1050]}))[0, "forward"]
    assert table[1350].time_s < 0.985 * table[1410].time_s


def test_very_many_points_are_fitted_instruction_by_instruction() -> None:
    truth = follows(0.8)
    points = points_of(truth, {(stage, "forward"): CLOCKS for stage in range(20)})
    groups = fit_curves(points, dict.fromkeys(points, CLOCKS))
    assert len(groups) == 20
    assert rms([error for group in groups for error, _ in distances(group.table(), truth)]) < 0.001
