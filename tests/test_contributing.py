"""CONTRIBUTING.md describes the code that is there."""

from __future__ import annotations

import re
from pathlib import Path

from test_layers import PACKAGE, ROOMS

ROOT = PACKAGE.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:[a-z_.]+/)*[a-z_]+\.py|[a-z_]+/[a-z_]+)`", TEXT)))


def test_every_file_that_is_named_exists() -> None:
    assert len(NAMED) > 40, "the pattern above does not find them any more"
    assert [name for name in NAMED if not ((ROOT / name).exists() or (PACKAGE / name).exists())] == []


def test_the_map_has_each_room_with_what_it_may_import() -> None:
    part = TEXT.partition("## The rooms")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| (.*?) ?\|$", part, re.MULTILINE))
    assert list(rows) == list(ROOMS)
    for room, listed in rows.items():
        if listed not in ("all", "most of the above"):
            assert {name for name in listed.split(", ") if name} == ROOMS[room], room


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
