"""What a job has measured is written for `pfo-fs plan`."""

from __future__ import annotations

from io import StringIO

import pandas as pd
import pytest

from pfo_fs.autotune.samples import Point, Samples


def test_points_are_written_with_their_errors_and_counts_but_for_those_whose_power_is_hardly_known() -> None:
    samples = Samples()
    for mhz, time_s, power_error_w in ((1410, 0.1, 0.5), (1395, 0.12, 0.5), (1380, 0.13, 150.0)):
        point = samples.points.setdefault((0, "forward"), {})[mhz] = Point()
        point.add_times(50, time_s, 0.001 * time_s)
        point.add_power(200.0, power_error_w)
    samples.waiting.add_power(83.64, 0.1)
    rows = pd.read_csv(StringIO(samples.csv())).set_index("frequency")
    assert list(rows.index) == [1410, 1395]
    for mhz, row in rows.iterrows():
        point = samples.points[0, "forward"][mhz]
        assert row["count"] == point.count
        assert row["waiting_power"] == 83.64
        assert row["time_error"] == pytest.approx(point.time_error, rel=1e-5)
        assert row["power_error"] == pytest.approx(point.power_error, rel=1e-5)
        assert row["energy"] == pytest.approx(point.energy_j, rel=1e-5)
