"""Jobs in the shared directory, the mounts they lie on, and who leads: only a record that proves itself counts."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import leader_body, make_job, rank_body
from replaced_calls import leave_behind, refuses

from pfo_fs.errors import NotShared, RecordError, StoreUnavailable
from pfo_fs.store import Files, SharedDirectory, mount_of
from pfo_fs.store.file_systems import SystemCalls
from pfo_fs.store.locks import courtesy_lock
from pfo_fs.store.records import Header, encode

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/scratch rw - lustre mds@tcp:/scratch rw,flock
32 22 0:42 / /mnt/with\\040space rw - fuse.glusterfs vol rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/me/pfo", "nfs4"),
        ("/home/scratch/pfo", "lustre"),
        ("/homestead", "ext4"),
        ("/mnt/with space/pfo", "fuse.glusterfs"),
    ],
)
def test_the_innermost_mount_says_the_file_systems_type(path: str, kind: str) -> None:
    assert mount_of(path, MOUNTS).kind == kind


def test_locks_that_do_nothing_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mount where locks are silently void: the claim still has one owner."""
    monkeypatch.setattr("fcntl.flock", lambda *_a, **_k: None)
    folder = make_job(tmp_path, 1)
    assert folder.register_ranks([rank_body(0, "first")]) == {}
    assert list(folder.register_ranks([rank_body(0, "second")])) == [0]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_may_be_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("fcntl.flock", refuses(number))
    with courtesy_lock(Files(tmp_path), "x.lock") as held:
        assert not held


def test_hosts_agree_on_their_directory_by_its_id_and_an_error_asks_about_the_mount(tmp_path: Path) -> None:
    here, again, there = (SharedDirectory.open(tmp_path / name, create=True) for name in ("here", "here", "there"))
    assert here.directory_id() == again.directory_id() != ""
    again.check_same(here.directory_id(), "", "")
    with pytest.raises(NotShared, match=rf"another directory at {tmp_path}/here .*mounted"):
        here.check_same(there.directory_id(), make_job(tmp_path / "there", 1).job_id, "attempt")
    (tmp_path / "here" / "directory.json").write_text("junk")
    with pytest.raises(RecordError, match=r"directory\.json"):
        here.directory_id()
    with pytest.raises(StoreUnavailable, match="another directory"):  # without an id yet: it may try again
        SharedDirectory(Files(tmp_path)).check_same("0123", "", "")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("")], ids=["removed", "emptied"])
def test_a_directory_without_its_id_is_known_by_its_job(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """The next daemon makes another id."""
    job = make_job(tmp_path, 1, attempt="mine")
    shared = SharedDirectory(Files(tmp_path))
    directory_id = shared.directory_id()
    damage(tmp_path / "directory.json")
    shared.make_folders()
    shared.check_same(directory_id, job.job_id, "mine")
    with pytest.raises((NotShared, RecordError)):
        shared.check_same(directory_id, job.job_id, "another")


def test_what_dead_writers_have_left_goes_when_a_job_is_archived_and_a_daemon_leads(tmp_path: Path) -> None:
    shared, folder = SharedDirectory.open(tmp_path, create=True), make_job(tmp_path, 1)
    for place in ("", "ranks", "progress"):
        leave_behind(folder.location / place)
    shared.archive(folder.job_id)
    assert (tmp_path / "archive" / folder.job_id / "job.json").exists()
    assert not list((tmp_path / "archive").rglob(".pfo-*"))
    for place in ("", "leaders"):
        leave_behind(tmp_path / place)
    assert shared.remove_stale_temporaries() == 2


def test_newest_jobs_come_first_and_names_without_a_date_of_the_past_last(tmp_path: Path) -> None:
    shared = SharedDirectory.open(tmp_path / "pfo", create=True)
    names = ["zzz", "2026-01-02-03-04-05+dp1", "9999-01-01-00-00-00+dp1", "2026-01-01-03-04-05+dp1", "0"]
    for name in names:
        (tmp_path / "pfo" / "jobs" / name).mkdir()
    assert shared.newest_job_ids() == [names[1], names[3], "zzz", names[2], "0"]


def test_a_folder_of_a_schedule_with_an_absurd_number_is_not_the_newest(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1)
    for name in ("0", "1", "999999999", "5000", "007", "1e3", "٣"):
        (tmp_path / folder.path / "sched" / name).mkdir()
    assert folder.schedule_numbers() == [0, 1]


@pytest.fixture
def shared(tmp_path: Path) -> SharedDirectory:
    return SharedDirectory.open(tmp_path / "pfo", create=True)


def take_over(shared: SharedDirectory) -> int:
    generation = shared.leaders.poll()[1]
    assert shared.leaders.claim(leader_body(generation))
    return generation


def fresh(shared: SharedDirectory) -> SharedDirectory:
    return SharedDirectory(Files(shared.files.root))


def plant(shared: SharedDirectory, name: str, data: bytes = b"") -> None:
    (shared.files.root / "leaders" / name).write_bytes(data)


@pytest.mark.parametrize("name", ["999999999.json", "2000.json", "7.json", "06.json", "-1.json", "1e9.json"])
@pytest.mark.parametrize("data", [b"", b"junk", encode(Header("leader", "", "w"), leader_body(3))])
def test_a_planted_name_deposes_no_leader_and_stops_no_other(shared: SharedDirectory, name: str, data: bytes) -> None:
    for _ in range(6):
        take_over(shared)
    plant(shared, name, data)
    for _ in range(5):
        assert shared.leaders.poll()[0] == 6
        assert fresh(shared).leaders.poll()[0] == 6
    assert fresh(shared).leaders.poll()[0] < take_over(fresh(shared)) < 20


def test_what_is_planted_for_the_next_records_costs_a_bounded_number_of_reads(shared: SharedDirectory) -> None:
    take_over(shared)
    for number in range(3, 902):
        plant(shared, f"{number}.json", b"junk")
    (shared.files.root / "leaders" / "2.json").mkdir()
    assert shared.leaders.poll()[0] == 1
    other = fresh(shared)
    reads = []
    real = other.files.read
    other.files.read = lambda path, limit: (reads.append(path), real(path, limit))[1]
    other.leaders.poll()
    assert len(reads) <= 32
    assert take_over(other) == 902
    (shared.files.root / "leaders" / "1.json").unlink()  # that of an older leader changes nothing
    assert shared.leaders.poll()[0] == fresh(shared).leaders.poll()[0] == 902


def test_a_leader_counts_once_its_record_can_be_read(shared: SharedDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = fresh(shared)
    take_over(daemon)
    take_over(fresh(shared))
    given = os.read
    monkeypatch.setattr(SystemCalls, "read", staticmethod(refuses(errno.EPERM)))
    assert {daemon.leaders.poll()[0] for _ in range(20)} == {1}
    monkeypatch.setattr(SystemCalls, "read", staticmethod(given))
    assert 2 in [daemon.leaders.poll()[0] for _ in range(20)]
