"""`pfo-fs demo` in virtual time; the one with real processes takes minutes and is run by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pfo_fs.cli.demo import EXAMPLE_FOLDERS, example_path
from pfo_fs.cli.virtual_demo import run_virtual_demo

ROOT = Path(__file__).parents[2]


def test_the_demo_finds_the_training_script_of_a_checkout() -> None:
    assert example_path("train_pipeline.py") == ROOT / "examples" / "train_pipeline.py"


def test_the_demo_looks_first_where_the_wheel_puts_the_training_script() -> None:
    assert '"examples/train_pipeline.py" = "pfo_fs/examples/train_pipeline.py"' in (ROOT / "pyproject.toml").read_text()
    assert EXAMPLE_FOLDERS[0] == ROOT / "pfo_fs" / "examples"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_ends_with_a_saving_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_virtual_demo(slowdown=1.0, shared_dir=tmp_path / "pfo", output=tmp_path / "demo.html", as_json=True)
    verdict = json.loads(capsys.readouterr().out)
    # Processors, Python and numpy round in different ways, and some end with another plan: 9.9 % was seen for 10.5.
    energy_saved, slowdown = shown_in_the_readme()
    assert verdict["energy_saved"] == pytest.approx(energy_saved, abs=0.01)
    assert verdict["slowdown"] == pytest.approx(slowdown, abs=0.001)
    assert verdict["settled"]
    assert (tmp_path / "demo.html").read_text().startswith("<!DOCTYPE html>")


def shown_in_the_readme() -> tuple[float, float]:
    """The share of energy that the demo saves, and by how much an iteration is slower, as the README has it."""
    readme = (ROOT / "README.md").read_text()
    row = re.search(r"\| `pfo-fs demo` \| ([\d.]+) % \| ([\d.]+) % \|", readme)
    printed = re.search(r"difference +\+([\d.]+) % +−([\d.]+) %", readme)
    assert row
    assert printed
    assert (row[1], row[2]) == (printed[2], printed[1])
    return float(row[1]) / 100, float(row[2]) / 100
