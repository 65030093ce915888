"""What users may plant in a directory that they share: none of it is read, followed or waited for."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pfo_fs.errors import StoreError
from pfo_fs.store import Files, SharedDirectory, layout

ALICE, BOB = 12345, 23456
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make devices and files of other users")


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def make_foreign(path: Path) -> None:
    path.write_text("planted")
    os.chown(path, BOB, BOB)


PLANTED: dict[str, Callable[[Path], None]] = {
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "dangling link": lambda path: path.symlink_to(path.parent / "missing"),
    "link to itself": lambda path: path.symlink_to(path),
    "FIFO": os.mkfifo,
    "socket": make_socket,
    "folder": Path.mkdir,
    "endless device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
    "disk": lambda path: os.mknod(path, 0o666 | stat.S_IFBLK, os.makedev(7, 200)),
    "file of another user": make_foreign,
    "sparse file of a terabyte": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
}


NEED_ROOT = {"endless device", "disk", "file of another user"}
KINDS = [pytest.param(kind, marks=[needs_root] if kind in NEED_ROOT else []) for kind in PLANTED]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_in_a_jobs_folder_is_refused_and_can_be_replaced(tmp_path: Path, kind: str) -> None:
    shared = SharedDirectory.open(tmp_path / "pfo", create=True)
    folder = tmp_path / "pfo" / "jobs" / "x"
    folder.mkdir()
    PLANTED[kind](folder / "schedule.yaml")
    job = shared.job("x")
    with pytest.raises(StoreError, match=r"schedule\.yaml"):
        job.read_file(layout.YAML)
    if kind != "folder":
        job.write_file(layout.YAML, b"mine")
        assert job.read_file(layout.YAML) == b"mine"
        PLANTED[kind](tmp_path / "pfo" / "jobs" / "y")
        for read in (shared.job("y").read_job, shared.job("y").names):
            with pytest.raises(StoreError):
                read()
    assert "root" in Path("/etc/passwd").read_text()


@needs_root
def test_in_a_directory_of_a_group_files_of_users_who_are_not_allowed_are_not_read(tmp_path: Path) -> None:
    root = tmp_path / "pfo"
    root.mkdir()
    root.chmod(0o2770)
    for user in (ALICE, BOB):
        (root / str(user)).mkdir()
        (root / f"{user}" / "a").write_text("x")
        os.chown(root / f"{user}" / "a", user, -1)
        os.chown(root / str(user), user, -1)
    of_all, of_alice = Files(root), Files(root, users={ALICE})
    for user in (ALICE, BOB):
        assert of_all.read(f"{user}/a", 10) == b"x"
        assert of_all.foreign_owner(str(user)) is None
    assert of_alice.read(f"{ALICE}/a", 10) == b"x"
    assert of_alice.foreign_owner(str(ALICE)) is None
    assert of_alice.foreign_owner("missing") is None
    assert of_alice.foreign_owner(str(BOB)) == BOB
    with pytest.raises(StoreError, match=f"belongs to user {BOB}"):
        of_alice.read(f"{BOB}/a", 10)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o644, 0o620, 0o660, 0o664, 0o602, 0o666])
def test_where_users_are_named_a_file_that_others_may_write_into_is_not_read(tmp_path: Path, mode: int) -> None:
    """A member of the group may have renamed a file of an allowed user, and written into it."""
    tmp_path.chmod(0o2770)
    path = tmp_path / "site.yaml"
    path.write_text("x")
    path.chmod(mode)
    of_all, of_some = Files(tmp_path), Files(tmp_path, users=[])
    assert of_all.read("site.yaml", 10) == b"x"
    if mode & 0o022:
        with pytest.raises(StoreError, match="chmod go-w"):
            of_some.read("site.yaml", 10)
    else:
        assert of_some.read("site.yaml", 10) == b"x"


def test_what_pfo_fs_writes_into_a_directory_of_a_group_is_read_where_users_are_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    files, of_some = Files(tmp_path), Files(tmp_path, users=[])
    files.publish("published", b"x")
    files.claim("claimed", b"x")
    files.claim_each("", ["one", "two"], b"x")
    os.close(files.open_lock("lock"))
    for name in ("published", "claimed", "one", "two"):
        assert of_some.read(name, 10) == b"x"
    for path in tmp_path.iterdir():
        assert not path.stat().st_mode & 0o022, f"no member of the group can write into {path.name}"
