"""The profile that plans are made with: which clocks that were not measured it includes."""

from __future__ import annotations

from curve_points import follows, points_of

from pfo_fs.autotune.curve_profile import SURE, WIDE, Offer, estimated_profile, hopeful
from pfo_fs.autotune.samples import Samples
from pfo_fs.planner import Measurement, Profile

FAR_APART = [1290, 1140, 990, 840, 690, 540]
KIND = (0, "forward")


def clocks_of(offer: Offer) -> list[int]:
    """The clocks in the profile of an instruction that was measured at the two highest ones."""
    samples = Samples(points_of(follows(0.8), {KIND: FAR_APART[:2]}))
    profile = estimated_profile(samples, [KIND], {0: FAR_APART}, "test", offer=offer)
    return sorted((row.frequency_mhz for row in profile.measurements[KIND]), reverse=True)


def test_a_plan_uses_no_clock_of_which_hardly_anything_is_known() -> None:
    assert clocks_of(SURE) == FAR_APART[:2]


def test_a_plan_that_tries_clocks_goes_one_lower_than_measured_however_far_apart_they_are() -> None:
    assert clocks_of(WIDE) == FAR_APART[:3]


def test_a_hoped_for_time_is_positive_however_uncertain_a_clock_is() -> None:
    rows = [Measurement(1290, 0.1, 30.0), Measurement(990, 0.2, 40.0, 0.3, 90.0)]
    assert min(row.time_s for row in hopeful(Profile({KIND: rows}, "test"), 1.0).measurements[KIND]) >= 0.1
