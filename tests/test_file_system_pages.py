"""docs/failures.md, docs/threat-model.md and CONTRIBUTING.md name files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/failures.md", "docs/threat-model.md"])
def test_every_file_and_test_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    files = re.findall(r"`((?:pfo_fs|tests)/[\w/]+\.py)`", text)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in TESTS] == []


def test_each_of_the_requirements_on_file_systems_has_a_row_with_a_test() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## What pfo-fs asks of a shared file system\n")[2]
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+?) \|$", section.partition("\n## ")[0], re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    assert all("`test_" in tests for _, tests in rows)
