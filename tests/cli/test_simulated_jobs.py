"""`pfo-fs simulate`: jobs in virtual time."""

from pathlib import Path

import pytest
from commands import pfo_fs
from traced_jobs import trace_rows, write_trace


def test_a_trace_is_simulated_and_its_summary_compares_with_full_clocks_on_the_same_data(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv.gz", trace_rows(pipelines=4))
    printed = pfo_fs("simulate", "--trace", path, "--pipelines", 2, "--iterations", 3, "--json").answer
    assert len(printed["iterations"][0]["spans_s"]) == 2
    summary = printed["summary"]
    figures = [summary[key] for key in ("run_saved", "run_late", "energy_saved", "slowdown", "worst_step_late")]
    assert figures == pytest.approx([0] * 5, abs=1e-9), "there is no plan yet"


def test_clocks_from_loads_are_simulated_with_the_same_figures_in_json_and_a_table_for_people(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv", trace_rows(pipelines=4))
    arguments = "simulate", "--trace", path, "--loads", "trace", "--iterations", 12
    summary = pfo_fs(*arguments, "--json").answer["summary"]
    assert {"run_saved", "run_late", "plan_saved", "plan_late", "worst_step_late", "balanced"} <= summary.keys()
    assert "Batches of equal work would make steps" in pfo_fs(*arguments).stdout


@pytest.mark.slow
def test_a_simulated_job_is_printed_as_json(tmp_path: Path) -> None:
    job = "--num-microbatches", 16, "--stages", 2, "--iterations", 40
    printed = pfo_fs("simulate", *job, "--json", "--shared-dir", tmp_path / "pfo").answer
    assert len(printed["iterations"]) == 40
    assert (tmp_path / "pfo" / "jobs" / printed["job_id"] / "job.json").exists(), "kept for report and trace"
