"""`benchmarks/loop_yield.py` and `benchmarks/traces.py`, on small jobs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traced_jobs import trace_rows, write_trace

LOOP_YIELD, TRACES = (Path(__file__).parents[2] / "benchmarks" / name for name in ("loop_yield.py", "traces.py"))


def rows_of(script: Path, *arguments: object) -> list[dict[str, Any]]:
    """What a benchmark prints of jobs of three iterations."""
    command = [sys.executable, script, *map(str, arguments), "--iterations", "3", "--workers", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [*map(json.loads, done.stdout.splitlines())]


@pytest.mark.slow
def test_a_generated_job_is_a_row_beside_a_plan_with_full_knowledge_that_is_in_time() -> None:
    row, totals = rows_of(LOOP_YIELD, "--jobs", "generated", "--first", 513026, "--seeds", 1, "--seconds", 0)
    assert row["known_saved"] > 0.1
    assert row["known_late"] <= 0.001
    assert row["ratio"] == pytest.approx(0.0, abs=1e-9)
    assert row["first"] is None, "there is no plan yet"
    assert list(totals) == ["generated, own"]


def test_each_pipeline_count_of_each_trace_is_a_row_and_slow_workers_are_one_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    write_trace(tmp_path / "traces" / "small.csv.gz", trace_rows(pipelines=3, slow_pipeline=2))
    *rows, totals = rows_of(TRACES, "--data", tmp_path, "--seeds", 1, "--nodes", "launch", "--no-known")
    assert sorted((row["pipelines"], row["slow_workers"]) for row in rows) == [(1, False), (2, False), (3, True)]
    assert {row["plan_late"] for row in rows} == {0.0}, "there is no plan yet"
    assert set(totals) == {"small, launch", "small with slow workers, launch"}


def test_without_traces_the_benchmark_says_where_it_looked(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, TRACES, "--data", tmp_path], capture_output=True, text=True, check=True)
    assert f"{tmp_path / 'traces'} is absent or empty" in done.stderr
