"""`pfo-fs simulate --trace`: a job with the durations of a measured one."""

from __future__ import annotations

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


@pytest.mark.parametrize("job", [["--generated", "7"], ["--num-microbatches", "4"], []])
def test_any_job_is_simulated_with_the_step_factors_of_a_run(tmp_path: Path, job: list[str]) -> None:
    trace = write_trace(tmp_path / "job.csv", trace_rows(pipelines=4))
    steps = tmp_path / "steps.csv"
    steps.write_text("run,factor\nfast,1\nslow,9\nfast,3\n")
    arguments = ["simulate", *(job or ["--trace", trace]), "--iterations", 2, "--json"]
    done = pfo_fs(*arguments, "--step-factors", steps)
    assert "step factors of 2 steps, run fast" in done.stderr
    plain, with_factors = (each.answer["iterations"] for each in (pfo_fs(*arguments), done))
    ratios = [new["full_time_s"] / old["full_time_s"] for old, new in zip(plain, with_factors, strict=True)]
    assert ratios == [pytest.approx(1.0, rel=0.02), pytest.approx(3.0, rel=0.15)]
