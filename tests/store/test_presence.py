"""A directory that was removed, and one that only cannot be seen."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import make_job
from replaced_calls import Calls, refuses

from pfo_fs.store import Files, Mount, Presence


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "team" / "shared" / "pfo"


@pytest.fixture
def seen(root: Path) -> tuple[Presence, str, Calls]:
    """A directory with a job, seen while all was well."""
    root.parent.mkdir(parents=True)
    job_id, calls = make_job(root, 1).job_id, Calls()
    presence = Presence(Files(root, calls=calls))
    presence.remember()
    assert presence.why_gone(job_id) == ""
    return presence, job_id, calls


def _with_other_inodes(path: str, **_: object) -> os.stat_result:
    found = os.stat(path)
    return os.stat_result((found[0], found[1] + 1_000_003, *found[2:10]))


@pytest.mark.parametrize(
    ("remove", "text"),
    [
        (lambda root: shutil.rmtree(root), "was removed"),
        (lambda root: shutil.rmtree(root.parent.parent), "was removed"),
        (lambda root: root.rename(root.with_name("old")), "was removed"),
        (lambda root: root.parent.rename(root.parent.with_name("old")), "was removed"),
        (lambda root: [shutil.rmtree(path) for path in root.iterdir() if path.is_dir()], "the content of"),
        (lambda root: shutil.rmtree(root / "jobs"), "the content of"),
        (lambda root: [shutil.rmtree(path) for path in (root / "jobs").iterdir()], "the job's folder was removed"),
        (lambda root: [path.rename(root / path.name) for path in (root / "jobs").iterdir()], "the job's folder"),
        (lambda root: (root.rename(root.with_name("old")), root.mkdir()), "was replaced"),
    ],
    ids=["rm", "rm far above", "mv", "mv above", "content", "jobs", "job", "mv job", "replaced"],
)
@pytest.mark.parametrize("inodes_change", [False, True])
def test_what_a_user_removes_counts_as_removed_also_where_inode_numbers_change(
    root: Path, seen: tuple[Presence, str, Calls], remove: Callable[[Path], object], text: str, inodes_change: bool
) -> None:
    presence, job_id, calls = seen
    if inodes_change:
        calls.stat = _with_other_inodes  # type: ignore[method-assign]
    remove(root)
    assert text in presence.why_gone(job_id)


@pytest.mark.parametrize("name", ["stat", "listdir", "open"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("gone", [False, True])
def test_an_error_of_the_file_system_is_no_removal(
    root: Path, seen: tuple[Presence, str, Calls], name: str, number: int, gone: bool
) -> None:
    presence, job_id, calls = seen
    if gone:
        shutil.rmtree(root)
    setattr(calls, name, refuses(number))
    assert presence.why_gone(job_id) == ""


def test_inode_numbers_that_change_and_a_name_that_a_listing_still_has_are_no_removal(
    root: Path, seen: tuple[Presence, str, Calls]
) -> None:
    """As SMB without the server's numbers, rclone and other FUSE file systems give them; and a name that is cached."""
    presence, job_id, calls = seen
    calls.stat = _with_other_inodes  # type: ignore[method-assign]
    assert presence.why_gone(job_id) == ""
    (root / "directory.json").unlink()  # a purge of old files
    assert presence.why_gone(job_id) == ""
    calls.stat = refuses(errno.ENOENT, os.stat, lambda path, **_: path == str(root))  # type: ignore[method-assign]
    assert presence.why_gone(job_id) == ""
    assert Presence(presence.files).why_gone("other") == "", "before the directory was seen nothing counts as removed"


def _on_another_mount(found: os.stat_result) -> os.stat_result:
    return os.stat_result((*found[:2], found.st_dev + 1, *found[3:10]))


@pytest.mark.parametrize(
    "remove", [lambda root: (shutil.rmtree(root), root.mkdir()), lambda root: shutil.rmtree(root.parent.parent)]
)
def test_a_mount_that_is_missing_at_the_directory_or_above_it_is_no_removal(
    root: Path, seen: tuple[Presence, str, Calls], remove: Callable[[Path], object]
) -> None:
    presence, job_id, calls = seen
    remove(root)
    calls.stat = lambda path, **_: _on_another_mount(os.stat(path))  # type: ignore[method-assign]
    assert presence.why_gone(job_id) == ""


def test_where_the_directory_is_itself_the_mount_point_its_absence_is_no_removal(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.parent.mkdir(parents=True)
    job_id = make_job(root, 1).job_id
    monkeypatch.setattr("pfo_fs.store.presence.mount_of", lambda path: Mount(point=str(root)))
    presence = Presence(Files(root))
    presence.remember()
    root.rename(root.with_name("away"))
    assert presence.why_gone(job_id) == ""
    root.mkdir()  # the empty mount point; a bind mount has the device of what is around it
    assert presence.why_gone(job_id) == ""
