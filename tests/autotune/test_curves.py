"""What planner and judge get to know of curves, and how they look at what is uncertain."""

import math
from collections.abc import Mapping, Sequence

import pytest
from curve_points import follows, points_of
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.autotune.curves import CAUTIOUS, EVERYTHING, EXPECTED, HOPEFUL, Curves, View
from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.samples import Samples
from pfo_fs.planner import Measurement

CLOCKS = list(range(1410, 840, -30))
FORWARD, BACKWARD = (0, "forward"), (0, "backward")


def curves_of(
    where: Mapping[Kind, Sequence[int]], share: float = 0.8, seed: int = 0, clocks: Sequence[int] = CLOCKS
) -> Curves:
    """The curves of instructions that were measured at some clocks, and follow the clock by a share of their time."""
    samples = Samples(points_of(follows(share), where, seed=seed))
    return Curves(samples, list(where), {0: clocks})


def error_of(curves: Curves, shares: dict[tuple[Kind, int], float], *, powers: bool = False) -> float:
    return math.sqrt(max(0.0, float(curves.covariance_of([shares], powers=powers)[0, 0])))


def rows_of(curves: Curves, view: View = EXPECTED, kind: Kind = FORWARD) -> dict[int, Measurement]:
    return {row.frequency_mhz: row for row in curves.profile("test", view).measurements[kind]}


MEASURED = st.sets(st.sampled_from(CLOCKS[1:]), max_size=3).map(lambda low: sorted({1410, *low}, reverse=True))


@settings(max_examples=25)
@given(MEASURED, st.lists(st.tuples(st.sampled_from(CLOCKS), st.floats(-2, 2)), max_size=4))
def test_what_is_added_and_taken_of_one_clock_has_no_error(clocks: list[int], parts: list[tuple[int, float]]) -> None:
    curves = curves_of({FORWARD: clocks})
    shares: dict[tuple[Kind, int], float] = {}
    for sign in (1, -1):
        for mhz, share in parts:
            shares[FORWARD, mhz] = shares.get((FORWARD, mhz), 0.0) + sign * share
    assert error_of(curves, shares) == pytest.approx(0.0, abs=1e-9)
    assert error_of(curves, shares, powers=True) == pytest.approx(0.0, abs=1e-9)


def test_the_error_of_a_difference_between_clocks_is_that_of_their_ratio() -> None:
    curves = curves_of({FORWARD: [1410, 1200], BACKWARD: [1410]})
    ratios = curves.ratios([FORWARD, BACKWARD])
    for number, kind in enumerate((FORWARD, BACKWARD)):
        for column, mhz in enumerate(ratios.clocks_mhz.astype(int).tolist()):
            difference = error_of(curves, {(kind, mhz): 1.0, (kind, 1410): -1.0}) if mhz < 1410 else 0.0
            assert difference == pytest.approx(float(ratios.errors[number, column]), abs=1e-9)


def test_errors_of_gpus_that_are_fitted_apart_add_up_as_independent_ones() -> None:
    kinds = {FORWARD: [1410], (1, "forward"): [1290]}
    samples = Samples(points_of(follows(0.8), kinds))
    curves = Curves(samples, list(kinds), {0: CLOCKS, 1: [mhz for mhz in CLOCKS if mhz <= 1290]})
    parts = [{(FORWARD, 900): 1.0, (FORWARD, 1410): -1.0}, {((1, "forward"), 900): 1.0, ((1, "forward"), 1290): -1.0}]
    both = error_of(curves, {**parts[0], **parts[1]})
    assert both == pytest.approx(math.hypot(*(error_of(curves, part) for part in parts)))


@settings(max_examples=25)
@given(MEASURED, st.floats(0.0, 1.0), st.integers(0, 20), st.sampled_from([EVERYTHING, CAUTIOUS, HOPEFUL, EXPECTED]))
def test_a_view_does_not_go_beyond_what_physics_allows(clocks: list[int], share: float, seed: int, view: View) -> None:
    """No instruction takes longer than its work at a clock, and none less than at the highest: within what was seen."""
    curves = curves_of({FORWARD: clocks}, share, seed)
    expected, rows = rows_of(curves, EVERYTHING), rows_of(curves, view)
    top_s = rows[1410].time_s
    assert top_s == expected[1410].time_s, "the highest clock is no matter of view"
    for mhz, row in rows.items():
        believed_s = expected[mhz].time_s
        assert row.time_s <= max(believed_s, top_s * 1410 / mhz) * (1 + 1e-9)
        assert row.time_s >= min(believed_s, top_s) * (1 - 1e-9)


def test_a_cautious_view_is_slower_and_a_hopeful_one_quicker_than_expected() -> None:
    curves = curves_of({FORWARD: [1410, 1200]}, share=0.5)
    expected, cautious, hopeful = (rows_of(curves, view) for view in (EVERYTHING, CAUTIOUS, HOPEFUL))
    assert set(cautious) == set(expected)
    for mhz in set(hopeful) - {1410}:
        assert hopeful[mhz].time_s <= expected[mhz].time_s <= cautious[mhz].time_s
        assert hopeful[mhz].energy_j < expected[mhz].energy_j


def test_before_low_clocks_are_measured_caution_takes_instructions_to_follow_the_clock() -> None:
    for mhz, row in rows_of(curves_of({FORWARD: [1410]}), CAUTIOUS).items():
        assert row.time_s == pytest.approx(0.05 * 1410 / mhz, rel=0.005)


def test_a_plan_that_stays_uses_only_clocks_that_are_known_well() -> None:
    curves = curves_of({FORWARD: [1410, 1380]})
    assert min(rows_of(curves, EXPECTED)) > 1200
    assert min(rows_of(curves, HOPEFUL)) < min(rows_of(curves, EXPECTED))
    assert set(rows_of(curves, EVERYTHING)) == set(CLOCKS)


def test_a_measured_clock_is_offered_however_little_is_known_of_it() -> None:
    samples = Samples(points_of(follows(0.8), {FORWARD: [1410]}))
    point = samples.point(FORWARD, 900)
    point.add_times(1, 0.08, 0.008)
    assert 900 in rows_of(Curves(samples, [FORWARD], {0: CLOCKS}), EXPECTED)


def test_clocks_at_which_energy_only_rises_again_are_not_estimated() -> None:
    curves = curves_of({FORWARD: [1410, 1200]}, clocks=range(1410, 200, -30))
    assert 400 < min(rows_of(curves, EVERYTHING)) < 600
