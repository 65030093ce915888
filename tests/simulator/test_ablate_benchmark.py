"""`benchmarks/ablate.py`: it switches off what exists, and goes on where it was ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ALL_CAN_BE_SWITCHED_OFF = """
import _heuristics
for heuristic in _heuristics.HEURISTICS:
    with _heuristics.switched_off(heuristic):
        pass
"""


def test_what_the_benchmark_switches_off_exists() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALL_CAN_BE_SWITCHED_OFF], cwd=BENCHMARKS, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_a_run_adds_what_is_missing_and_prints_all(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, BENCHMARKS / "ablate.py", "--out", rows, "--part", "planner", "--no-traces"]
    command += ["--jobs", "1", "--largest", "30", "--only", "annealing"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    lines = rows.read_text().splitlines()
    assert {json.loads(line)["heuristic"] for line in lines} == {"all on", "annealing"}
    rows.write_text("\n".join(lines[:2]) + "\n")
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert len(rows.read_text().splitlines()) == len(lines)
    assert "annealing" in first.stdout
    assert again.stdout == first.stdout
