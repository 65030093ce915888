"""`pfo-fs demo`: a job in virtual time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pfo_fs.cli import app

ROOT = Path(__file__).parents[2]


def result_of(*arguments: str | Path) -> dict[str, Any]:
    """What the demo tells programs."""
    done = CliRunner().invoke(app, ["demo", "--json", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_the_demo_ends_with_a_saving_and_a_page(tmp_path: Path) -> None:
    verdict = result_of("-d", tmp_path / "pfo", "-o", tmp_path / "demo.html")
    # Processors, Python and numpy round in different ways, and some end with another plan: 9.9 % was seen for 10.5.
    energy_saved, slowdown = shown_in_the_readme()
    assert verdict["energy_saved"] == pytest.approx(energy_saved, abs=0.01)
    assert verdict["slowdown"] == pytest.approx(slowdown, abs=0.001)
    assert verdict["settled"]
    assert (tmp_path / "demo.html").read_text().startswith("<!DOCTYPE html>")


def shown_in_the_readme() -> tuple[float, float]:
    """The share of energy that the demo saves, and by how much an iteration is slower, as the README has it."""
    printed = re.search(r"difference +\+([\d.]+) % +−([\d.]+) %", (ROOT / "README.md").read_text())
    assert printed
    return float(printed[2]) / 100, float(printed[1]) / 100
