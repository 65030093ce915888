"""docs/switching.md describes each mode and each simulated node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pfo_fs.device.simulated.physics import PRESETS
from pfo_fs.training.step_parts import MODES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "switching.md").read_text()


@pytest.mark.parametrize("name", [*MODES, *PRESETS])
def test_each_mode_and_each_simulated_node_has_a_row(name: str) -> None:
    assert re.search(rf"^\| `{name}`(, the default)? \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", re.findall(r"\]\(([^):#]+)\)|`((?:pfo_fs|benchmarks)/[a-z_/]+\.py)`", PAGE))
def test_each_file_that_is_named_exists(name: tuple[str, str]) -> None:
    page, file = name
    assert (ROOT / "docs" / page if page else ROOT / file).exists()
