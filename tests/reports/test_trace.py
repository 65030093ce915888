"""Traces: the durations of a job, which the simulator replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_jobs import trace_rows
from traced_jobs import write_trace as write_durations

from pfo_fs.errors import PlanError
from pfo_fs.reports.collect import JobData, collect_job
from pfo_fs.reports.timeline import write_trace
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, read_trace


def test_a_simulated_job_writes_the_durations_of_the_trace_that_it_has_replayed(tmp_path: Path) -> None:
    replayed = read_trace(write_durations(tmp_path / "in.csv", trace_rows(steps=20)))
    play = Play(replayed.job().cluster(), tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    for _ in play.run(20):
        pass
    counts = write_trace(collect_job(play.folder), tmp_path / "out.csv.gz")
    written = read_trace(tmp_path / "out.csv.gz")
    assert written.dp_ranks == [0, 1]
    assert len(written.steps) == counts["steps"] >= 5
    for kind, length_s in written.lengths_s.items():
        for number, step in enumerate(written.steps):
            nodes = [n for n, one in enumerate(written.pipeline.instructions) if (one.stage, one.name) == kind]
            times_s = replayed.lengths_s[kind] * replayed.table[step, nodes]
            assert length_s * written.table[number, nodes] == pytest.approx(times_s, rel=1e-4)


def test_only_iterations_at_full_clocks_are_written(data: JobData, tmp_path: Path) -> None:
    write_trace(data, tmp_path / "job.csv")
    steps = set(read_trace(tmp_path / "job.csv").steps)
    lowered = [
        window for window in data.windows if window.measured and any(mhz not in (0, 1410) for mhz in window.clocks_mhz)
    ]
    assert lowered
    assert not steps & {window.measured.first_step for window in lowered if window.measured}


def test_a_job_without_results_has_no_trace_and_leaves_no_file(tmp_path: Path) -> None:
    trace = read_trace(write_durations(tmp_path / "in.csv", trace_rows()))
    play = Play(trace.job().cluster(), tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler"))
    play.step()
    with pytest.raises(PlanError, match="no iteration was measured"):
        write_trace(collect_job(play.folder), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
