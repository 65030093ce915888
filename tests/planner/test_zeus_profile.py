"""Profiles as Zeus's profiler holds them survive their CSV."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs import InstructionProfilingResult, OfflineProfilingResult
from pfo_fs.planner.profile_csv import COLUMNS, RANK_COLUMNS, read_table

tables = st.dictionaries(st.integers(200, 2000), st.floats(0.001, 100), min_size=1, max_size=5)


@st.composite
def profiles(draw: st.DrawFn) -> InstructionProfilingResult:
    results = []
    for rank in range(draw(st.integers(1, 4))):
        forward, backward = draw(tables), draw(tables)
        results.append(
            OfflineProfilingResult(
                rank=rank,
                dp_rank=0,
                pp_rank=rank,
                tp_rank=0,
                forward_time=forward,
                forward_energy={mhz: value * 2 for mhz, value in forward.items()},
                backward_time=backward,
                backward_energy={mhz: value * 3 for mhz, value in backward.items()},
            )
        )
    return InstructionProfilingResult(results)


@given(profile=profiles())
def test_a_profile_survives_its_csv(
    profile: InstructionProfilingResult, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "profile.csv"
    profile.to_csv(path)
    assert tuple(next(csv.reader(path.read_text().splitlines()))) == (*RANK_COLUMNS, *COLUMNS)
    read = read_table(path)
    for result in profile.root:
        rows = read[read["stage"] == result.pp_rank]
        for name, times_s, energies_j in (
            ("forward", result.forward_time, result.forward_energy),
            ("backward", result.backward_time, result.backward_energy),
        ):
            of_name = rows[rows["instruction"] == name].set_index("frequency")
            assert of_name["time"].to_dict() == times_s
            assert of_name["energy"].to_dict() == energies_j
