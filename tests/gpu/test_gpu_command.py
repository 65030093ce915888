"""`python -m benchmarks.gpu` without a GPU: its parts, its output, its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import run  # noqa: E402


def test_each_part_is_a_module_that_measures() -> None:
    for part in run.LIMITS_S:
        assert "def measure(" in (ROOT / "benchmarks" / "gpu" / f"{part}.py").read_text()


def test_lines_of_libraries_and_cut_off_lines_are_left_out() -> None:
    text = 'a library says\n{"part": "graph", "what": "x"}\n{"part": "graph", "wha'
    assert run.results_in(text) == [{"part": "graph", "what": "x"}]


def test_numbers_that_json_does_not_have_become_null() -> None:
    assert run.plain({"a": float("nan"), "b": {"c": float("inf"), "d": 1.5}}) == {"a": None, "b": {"c": None, "d": 1.5}}


def test_numbers_that_json_does_not_have_become_null_in_lists_too() -> None:
    assert run.plain({"a": [1.0, float("nan")]}) == {"a": [1.0, None]}


def test_long_lists_are_left_to_the_file() -> None:
    assert (
        run.figures({"part": "x", "what": "y", "power_w": [1.0, 2.0], "raw": list(range(100))}) == "power_w [1.0, 2.0]"
    )


def test_the_table_shows_each_figure_once() -> None:
    result = {"part": "x", "what": "y", "device": "z", "tick_ms": 20.04321, "reason": "", "cost_us": {"median": 1.5}}
    assert run.figures(result) == "tick_ms 20.04\ncost_us: median 1.5"


def test_a_part_that_fails_says_why_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {}

    def run_part(part: str, folder: Path, limit_s: float) -> list[dict[str, object]]:
        parts[part] = limit_s
        took: dict[str, object] = {"part": part, "what": "took", "seconds": 1.0}
        return [{**took, "error": "ended with 1: no GPU"} if part == "waves" else took]

    monkeypatch.setattr(run, "run_part", run_part)
    monkeypatch.setattr(
        sys, "argv", ["gpu", "--out", str(tmp_path / "out"), "--only", "waves", "graph", "--limit-s", "20"]
    )
    monkeypatch.setenv("PFO_FS_DRY_RUN", "")
    assert run.main() == 1
    assert list(parts) == ["waves", "graph"]
    assert max(parts.values()) <= 20  # and no part may take longer than all together
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line.get("error") for line in lines] == ["ended with 1: no GPU", None]
    assert "ended with 1: no GPU" in capsys.readouterr().out


@pytest.mark.slow
def test_without_a_gpu_the_command_ends_with_an_error_that_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--only", "graph"]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 1
    assert "torch finds no CUDA device here" in json.loads(done.stdout.splitlines()[0])["error"]
