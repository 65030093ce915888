"""The profile of an earlier job beside what this one has measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.curves import EXPECTED, HOPEFUL, Curves, View
from pfo_fs.autotune.earlier_profile import contradiction
from pfo_fs.autotune.loads import Found
from pfo_fs.autotune.profile_exchange import merge_profile
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.planner import Measurement, Profile

KIND, CLOCKS = (0, "forward"), list(range(1410, 209, -75))


@pytest.mark.parametrize(
    ("mhz", "time_s", "odd"),
    [
        (1200, 0.12, ""),
        (1200, 0.126, ""),
        (1200, 0.13, "forward of stage 0"),
        (1300, 0.115, ""),
        (1300, 0.09, "forward of stage 0"),
        (900, 9.0, ""),
    ],
)
def test_a_time_outside_of_those_around_its_clock_contradicts_a_profile(mhz: int, time_s: float, odd: str) -> None:
    known = Profile({(0, "forward"): [Measurement(1400, 0.1, 30.0), Measurement(1200, 0.12, 30.0)]})
    assert contradiction(known, [Found(KIND, mhz, 10, time_s, 0.001)], set()) == odd


def test_a_time_is_not_compared_at_a_clock_that_this_job_has_measured_before() -> None:
    known = Profile({(0, "forward"): [Measurement(1400, 0.1, 30.0), Measurement(1200, 0.1, 30.0)]})
    found = [Found(KIND, 1200, 10, 0.2, 0.001)]
    assert contradiction(known, found, set())
    assert not contradiction(known, found, {(KIND, 1200)})


def test_a_job_of_longer_instructions_contradicts_no_profile_whose_clocks_act_alike() -> None:
    known = Profile({KIND: [Measurement(1400, 0.1, 30.0), Measurement(1200, 0.12, 30.0)]})
    found = [Found(KIND, 1400, 10, 0.2, 0.001, is_highest=True), Found(KIND, 1200, 10, 0.24, 0.001)]
    assert not contradiction(known, found, set())


def borrowing(time_at: Callable[[int], float], own_clocks: Sequence[int]) -> Samples:
    """Samples of a job that follows the clock fully, with a profile by which it takes `time_at` at each clock."""
    samples = Samples()
    for mhz in own_clocks:
        point = samples.points.setdefault(KIND, {})[mhz] = Point()
        point.add_times(20, 0.1 * 1410 / mhz, 1e-5)
        point.add_power(300.0, 1.0)
    known = [Measurement(mhz, time_at(mhz), 0.01 * time_at(mhz) * mhz) for mhz in CLOCKS]
    merge_profile(samples, Profile({KIND: known}), [KIND], {0: CLOCKS})
    return samples


def profile_rows(samples: Samples, view: View = EXPECTED) -> list[Measurement]:
    """What plans would be made with."""
    return list(Curves(samples, [KIND], {0: CLOCKS}, {}).profile("test", view).measurements[KIND])


@pytest.mark.parametrize("view", [EXPECTED, HOPEFUL], ids=["expected", "hopeful"])
@pytest.mark.parametrize("own_clocks", [[1410], [1410, 1110], [1410, 585]])
@given(slope=st.floats(0, 1), at_end=st.floats(0.3, 1))
def test_no_clock_is_offered_where_an_invented_profile_would_cost_much(
    view: View, own_clocks: list[int], slope: float, at_end: float
) -> None:
    def time_at(mhz: int) -> float:
        return 0.1 * (1410 / mhz) ** slope * (at_end if mhz < 300 else 1.0)

    samples = borrowing(time_at, own_clocks)
    for row in profile_rows(samples, view):
        truly_s = 0.1 * 1410 / row.frequency_mhz
        assert truly_s <= 1.3 * row.time_s, row


def test_where_a_profile_is_true_most_clocks_of_plans_are_offered_at_once() -> None:
    samples = borrowing(lambda mhz: 0.1 * (1410 / mhz) ** 0.7, [1410])
    rows = profile_rows(samples)
    assert min(row.frequency_mhz for row in rows) < 0.6 * 1410


def test_without_a_borrowed_point_the_clocks_on_offer_are_as_they_were() -> None:
    samples = borrowing(lambda mhz: 0.1, CLOCKS)
    assert not samples.borrows
    assert len(profile_rows(samples)) == len(CLOCKS)


def test_what_a_refuted_profile_has_added_is_dropped_and_this_jobs_own_points_stay() -> None:
    samples = borrowing(lambda mhz: 0.1, [1410, 1110])
    samples.drop_borrowed()
    assert list(samples.curve(KIND)) == [1410, 1110]
