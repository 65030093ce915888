"""Jobs in the shared directory, and the mounts they lie on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import make_job, rank_infos

from pfo_fs.errors import NotShared, RecordError, StoreError, StoreUnavailable
from pfo_fs.store import Files, SharedDirectory, bodies, filesystem_type
from pfo_fs.store.locks import courtesy_lock

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
    assert filesystem_type(path, MOUNTS) == kind


def test_two_jobs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    ids = {make_job(tmp_path, 2).job_id for _ in range(4)}
    assert len(ids) == 4
    assert SharedDirectory(Files(tmp_path)).job_ids() == sorted(ids)


def test_locks_that_do_nothing_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mount where locks are silently void: the claim still has one owner."""
    monkeypatch.setattr("fcntl.flock", lambda *_a, **_k: None)
    folder = make_job(tmp_path, 1)
    body = bodies.RankBody(rank_info=rank_infos(1)[0], nonce="first")
    assert folder.register_ranks([body]) == {}
    assert list(folder.register_ranks([body.model_copy(update={"nonce": "second"})])) == [0]


@pytest.mark.parametrize("error", [OSError(37, "ENOLCK"), OSError(95, "EOPNOTSUPP"), OSError(38, "ENOSYS")])
def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fcntl.flock", refuse)
    with courtesy_lock(Files(tmp_path), "x.lock") as held:
        assert not held


def test_lock_files_have_the_folders_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    with courtesy_lock(Files(tmp_path), "x.lock"):
        pass
    assert (tmp_path / "x.lock").stat().st_mode & 0o777 in (0o660, 0o640)


def test_two_hosts_that_see_one_directory_agree_on_its_id(tmp_path: Path) -> None:
    first = SharedDirectory.open(tmp_path / "pfo", create=True)
    again = SharedDirectory.open(tmp_path / "pfo", create=True)
    assert first.directory_id() == again.directory_id() != ""
    SharedDirectory.open(tmp_path / "pfo").check_same(first.directory_id(), "", "")


def test_a_host_that_sees_another_directory_gets_an_error_that_asks_about_its_mount(tmp_path: Path) -> None:
    here, there = (SharedDirectory.open(tmp_path / name, create=True) for name in ("here", "there"))
    with pytest.raises(StoreError, match=rf"another directory at {tmp_path}/here .*mounted") as caught:
        here.check_same(there.directory_id(), make_job(tmp_path / "there", 1).job_id, "attempt")
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_host_whose_directory_has_no_id_yet_may_try_again(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="another directory"):
        SharedDirectory(Files(tmp_path)).check_same("0123", "", "")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("")], ids=["removed", "emptied"])
def test_a_purge_that_takes_the_id_leaves_the_directory_known_by_its_job(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """The next daemon makes another id."""
    job = make_job(tmp_path, 1, attempt="mine")
    shared = SharedDirectory(Files(tmp_path))
    directory_id = shared.directory_id()
    damage(tmp_path / "directory.json")
    shared.make_folders()
    shared.check_same(directory_id, job.job_id, "mine")
    with pytest.raises((NotShared, RecordError)):
        shared.check_same(directory_id, job.job_id, "another")


def test_a_damaged_directory_id_is_a_record_error(tmp_path: Path) -> None:
    shared = SharedDirectory.open(tmp_path / "pfo", create=True)
    (tmp_path / "pfo" / "directory.json").write_text("junk")
    with pytest.raises(RecordError, match=r"directory\.json"):
        shared.directory_id()


def test_a_job_folder_that_is_away_is_no_empty_folder(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1)
    (tmp_path / folder.path).rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable, match="not there now"):
        folder.names()
    (tmp_path / "away").rename(tmp_path / folder.path)
    assert "job.json" in folder.names()


def leave_half_a_file(folder: Path) -> None:
    """What a writer that died long ago has left."""
    path = folder / ".pfo-node1-42-aaaa.tmp"
    path.write_bytes(b"half")
    os.utime(path, (1, 1))


def test_what_dead_writers_have_left_goes_when_a_job_is_archived_and_a_daemon_leads(tmp_path: Path) -> None:
    shared, folder = SharedDirectory.open(tmp_path, create=True), make_job(tmp_path, 1)
    for place in ("", "ranks", "progress"):
        leave_half_a_file(folder.location / place)
    shared.archive(folder.job_id)
    assert (tmp_path / "archive" / folder.job_id / "job.json").exists()
    assert not list((tmp_path / "archive").rglob(".pfo-*"))
    for place in ("", "leaders"):
        leave_half_a_file(tmp_path / place)
    assert shared.remove_stale_temporaries() == 2


def test_newest_jobs_come_first_and_names_without_a_date_of_the_past_last(tmp_path: Path) -> None:
    shared = SharedDirectory.open(tmp_path / "pfo", create=True)
    names = ["zzz", "2026-01-02-03-04-05+dp1", "9999-01-01-00-00-00+dp1", "2026-01-01-03-04-05+dp1", "0"]
    for name in names:
        (tmp_path / "pfo" / "jobs" / name).mkdir()
    assert shared.newest_job_ids() == [names[1], names[3], "zzz", names[2], "0"]
    assert shared.newest_job_ids(known={"zzz"})[2] == names[2]


def test_a_folder_of_a_schedule_with_an_absurd_number_is_not_the_newest(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1)
    for name in ("0", "1", "999999999", "5000", "007", "1e3", "٣"):
        (tmp_path / folder.path / "sched" / name).mkdir()
    assert folder.schedule_numbers() == [0, 1]
