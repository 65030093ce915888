"""Training under a dozen faults of set-up, child processes, directory and driver, by `benchmarks/faults.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_ends_with_default_clocks_under_each_fault_of_the_quick_benchmark(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--quick", "--json", str(tmp_path / "faults.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    results = json.loads((tmp_path / "faults.json").read_text())["results"]
    assert {result["kind"][0] for result in results} >= set("ABCE")
    assert all(result["codes"] == [0] for result in results)
