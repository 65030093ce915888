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
    figures = [summary[key] for key in ("run_saved", "run_late", "plan_saved", "plan_late", "worst_step_late")]
    assert figures == pytest.approx([0] * 5, abs=1e-9), "there is no plan yet"


def test_clocks_from_loads_are_simulated_with_the_same_figures_in_json_and_a_table_for_people(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv", trace_rows(pipelines=4))
    arguments = "--trace", path, "--loads", "trace", "--iterations", 12
    summary = json.loads(simulate(*arguments, "--json").stdout)["summary"]
    assert {"run_saved", "run_late", "plan_saved", "plan_late", "worst_step_late", "balanced"} <= summary.keys()
    done = simulate(*arguments)
    assert done.returncode == 0
    assert "Batches of equal work would make steps" in done.stdout


def test_a_trace_that_is_not_valid_ends_the_command_with_the_row(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv", [(0, 0, 0, "forward", 0, -1.0)])
    done = simulate("--trace", path)
    assert done.returncode == 1
    assert "row 2, column time_s: '-1.0'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", "job.csv", "--generated", "3"], "give --num-microbatches"),
        (["--num-microbatches", "4", "--loads", "trace"], "--loads needs --trace"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], words: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
