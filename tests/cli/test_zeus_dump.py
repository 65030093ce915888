"""`pfo-fs plan` on the folder that a Zeus server has dumped. `benchmarks/zeus_interchange.py` runs the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfo_fs.cli.plan_parts import read_dump
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.planner.profile import read_profile
from pfo_fs.store import save_dump

CLOCKS = [1400, 1000]
ENERGY_J = {"forward": {1400: 300.0, 1000: 250.0}, "backward": {1400: 700.0, 1000: 550.0}}
TIME_S = {"forward": {1400: 1.0, 1000: 1.3}, "backward": {1400: 2.0, 1000: 2.5}}


def dump(folder: Path, *, short: bool = False) -> Path:
    """Two stages, in each of two schedules one clock; two iterations of two micro-batches, off by 10 % up and down."""
    ranks = [RankInfo(rank=r, dp_rank=0, pp_rank=r, tp_rank=0, available_frequencies=CLOCKS) for r in range(2)]
    save_dump(RankInfo, ranks, folder)
    for number, mhz in enumerate(CLOCKS):
        names = ["forward", "backward"] * 2
        save_dump(
            FrequencySchedule,
            [FrequencySchedule(rank=r, frequencies=[(name, mhz) for name in names]) for r in range(2)],
            folder,
            number,
        )

        def of(table: dict[str, dict[int, float]], rank: int, mhz: int = mhz) -> dict[str, list[list[float]]]:
            return {
                name: [[factor * (1 + rank) * table[name][mhz]] * (1 if short else 2) for factor in (0.9, 1.1)]
                for name in table
            }

        results = [
            ProfilingResult(
                rank=r,
                iter_time=[6, 6],
                iter_energy=[2, 2],
                time_breakdown=of(TIME_S, r),
                energy_breakdown=of(ENERGY_J, r),
            )
            for r in range(2)
        ]
        save_dump(ProfilingResult, results, folder, number)
    return folder


def test_a_dump_is_the_profile_of_its_averages(tmp_path: Path) -> None:
    rows = [
        f"{stage},{name},{mhz},{(1 + stage) * TIME_S[name][mhz]},{(1 + stage) * ENERGY_J[name][mhz]}"
        for stage in range(2)
        for name in TIME_S
        for mhz in CLOCKS
    ]
    expected = read_profile("expected", "\n".join(["stage,instruction,frequency,time,energy", *rows]))
    found = read_dump(dump(tmp_path))
    assert {kind: [m.frequency_mhz for m in of] for kind, of in found.measurements.items()} == {
        kind: [m.frequency_mhz for m in of] for kind, of in expected.measurements.items()
    }
    for kind, of in expected.measurements.items():
        for want, have in zip(of, found.measurements[kind], strict=True):
            assert (have.time_s, have.energy_j) == pytest.approx((want.time_s, want.energy_j))


def test_results_that_do_not_fit_to_their_schedule_and_other_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"is not the dump of a job: there is no <n>\.prof\.json"):
        read_dump(tmp_path)
    with pytest.raises(PlanError, match="rank 0 does not have 2 times and energies of forward"):
        read_dump(dump(tmp_path, short=True))
