"""What a job has measured survives the CSV that later jobs and reports read."""

from __future__ import annotations

import pytest

from pfo_fs.autotune.profile_exchange import contradiction, points_of, profile_csv, thinned, waiting_power_of
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.errors import PlanError
from pfo_fs.planner import Measurement, Profile
from pfo_fs.planner.profile_csv import parse_table


def measured() -> Samples:
    samples = Samples()
    for mhz, time_s in ((1410, 0.1), (1395, 0.12)):
        point = samples.points.setdefault((0, "forward"), {})[mhz] = Point()
        point.add_times(50, time_s, 0.001 * time_s)
        point.add_power(200.0, 0.5)
    samples.waiting.add_power(83.64, 0.1)
    return samples


def test_points_keep_their_errors_and_counts_on_the_way_to_csv_and_back() -> None:
    samples = measured()
    found = points_of(profile_csv(samples), "p.csv")[0, "forward"]
    for mhz, point in samples.points[0, "forward"].items():
        assert found[mhz].count == point.count
        assert found[mhz].time_error == pytest.approx(point.time_error, rel=1e-5)
        assert found[mhz].power_error == pytest.approx(point.power_error, rel=1e-5)
        assert found[mhz].energy_j == pytest.approx(point.energy_j, rel=1e-5)


def test_the_waiting_power_is_kept() -> None:
    assert waiting_power_of(parse_table(profile_csv(measured()), "p.csv")) == pytest.approx(83.64)


@pytest.mark.parametrize("watts", ["", "-5", "nan", "1e9"])
def test_an_implausible_waiting_power_is_none(watts: str) -> None:
    text = profile_csv(measured()).replace("83.64", watts)
    assert waiting_power_of(parse_table(text, "p.csv")) == 0.0


def test_a_profile_without_errors_is_taken_with_two_samples() -> None:
    text = "stage,instruction,frequency,time,energy\n0,forward,1410,0.1,20\n"
    assert points_of(text, "p.csv")[0, "forward"][1410].count == 2


def test_a_wrong_row_is_a_plan_error_with_its_number() -> None:
    with pytest.raises(PlanError, match="row 2, column time"):
        points_of("stage,instruction,frequency,time,energy\n0,forward,1410,x,20\n", "p.csv")


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
    samples = Samples()
    point = samples.points.setdefault((0, "forward"), {})[mhz] = Point()
    point.add_times(10, time_s, 0.0)
    point.add_power(200.0, 0.5)
    assert contradiction(known, samples, [(0, "forward")]) == odd


def test_few_points_of_another_job_are_used_from_its_highest_to_low_clocks() -> None:
    points = {(stage, "forward"): {mhz: Point() for mhz in range(300, 1411, 15)} for stage in range(64)}
    kept = thinned(points)
    assert len(kept) == 8
    assert all(len(curve) <= 12 and max(curve) == 1410 and min(curve) < 500 for curve in kept.values())
