"""Rules of CONTRIBUTING.md (shared file systems) that hold for the whole code that touches the shared directory."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path

import pytest
from gluster_volume import Gluster
from jobs import rank_body
from running import wait_for

from pfo_fs.errors import NotShared, StoreUnavailable
from pfo_fs.helper import operations
from pfo_fs.helper.operations import DirectoryOperations, RegisterRanks
from pfo_fs.store import Files

ROOT = Path(__file__).parents[2]
ROOMS = ("store", "helper", "coordination")
PROTOCOL = [path for room in ROOMS for path in sorted((ROOT / "pfo_fs" / room).glob("*.py"))]
# These answer "no" after any error, so a lost connection would count as a missing file.
_ANSWER_NO = {"exists", "isfile", "isdir", "is_file", "is_dir", "lexists", "is_symlink", "islink", "samefile"}


@pytest.mark.parametrize("path", PROTOCOL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_error_never_counts_as_absence_and_no_file_is_appended_to(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    assert not {node.attr for node in calls} & (_ANSWER_NO | {"O_APPEND"})


def test_a_lost_connection_is_no_directory_that_lacks_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = DirectoryOperations(tmp_path / "pfo", "node1:1", "Manual")

    def lost(path: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    joins = RegisterRanks((rank_body(),), "job", "attempt", "", again=False)
    with pytest.raises(NotShared):
        own.execute(joins)
    monkeypatch.setattr(operations.os, "stat", lost)
    with pytest.raises(StoreUnavailable, match="not connected"):
        own.execute(joins)


@pytest.mark.gluster
def test_every_way_to_save_a_file_is_seen_on_another_mount(gluster: Gluster) -> None:
    here, there = (mount / "pfo" for mount in gluster.mounts)
    here.mkdir(mode=0o700)
    yaml, files = here / "schedule.yaml", Files(there)

    def in_place(data: bytes) -> None:
        with open(yaml, "r+b") as file:
            file.write(data)

    def by_rename(data: bytes) -> None:
        (here / ".schedule.yaml.swp").write_bytes(data)
        os.replace(here / ".schedule.yaml.swp", yaml)

    yaml.write_bytes(b"clock: 1200")
    for number, save in enumerate((in_place, yaml.write_bytes, by_rename, in_place)):
        save(b"clock: 13%02d" % number)
        wait_for(lambda n=number: files.read("schedule.yaml", 100) == b"clock: 13%02d" % n)
