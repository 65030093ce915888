"""`pfo-fs simulate --trace`: a job with the durations of a measured one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import pfo_fs
from traced_jobs import trace_rows, write_trace


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    return pfo_fs("simulate", *arguments)


def test_a_trace_is_simulated_and_its_summary_compares_with_full_clocks_on_the_same_data(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv.gz", trace_rows(pipelines=4))
    done = simulate("--trace", path, "--pipelines", 2, "--iterations", 3, "--json")
    printed = json.loads(done.stdout)
    assert len(printed["iterations"][0]["spans_s"]) == 2
    summary = printed["summary"]
    figures = [summary[key] for key in ("run_saved", "run_late", "energy_saved", "slowdown", "worst_step_late")]
    assert figures == pytest.approx([0] * 5, abs=1e-9), "there is no plan yet"


def test_clocks_from_loads_are_simulated_with_the_same_figures_in_json_and_a_table_for_people(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv", trace_rows(pipelines=4))
    arguments = "--trace", path, "--loads", "trace", "--iterations", 12
    summary = json.loads(simulate(*arguments, "--json").stdout)["summary"]
    assert {"run_saved", "run_late", "plan_saved", "plan_late", "worst_step_late", "balanced"} <= summary.keys()
    done = simulate(*arguments)
    assert done.returncode == 0
    assert "Batches of equal work would make steps" in done.stdout


@pytest.mark.parametrize(
    "job", [["--generated", "7"], ["--generated", "7", "--varied"], ["--num-microbatches", "4"], []]
)
def test_any_job_is_simulated_with_the_step_factors_of_a_run(tmp_path: Path, job: list[str]) -> None:
    trace = write_trace(tmp_path / "job.csv", trace_rows(pipelines=4))
    steps = tmp_path / "steps.csv"
    steps.write_text("run,factor\nslow,9\nfast,1\nfast,3\n")
    arguments = [*(job or ["--trace", trace]), "--iterations", 2, "--json"]
    done = simulate(*arguments, "--step-factors", steps, "--step-factors-run", "fast")
    assert "step factors of 2 steps, run fast" in done.stderr
    plain, with_factors = (json.loads(each.stdout)["iterations"] for each in (simulate(*arguments), done))
    ratios = [new["full_time_s"] / old["full_time_s"] for old, new in zip(plain, with_factors, strict=True)]
    assert ratios == [pytest.approx(1.0, rel=0.02), pytest.approx(3.0, rel=0.15)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", "job.csv", "--generated", "3"], "give --num-microbatches"),
        (["--num-microbatches", "4", "--loads", "trace"], "--loads needs --trace"),
        (["--num-microbatches", "4", "--step-factors-run", "a"], "--step-factors-run needs --step-factors"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], words: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
