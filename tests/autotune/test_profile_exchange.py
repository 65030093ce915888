"""What a job has measured survives the CSV that reports read."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.profile_exchange import points_of, profile_csv
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.errors import PlanError


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


def test_a_point_whose_power_is_hardly_known_is_not_in_the_profile_and_does_not_make_it_implausible() -> None:
    samples = measured()
    point = samples.points[0, "forward"][1380] = Point()
    point.add_times(4, 0.13, 0.004)
    point.add_power(30.0, 50.0)
    assert set(points_of(profile_csv(samples), "p.csv")[0, "forward"]) == {1410, 1395}


def test_a_profile_without_errors_is_taken_with_two_samples() -> None:
    text = "stage,instruction,frequency,time,energy\n0,forward,1410,0.1,20\n"
    assert points_of(text, "p.csv")[0, "forward"][1410].count == 2


def test_a_wrong_row_is_a_plan_error_with_its_number() -> None:
    with pytest.raises(PlanError, match="row 2, column time"):
        points_of("stage,instruction,frequency,time,energy\n0,forward,1410,x,20\n", "p.csv")


# ---- profiles that another user has invented

HEADER = "stage,instruction,frequency,time,energy\n"
ODD_ROWS = {
    "underflow": "0,forward,1410,5e-324,1",
    "denormal energy": "0,forward,1410,0.1,1e-310",
    "power beyond any GPU": "0,forward,1410,1e-5,1e8",
    "no power": "0,forward,1410,1000,0.001",
    "days": "0,forward,1410,99999,1e7",
    "infinite": "0,forward,1410,inf,1",
    "not a number": "0,forward,1410,nan,1",
    "hexadecimal": "0,forward,1410,0x1p-1074,1",
    "huge": "0,forward,1410,1e999,1",
    "huge clock": "0,forward,999999999999999999999,1,1",
    "faster at a lower clock": "0,forward,1410,0.2,40\n0,forward,1200,0.15,20",
}


@pytest.mark.parametrize("row", ODD_ROWS.values(), ids=ODD_ROWS)
@pytest.mark.parametrize(
    "others", ["", "0,forward,1200,0.11,20\n0,backward,1410,0.2,40\n"], ids=["alone", "with others"]
)
def test_a_profile_that_no_gpu_can_have_is_refused_with_its_name(row: str, others: str) -> None:
    with pytest.raises(PlanError, match="evil"):
        points_of(f"{HEADER}{row}\n{others}", "evil")


@given(
    st.lists(st.tuples(*[st.floats(allow_nan=True) | st.sampled_from([5e-324, 1e308, 0.1, 200.0])] * 5), max_size=4)
    | st.lists(st.tuples(*[st.text('0123456789.,-+eEinfax" \n', max_size=8)] * 7), max_size=4)
)
def test_whatever_a_profile_holds_it_is_used_or_refused(rows: list[tuple[object, ...]]) -> None:
    columns = "stage,instruction,frequency,time,energy,time_error,count\n"
    lines = [f"0,forward,1410,{','.join(map(str, row))}" for row in rows]
    lines += [",".join(map(str, row)) for row in rows]
    for text in (columns + "\n".join(lines), HEADER + "\n".join(lines)):
        with contextlib.suppress(PlanError):
            points_of(text, "evil")


def test_a_profile_of_very_many_rows_is_refused() -> None:
    rows = "".join(f"0,forward,{mhz},0.1,20\n" for mhz in range(300, 1300)) * 60
    with pytest.raises(PlanError, match="60,000 rows"):
        points_of(HEADER + rows, "evil")
