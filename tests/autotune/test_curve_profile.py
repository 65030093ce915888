"""The profile that plans are made with: which clocks that were not measured it includes."""

from __future__ import annotations

from test_clock_curves import follows, points_of

from pfo_fs.autotune.curve_profile import SURE, WIDE, Offer, estimated_profile
from pfo_fs.autotune.samples import Samples

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
