"""Profiles as Zeus's profiler holds them survive their CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs import InstructionProfilingResult, OfflineProfilingResult
from pfo_fs.errors import PlanError
from pfo_fs.planner.profile_csv import COLUMNS, RANK_COLUMNS

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
    assert InstructionProfilingResult.from_csv(path) == profile


def test_the_five_column_form_is_read_with_stages_as_ranks(shared_data: Path) -> None:
    profile = InstructionProfilingResult.from_csv(shared_data / "profiles/gpt3-175b+a100_sxm_bf16.csv")
    assert [(result.rank, result.pp_rank) for result in profile.root] == [(stage, stage) for stage in range(8)]
    assert profile.root[0].forward_time[1410] == pytest.approx(0.05016166687011708)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stage,instruction,frequency,time\n0,forward,1410,1\n", "column energy is missing"),
        ("stage,instruction,frequency,time,energy\n0,forward,1410,fast,1\n", "row 2, column time: 'fast'"),
        ("stage,instruction,frequency,time,energy\n0,sideways,1410,1,1\n", "row 2, column instruction: 'sideways'"),
    ],
)
def test_a_wrong_profile_is_an_error_that_names_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(PlanError, match=message):
        InstructionProfilingResult.from_csv(path)
