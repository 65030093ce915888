"""CONTRIBUTING.md describes the code that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_layers import PACKAGE, ROOMS

ROOT = PACKAGE.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:[a-z_.]+/)*[a-z_]+\.py|[a-z_]+/[a-z_]+)`", TEXT)))


@pytest.mark.parametrize("name", NAMED)
def test_every_file_that_is_named_exists(name: str) -> None:
    assert (ROOT / name).exists() or (PACKAGE / name).exists()


def test_files_are_named_in_all_parts_of_the_page() -> None:
    assert len(NAMED) > 40, "the pattern above does not find them any more"


@pytest.mark.parametrize("room", ROOMS)
def test_the_map_has_each_room_with_what_it_may_import(room: str) -> None:
    row = re.search(rf"^\| `{room}` \| .+ \| (.*?) ?\|$", TEXT, re.MULTILINE)
    assert row
    if row[1] not in ("all", "most of the above"):
        assert {name for name in row[1].split(", ") if name} == ROOMS[room]


def test_the_map_has_no_other_rooms() -> None:
    part = TEXT.partition("## The rooms")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == list(ROOMS)


def test_the_one_command_exists_and_can_be_run() -> None:
    gate = ROOT / "tools" / "gate"
    assert "tools/gate" in TEXT
    assert gate.stat().st_mode & 0o111
    assert "tools/gate" in (ROOT / ".ci" / "run").read_text()


ROWS = re.findall(
    r"^\| .+? \| (`.+?) \|", TEXT.partition("## What is decided where")[2].partition("\n## ")[0], re.MULTILINE
)
DECISIONS = [pair for row in ROWS for pair in re.findall(r"`([a-z_]+)`: ((?:`[a-z_]+`(?:, )?)+)", row)]


def test_the_modules_that_decide_are_in_the_rooms_that_the_table_names() -> None:
    assert len(DECISIONS) > 20, "the pattern above does not find them any more"
    for room, names in DECISIONS:
        assert room in ROOMS
        for name in re.findall(r"`([a-z_]+)`", names):
            assert list((PACKAGE / room).rglob(f"{name}.py")), f"{room} has no module {name}"


def test_files_of_a_room_lie_in_that_room() -> None:
    named = {Path(name).parts[0] for name in NAMED if (PACKAGE / name).exists() and "/" in name}
    assert named <= set(ROOMS)
