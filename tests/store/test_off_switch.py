"""The switch: a name in `off/`, whatever that is; a directory that was removed, or only cannot be seen."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import make_job, rank_infos, register
from replaced_calls import Calls, creates, refuses

from pfo_fs.errors import StoreError
from pfo_fs.store import Files, Mount, OffSwitch, Presence, SharedDirectory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "team" / "shared" / "pfo"
    root.parent.mkdir(parents=True)
    SharedDirectory.open(root, create=True)
    return root


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_jobs_name_covers_that_job_and_all_covers_every_job(root: Path, has_folder: bool) -> None:
    """Without the folder nothing is off, and switching off makes it."""
    if not has_folder:
        shutil.rmtree(root / "off")
    switch = OffSwitch(Files(root))
    assert switch.read().is_there == has_folder
    assert not switch.read().covers("one")
    switch.turn_off("one", "first")
    switch.turn_off("one", "second")
    assert (switch.read().covers("one"), switch.read().covers("other")) == (True, False)
    assert "first" in switch.about("one"), "a switch that is there keeps what it says"
    switch.turn_off("all")
    assert switch.read().covers("other")
    assert switch.turn_on("all")
    assert switch.turn_on("one")
    assert not switch.turn_on("one"), "it was on already"
    assert not switch.read().names


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("/nonexistent"),
        lambda path: path.write_bytes(os.urandom(1 << 20)),
        lambda path: (path.touch(), path.chmod(0)),
    ],
)
def test_whatever_has_the_name_switches_off(root: Path, make: Callable[[Path], object]) -> None:
    make(root / "off" / "all")
    switch = OffSwitch(Files(root))
    assert switch.read().covers("job")
    assert len(switch.about("all")) <= 300
    switch.turn_off("all")
    assert switch.read().covers("job")


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/tmp"), None])
def test_what_is_no_readable_folder_switches_everything_off(root: Path, make: Callable[[Path], object] | None) -> None:
    if make is not None:
        shutil.rmtree(root / "off")
        make(root / "off")
    calls = refuses_to_open(errno.EACCES, "off") if make is None else None
    assert OffSwitch(Files(root, calls=calls)).read().covers("job")


def refuses_to_open(number: int, *names: str) -> Calls:
    return Calls(open=refuses(number, os.open, lambda path, *_, **__: path in names))


EXPIRED = [(number, at) for number in (errno.EACCES, errno.EPERM, errno.EKEYEXPIRED) for at in ("root", "jobs", ".")]
TROUBLE = [(number, "off") for number in (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)]


@pytest.mark.parametrize(("number", "around"), [*EXPIRED, *TROUBLE])
def test_trouble_or_a_refusal_also_around_the_switch_switches_nothing(root: Path, number: int, around: str) -> None:
    """Network file systems refuse once the user's ticket has expired; they may still answer for some folders."""
    names = ("off", str(root) if around == "root" else around)
    with pytest.raises(StoreError):
        OffSwitch(Files(root, calls=refuses_to_open(number, *names))).read()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("left", ["names and files", "names", "nothing"])
def test_a_full_file_system_can_be_switched_off_and_on(root: Path, number: int, left: str) -> None:
    register(make_job(root, 1), rank_infos(1))
    full = Calls(write=refuses(number), mkdir=refuses(number))  # no room for content
    if left != "names and files":
        full.open = refuses(number, os.open, creates)
    if left == "nothing":  # as on tmpfs
        full.link = refuses(number)
    switch = OffSwitch(Files(root, calls=full))
    records = {path for path in root.rglob("*") if path.suffix != ".lock"}
    switch.turn_off("all", "a checkpoint has filled the quota")
    assert OffSwitch(Files(root)).read().covers("job")
    assert switch.about("all") == ""
    assert switch.turn_on("all")
    assert {path for path in root.rglob("*") if path.suffix != ".lock"} == records


Seen = tuple[Presence, str, Calls]


@pytest.fixture
def seen(root: Path) -> Seen:
    """A directory with a job, seen while all was well."""
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
    root: Path, seen: Seen, remove: Callable[[Path], object], text: str, inodes_change: bool
) -> None:
    presence, job_id, calls = seen
    if inodes_change:
        calls.stat = _with_other_inodes
    remove(root)
    assert text in presence.why_gone(job_id)


@pytest.mark.parametrize("name", ["stat", "listdir", "open"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("gone", [False, True])
def test_an_error_of_the_file_system_is_no_removal(root: Path, seen: Seen, name: str, number: int, gone: bool) -> None:
    presence, job_id, calls = seen
    if gone:
        shutil.rmtree(root)
    setattr(calls, name, refuses(number))
    assert presence.why_gone(job_id) == ""


def test_changed_inode_numbers_and_a_listed_name_are_no_removal(root: Path, seen: Seen) -> None:
    """As SMB without the server's numbers, rclone and other FUSE file systems give them; and a name that is cached."""
    presence, job_id, calls = seen
    calls.stat = _with_other_inodes
    assert presence.why_gone(job_id) == ""
    (root / "directory.json").unlink()  # a purge of old files
    assert presence.why_gone(job_id) == ""
    calls.stat = refuses(errno.ENOENT, os.stat, lambda path, **_: path == str(root))
    assert presence.why_gone(job_id) == ""
    assert Presence(presence.files).why_gone("other") == "", "before the directory was seen nothing counts as removed"


@pytest.mark.parametrize(
    "remove", [lambda root: (shutil.rmtree(root), root.mkdir()), lambda root: shutil.rmtree(root.parent.parent)]
)
def test_a_missing_mount_is_no_removal(root: Path, seen: Seen, remove: Callable[[Path], object]) -> None:
    presence, job_id, calls = seen
    remove(root)
    calls.stat = lambda path, **_: os.stat_result((*(found := os.stat(path))[:2], found.st_dev + 1, *found[3:10]))
    assert presence.why_gone(job_id) == ""


def test_a_directory_that_is_an_absent_mount_point_is_not_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = make_job(root, 1).job_id
    monkeypatch.setattr("pfo_fs.store.presence.mount_of", lambda path: Mount(point=str(root)))
    presence = Presence(Files(root))
    presence.remember()
    root.rename(root.with_name("away"))
    assert presence.why_gone(job_id) == ""
    root.mkdir()  # the empty mount point; a bind mount has the device of what is around it
    assert presence.why_gone(job_id) == ""
