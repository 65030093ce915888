"""docs/failures.md and docs/threat-model.md name code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("failures.md", "threat-model.md")
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_test_that_is_named_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    files = re.findall(r"`((?:pfo_fs|tests)/[\w/]+\.py)`", text)
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in TESTS] == []


def test_each_of_the_requirements_has_a_row_with_code_and_a_test() -> None:
    text = (ROOT / "docs" / "failures.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|", text, re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(1, 26))
    assert all("pfo_fs/" in code or "end.json" in code for _, _, code, _ in rows)
    assert all("`test_" in tests for *_, tests in rows)
