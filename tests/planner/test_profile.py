"""Profiles: what is read from CSV, and what is refused with row and column."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pfo_fs import InstructionProfilingResult, OfflineProfilingResult
from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner import (
    Measurement,
    Problem,
    Profile,
    blocking_power_w,
    make_pipeline,
    pipeline_from_orders,
    read_profile,
)
from pfo_fs.planner.profile_csv import COLUMNS, RANK_COLUMNS, read_table

HEADER = ",".join(COLUMNS) + "\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "0,forward,1410,0.1,20\n0,forward,1410,0.12,22\n",
        "rank,dp_rank,pp_rank,tp_rank," + HEADER + "0,0,0,0,0,forward,1410,0.1,20\n1,1,0,0,0,forward,1410,0.12,22\n",
        "Stage, instruction, frequency, TIME, energy\n\n0, Forward, 1410.0, 0.1, 20\n0,forward,1410,0.12,22\n",
    ],
    ids=["five columns", "nine columns", "spaces, blank lines and capitals"],
)
def test_rows_of_one_key_are_averaged_whatever_the_form_of_the_table(tmp_path: Path, text: str) -> None:
    (measurement,) = read_profile(write(tmp_path, text)).measurements[0, "forward"]
    assert (measurement.time_s, measurement.energy_j) == (pytest.approx(0.11), pytest.approx(21))


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("0,forward,1410,nan,20\n", "row 2, column time"),
        ("0,forward,1410,0.1,20\n0,backward,1410,0.1,-3\n", "row 3, column energy"),
        ("0,forward,1410,0,20\n", "row 2, column time"),
        ("0,forward,1410,inf,20\n", "row 2, column time"),
        ("0,forward,1410,fast,20\n", "row 2, column time: 'fast'"),
        ("0,forward,1410000,0.1,20\n", "row 2, column frequency: '1410000' is not a clock in MHz"),
        ("0,forward,1.41,0.1,20\n", "row 2, column frequency"),
        (
            "0,forward,1410,0.1,20\n0,forward,1410,100,20\n",
            "row 3, column time: forward of stage 0 at 1410 MHz has several rows",
        ),
        ("-1,forward,1410,0.1,20\n", "row 2, column stage"),
        ("0.5,forward,1410,0.1,20\n", "row 2, column stage"),
        ("0,,1410,0.1,20\n", "row 2, column instruction"),
        ("0,forward,1410,0.1\n", "row 2, column energy: '' is not a number"),
        ("0,forward,1410,0.1,20\n0,forward,1410,0.1,20,7\n", "row 3 has 6 cells under 5 columns"),
        ("0,forward,1410,0.1,20\n2,forward,1410,0.1,20\n", "column stage: stage 1 is missing"),
        ("", "the profile is empty"),
    ],
)
def test_a_row_that_cannot_be_right_is_named(tmp_path: Path, rows: str, named: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_profile(write(tmp_path, HEADER + rows))
    assert named in str(caught.value)
    assert str(tmp_path / "profile.csv") in str(caught.value)


measurements = st.builds(
    lambda mhz, time_s, power_w: Measurement(mhz, time_s, power_w * time_s),
    st.integers(50, 20_000),
    st.floats(0.1, 0.15),
    st.floats(200, 300),
)
tables = st.dictionaries(
    st.sampled_from(["forward", "backward", "backward_weight"]),
    st.lists(measurements, min_size=1, max_size=5, unique_by=lambda m: m.frequency_mhz),
    min_size=1,
)


@given(st.lists(tables, min_size=1, max_size=3))
def test_a_profile_survives_the_way_to_csv_and_back(tmp_path_factory: pytest.TempPathFactory, stages: list) -> None:
    kinds = {
        (stage, name): sorted(rows, key=lambda m: -m.frequency_mhz)
        for stage, table in enumerate(stages)
        for name, rows in table.items()
    }
    path = tmp_path_factory.mktemp("profile") / "p.csv"
    Profile(kinds).to_csv(path)
    assert dict(read_profile(path).measurements) == kinds


CURVE = {1410: (0.1, 30.0), 1200: (0.112, 26.0), 1005: (0.13, 24.0), 810: (0.16, 23.5)}


@pytest.mark.parametrize("mhz", CURVE)
@pytest.mark.parametrize("factor", [0.01, 0.1, 10.0, 100.0])
@pytest.mark.parametrize("column", [0, 1], ids=["time", "energy"])
def test_a_value_of_ten_times_its_neighbours_is_refused(tmp_path: Path, mhz: int, factor: float, column: int) -> None:
    curve = {at: list(values) for at, values in CURVE.items()}
    assert read_profile(write(tmp_path, HEADER + rows_of(curve)))
    curve[mhz][column] *= factor
    with pytest.raises(PlanError, match=rf"{mhz} MHz.*one of the two is wrong"):
        read_profile(write(tmp_path, HEADER + rows_of(curve)))


def rows_of(curve: dict[int, list[float]]) -> str:
    return "".join(f"0,forward,{mhz},{time_s},{energy_j}\n" for mhz, (time_s, energy_j) in curve.items())


def test_the_published_blocking_power_is_found_by_the_name_of_the_gpu() -> None:
    assert blocking_power_w("A40") == blocking_power_w("NVIDIA A40") == 70.38
    assert blocking_power_w("a100") == blocking_power_w("NVIDIA A100-SXM4-80GB") == 83.64
    with pytest.raises(ConfigError, match="A40, A100"):
        blocking_power_w("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1400 - 15 * n, 0.1 + 0.01 * n, 20.0 + n) for n in range(10)], "forward of stage 0 only 1 are useful"),
        ([(1400, 0.1, 20_000.0)], "joules and seconds"),
        ([(1400, 0.1, 4.0)], "less than a GPU that waits"),
    ],
)
def test_noise_and_powers_that_no_gpu_draws_are_pointed_out(rows: list[tuple[int, float, float]], said: str) -> None:
    measured = [Measurement(*row) for row in rows]
    profile = Profile({(0, "forward"): measured, (0, "backward"): measured})
    assert any(said in text for text in Problem(make_pipeline("gpipe", 1, 1), profile, 50.0).warnings)


def test_a_stage_without_an_instruction_of_the_schedule_is_named() -> None:
    row = [Measurement(1410, 0.1, 20.0)]
    with pytest.raises(PlanError, match="stage 0 has no rows for backward"):
        Problem(make_pipeline("1f1b", 1, 1), Profile({(0, "forward"): row}), 50.0)
    with pytest.raises(PlanError, match="there are 2 stages, but the pipeline has 1"):
        Problem(make_pipeline("1f1b", 1, 1), Profile({(0, "forward"): row, (1, "forward"): row}), 50.0)


@given(st.dictionaries(st.floats(0.01, 1), st.floats(1, 500), min_size=1, max_size=30), st.floats(0, 200))
def test_dropped_options_cost_more_time_and_energy_than_a_kept_one_and_none_lies_below_the_hull(
    energies_j: dict[float, float], power_w: float
) -> None:
    measured = [Measurement(1410 - n, *of) for n, of in enumerate(energies_j.items())]
    pipeline = pipeline_from_orders([[(0, "forward", 0)]])
    table = Problem(pipeline, Profile({(0, "forward"): measured}), power_w).table
    own = table.options[0]
    kept = [(table.time_s[0, at], table.cost_j[0, at]) for at in own]
    assert kept == sorted(kept)
    assert all(later[1] < earlier[1] for earlier, later in pairwise(kept))
    for m in measured:
        assert any(time_s <= m.time_s and cost_j <= m.energy_j - power_w * m.time_s for time_s, cost_j in kept)
    corners = list(zip(*table.hulls[0], strict=True))
    assert (corners[0][0], corners[-1][0]) == (table.ratio[0, own[0]], table.ratio[0, own[-1]])
    for (t0, c0), (t1, c1) in pairwise(corners):
        for ratio, cost_w in zip(table.ratio[0, own], table.cost_w[0, own], strict=True):
            if t0 <= ratio <= t1:
                assert cost_w >= c0 + (c1 - c0) * (ratio - t0) / (t1 - t0) - 1e-6


# ---- the one reader and writer of profile CSVs: exact on the way there and back, and never more than a PlanError


cells = st.one_of(
    st.sampled_from(["", "0", "forward", "1410", "0.1", "1e999", "nan", "-1", '"', "1_0", "\x00", "9" * 400, "0x10"]),
    st.text(max_size=8),
)


@given(
    st.one_of(st.text(), st.lists(st.lists(cells, max_size=7).map(",".join)).map(lambda rows: HEADER + "\n".join(rows)))
)
@example(HEADER + "0,forward,1410,0.1,20\n0,forward,1410,0.1,20,1\n")
@example(HEADER + '0,"forward,1410,0.1,20\n')
@example("," * 100_000)
def test_whatever_a_file_holds_it_is_a_table_or_a_plan_error(text: str) -> None:
    try:
        table = read_table("p.csv", text)
    except PlanError as error:
        assert str(error).startswith("p.csv")
    else:
        assert set(COLUMNS) <= set(table.columns)
        assert (table["time"] > 0).all()


# ---- profiles as Zeus's profiler holds them survive their CSV


def test_a_profile_of_zeuss_profiler_survives_its_csv(tmp_path: Path) -> None:
    times = {"forward": {1410: 0.1, 1200: 0.12}, "backward": {1410: 0.2, 900: 0.3}}
    energies = {"forward": {1410: 30.0, 1200: 27.5}, "backward": {1410: 60.0, 900: 48.25}}
    fields = {f"{name}_time": times[name] for name in times} | {f"{name}_energy": energies[name] for name in times}
    ranks = [OfflineProfilingResult(rank=r, dp_rank=0, pp_rank=r, tp_rank=0, **fields) for r in range(2)]
    InstructionProfilingResult(ranks).to_csv(tmp_path / "profile.csv")
    read = read_table(tmp_path / "profile.csv")
    assert (tmp_path / "profile.csv").read_text().startswith(",".join([*RANK_COLUMNS, *COLUMNS]) + "\n")
    for stage in range(2):
        for name in times:
            rows = read[(read["stage"] == stage) & (read["instruction"] == name)].set_index("frequency")
            assert (rows["time"].to_dict(), rows["energy"].to_dict()) == (times[name], energies[name])
