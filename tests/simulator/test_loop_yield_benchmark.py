"""`benchmarks/loop_yield.py` on one small job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "loop_yield.py"


@pytest.mark.slow
def test_a_generated_job_is_a_row_beside_a_plan_with_full_knowledge_that_is_in_time() -> None:
    done = subprocess.run(
        [
            sys.executable, BENCHMARK, "--jobs", "generated", "--first", "973006", "--seeds", "1", "--iterations", "3",
            "--seconds", "0", "--workers", "1", "--json",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    row, totals = map(json.loads, done.stdout.splitlines())
    assert row["known_saved"] > 0.1
    assert row["known_late"] <= 0.001
    assert row["ratio"] == pytest.approx(0.0, abs=1e-9)
    assert row["first"] is None, "there is no plan yet"
    assert list(totals) == ["generated, own"]
