"""What a job has measured is written for `pfo-fs plan`."""

from __future__ import annotations

import csv

import pytest

from pfo_fs.autotune.samples import Point, Samples


def test_points_are_written_with_their_errors_and_counts_but_for_those_whose_power_is_hardly_known() -> None:
    samples = Samples()
    for mhz, time_s, power_error_w in ((1410, 0.1, 0.5), (1395, 0.12, 0.5), (1380, 0.13, 150.0)):
        point = samples.points.setdefault((0, "forward"), {})[mhz] = Point()
        point.add_times(50, time_s, 0.001 * time_s)
        point.add_power(200.0, power_error_w)
    samples.waiting.add_power(83.64, 0.1)
    rows = list(csv.DictReader(samples.csv().splitlines()))
    assert [row["frequency"] for row in rows] == ["1410", "1395"]
    for row in rows:
        point = samples.points[0, "forward"][int(row["frequency"])]
        told = [float(row[name]) for name in ("count", "waiting_power", "time_error", "power_error", "energy")]
        known = (point.count, 83.64, point.time_error, point.power_error, point.energy_j)
        assert told == pytest.approx(known, rel=1e-5)
