"""The four file primitives: under faults they lose nothing and show nothing half-done; what users plant is refused."""

import ast
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gluster_volume import Gluster
from replaced_calls import Calls, Watched, creates, leave_behind, refuses
from running import wait_for

from pfo_fs.errors import StoreError, StoreUnavailable
from pfo_fs.store import TEMP_PREFIX, Files, SharedDirectory, layout


class Faulty(Watched):
    """Lets the n-th of all system calls fail with an error, before or after it was really made."""

    def __init__(self, fail_at: int, error: int, *, times: int = 1, after: bool = False) -> None:
        super().__init__()
        self.count = 0
        self.failed: str | None = None
        self._fail_at, self._error, self._times, self._after = fail_at, error, times, after

    def around(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.count += 1
        due = self._fail_at <= self.count < self._fail_at + self._times and (self._after or name != "close")
        result = real(*args, **options) if self._after or not due else None
        if due:
            self.failed = name
            raise OSError(self._error, os.strerror(self._error))
        return result


def count_calls(root: Path, operation: Any) -> int:
    calls = Faulty(-1, 0)
    operation(Files(root, calls=calls))
    return calls.count


def leftovers(root: Path) -> list[str]:
    return [name for _, _, names in os.walk(root) for name in names if name.startswith(TEMP_PREFIX)]


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.EBUSY, errno.ENOTCONN, errno.ETIMEDOUT, errno.EACCES])
def test_a_passing_error_at_any_call_of_a_publication_is_tried_again(tmp_path: Path, error: int) -> None:
    total = count_calls(tmp_path, lambda files: files.publish("a.json", b"old"))
    for at in range(1, total + 1):
        calls = Faulty(at, error)
        Files(tmp_path, calls=calls).publish("a.json", b"new %d" % at)
        assert (tmp_path / "a.json").read_bytes() == b"new %d" % at, calls.failed
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_file_system_at_any_call_keeps_the_old_content(tmp_path: Path, error: int) -> None:
    Files(tmp_path).publish("a.json", b"old")
    for at in range(1, count_calls(tmp_path, lambda files: files.publish("b.json", b"x")) + 1):
        calls = Faulty(at, error)
        try:
            Files(tmp_path, calls=calls).publish("a.json", b"new")
        except StoreError as problem:
            assert not isinstance(problem, StoreUnavailable)
            assert str(tmp_path / "a.json") in str(problem)
            assert (tmp_path / "a.json").read_bytes() == b"old", calls.failed
        else:
            assert calls.failed is None or calls.failed == "unlink"
            (tmp_path / "a.json").write_bytes(b"old")
    assert leftovers(tmp_path) == []


def test_an_error_of_close_is_an_error_of_the_publication(tmp_path: Path) -> None:
    """Write-behind clients report a full disk at close; renaming after that leaves an empty file."""
    Files(tmp_path).publish("a.json", b"old")

    def close(fd: int) -> None:
        writable = os.readlink(f"/proc/self/fd/{fd}").endswith(".tmp")
        os.close(fd)
        if writable:
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(StoreError, match="full"):
        Files(tmp_path, calls=Calls(close=close)).publish("a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"old"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_groups_directory_is_used_where_modes_cannot_be_changed(tmp_path: Path, number: int) -> None:
    tmp_path.chmod(0o2770)
    files = Files(tmp_path, calls=Calls(fchmod=refuses(number)))
    before = os.umask(0o007)
    try:
        files.publish("a.json", b"new")
        assert files.claim("b.json", b"new")
        files.make_folder("folder")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a.json", "b.json", "folder")]
    assert modes == [0o640, 0o640, 0o770], "the umask lets them through"


def test_a_passing_error_at_any_call_of_a_claim_still_gives_one_owner(tmp_path: Path) -> None:
    total = count_calls(tmp_path, lambda files: files.claim("a.json", b"x"))
    for at in range(1, total + 1):
        for after in (False, True):  # "after": done on the server, reported as failed (a retransmitted request)
            (tmp_path / "a.json").unlink(missing_ok=True)
            calls = Faulty(at, errno.EIO, after=after)
            assert Files(tmp_path, calls=calls).claim("a.json", b"mine"), (at, after, calls.failed)
            assert not Files(tmp_path).claim("a.json", b"theirs")
            assert (tmp_path / "a.json").read_bytes() == b"mine"


def test_unfinished_files_of_dead_writers_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    leave_behind(tmp_path, ".pfo-node1-42-aaaa.tmp", 7200)
    leave_behind(tmp_path, ".pfo-node1-42-bbbb.tmp", 60)
    leave_behind(tmp_path, "a.json", 7200)
    leave_behind(tmp_path, ".1.lock", 7200)
    (tmp_path / ".pfo-claim-a.json").mkdir()
    (tmp_path / ".pfo-node1-42-cccc.tmp.d").mkdir()
    leave_behind(tmp_path / ".pfo-node1-42-cccc.tmp.d", "content", 7200)
    os.utime(tmp_path / ".pfo-node1-42-cccc.tmp.d", (1, 1))
    assert Files(tmp_path).remove_stale_temporaries("") == 2
    there = {".pfo-node1-42-bbbb.tmp", "a.json", ".1.lock", ".pfo-claim-a.json"}
    assert {path.name for path in tmp_path.iterdir()} == there


def test_cleaning_looks_at_a_bounded_number_of_files_and_writes_nothing_in_a_clean_folder(tmp_path: Path) -> None:
    for n in range(20):
        leave_behind(tmp_path, f".pfo-node1-42-{n:04}.tmp", 7200)
    assert [Files(tmp_path).remove_stale_temporaries("", most=8) for _ in range(3)] == [8, 8, 4]
    before = tmp_path.stat().st_mtime_ns
    assert Files(tmp_path).remove_stale_temporaries("") == Files(tmp_path).remove_stale_temporaries("missing") == 0
    assert tmp_path.stat().st_mtime_ns == before


@pytest.mark.parametrize("path", ["a\0b", "a\0b/c", "\ud800", "x" * 5000, "../x", "a/../../x", "a/..", ".."])
def test_a_path_that_leads_out_or_that_no_file_system_knows_is_an_error_of_the_store(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    files = Files(tmp_path)
    for call in (lambda: files.read(path, 10), lambda: files.names(path), lambda: files.publish(path, b"")):
        with pytest.raises(StoreError):
            call()


def test_the_directory_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="mounted"):
        Files(tmp_path / "pfo")
    assert not (tmp_path / "pfo").exists()
    Files(tmp_path / "pfo", create=True)
    assert (tmp_path / "pfo").stat().st_mode & 0o777 == 0o700


RACER = """
import errno, sys
from pfo_fs.store.fs import Files

files = Files(sys.argv[1])
if sys.argv[3] == "without links":
    def no_link(*args, **kwargs): raise OSError(errno.EOPNOTSUPP, "no")
    files.calls.link = no_link
print(sum(files.claim(f"{n}.json", sys.argv[2].encode()) for n in range(80)))
"""


@pytest.mark.parametrize("where", ["with links", "without links"])
def test_of_many_processes_exactly_one_wins_each_name(tmp_path: Path, where: str) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path), str(n), where], stdout=subprocess.PIPE)
        for n in range(3)
    ]
    assert sum(int(racer.communicate()[0]) for racer in racers) == 80


def test_short_writes_are_continued_and_a_torn_read_is_tried_again(tmp_path: Path) -> None:
    Files(tmp_path, calls=Calls(write=lambda fd, data: os.write(fd, data[:3]))).publish("a", b"complete")
    assert (tmp_path / "a").read_bytes() == b"complete"
    lies = [b"", b"compl"]
    torn = Calls(read=lambda fd, size: lies.pop() if lies else os.read(fd, size))
    assert Files(tmp_path, calls=torn).read("a", 100) == b"complete"


def test_a_broken_mount_is_not_taken_for_an_empty_folder(tmp_path: Path) -> None:
    root = tmp_path / "pfo"
    files = Files(root, create=True)
    files.publish("a", b"1")
    for number in (errno.ENOTCONN, errno.ESTALE):
        broken = Files(root, calls=Faulty(1, number, times=1000))
        with pytest.raises(StoreUnavailable):
            broken.names("jobs")
        with pytest.raises(StoreUnavailable):
            broken.read("a", 10)
    root.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable, match="unmounted"):
        files.names()
    (tmp_path / "away").rename(root)
    assert files.read("a", 10) == b"1"


def test_symbolic_links_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "pfo"
    files = Files(root, create=True)
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    reads = (lambda: files.read("file", 100), lambda: files.read("folder/secret", 100))
    for call in (*reads, lambda: files.publish("folder/new", b"x")):
        with pytest.raises(StoreError, match="link"):
            call()
    files.publish("file", b"replaced")
    assert (outside / "secret").read_text() == "secret"
    assert not (outside / "new").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_modes_come_from_the_folder_and_not_from_the_umask(tmp_path: Path, umask: int) -> None:
    """In a directory of a group, no member of it can write into a file."""
    private, group = tmp_path / "private", tmp_path / "group"
    group.mkdir()
    group.chmod(0o2770)
    old = os.umask(umask)
    try:
        for root, file_mode, folder_mode in ((private, 0o600, 0o700), (group, 0o640, 0o2770)):
            files = Files(root, create=True)
            files.make_folder("sub")
            files.publish("sub/a", b"x")
            files.claim("sub/b", b"x")
            files.claim_each("sub", ["c", "d"], b"x")
            assert {path.stat().st_mode & 0o7777 for path in (root / "sub").iterdir()} == {file_mode}
            assert (root / "sub").stat().st_mode & 0o7777 == folder_mode
            os.close(files.open_lock("sub/lock"))
            assert not (root / "sub" / "lock").stat().st_mode & 0o022
    finally:
        os.umask(old)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    files = Files(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    files.make_folder("d")
    for _ in range(20):
        files.publish("d/a", b"1")
        files.claim("d/b", b"1")
        files.read("d/a", 10)
        files.read("d/none/x", 10)
        files.names("d")
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_no_file_can_be_made_the_folder_tells_the_file_systems_time(tmp_path: Path) -> None:
    os.utime(tmp_path, (1e9, 1e9))
    files = Files(tmp_path, calls=Calls(open=refuses(errno.ENOSPC, os.open, creates)))
    assert files.now_s("") > 1e9


ALICE, BOB = 12345, 23456
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make devices and files of other users")

PLANTED: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "dangling link": lambda path: path.symlink_to(path.parent / "missing"),
    "link to itself": lambda path: path.symlink_to(path),
    "FIFO": os.mkfifo,
    "socket": lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK),
    "folder": Path.mkdir,
    "endless device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
    "disk": lambda path: os.mknod(path, 0o666 | stat.S_IFBLK, os.makedev(7, 200)),
    "file of another user": lambda path: (path.write_text("planted"), os.chown(path, BOB, BOB)),
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


# ---- rules for all code that touches the shared directory


ROOT = Path(__file__).parents[2]
ROOMS = ("store", "helper", "coordination")
PROTOCOL = [path for room in ROOMS for path in sorted((ROOT / "pfo_fs" / room).glob("*.py"))]
# These answer "no" after any error, so a lost connection would count as a missing file.
_ANSWER_NO = {"exists", "isfile", "isdir", "is_file", "is_dir", "lexists", "is_symlink", "islink", "samefile"}


@pytest.mark.parametrize("path", PROTOCOL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_error_never_counts_as_absence_and_no_file_is_appended_to(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    assert not {node.attr for node in calls} & (_ANSWER_NO | {"O_APPEND"})


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
