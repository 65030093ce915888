"""`pfo-fs demo`: a job in virtual time."""

import re
from pathlib import Path

import pytest
from commands import pfo_fs


@pytest.mark.slow
def test_the_demo_ends_with_a_saving_and_a_page(tmp_path: Path) -> None:
    done = pfo_fs("demo", "--json", "-d", tmp_path / "pfo", "-o", tmp_path / "demo.html")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    printed = re.search(r"difference +\+([\d.]+) % +−([\d.]+) %", readme)
    assert printed
    # Processors, Python and numpy round in different ways, and some end with another plan: 9.9 % was seen for 10.5.
    assert done.answer["energy_saved"] == pytest.approx(float(printed[2]) / 100, abs=0.01)
    assert done.answer["slowdown"] == pytest.approx(float(printed[1]) / 100, abs=0.001)
    assert done.answer["settled"]
    page = (tmp_path / "demo.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    verdict = re.search(r"saves ([\d.]+) ± ([\d.]+) %", page)
    assert verdict
    assert f"−{verdict[1]} % ± {verdict[2]}<" in page, "verdict and card tell one saving with one error"
