"""Jobs in the shared directory, the mounts they lie on, and being told of changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import make_job, rank_infos, register

from pfo_fs.errors import AlreadyClaimed, StoreError
from pfo_fs.models import FrequencySchedule
from pfo_fs.store import Files, SharedDirectory, Watcher, bodies, filesystem_type
from pfo_fs.store.locks import courtesy_lock, try_lock

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


def test_a_rank_that_registers_twice_is_told_who_was_first(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 1)
    body = bodies.RankBody(rank_info=rank_infos(1)[0], nonce="first", host="node7", pid=42)
    folder.register_rank(body)
    folder.register_rank(body)  # the same process again, after a reply that was lost
    with pytest.raises(AlreadyClaimed, match=r"rank 0 .* by process 42 on node7"):
        folder.register_rank(body.model_copy(update={"nonce": "second"}))


def test_locks_that_do_nothing_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mount where locks are silently void: the claim still has one owner."""
    monkeypatch.setattr("pfo_fs.store.locks.FileLock.acquire", lambda *_a, **_k: None)
    folder = make_job(tmp_path, 1)
    body = bodies.RankBody(rank_info=rank_infos(1)[0], nonce="first")
    folder.register_rank(body)
    with pytest.raises(AlreadyClaimed):
        folder.register_rank(body.model_copy(update={"nonce": "second"}))


@pytest.mark.parametrize("error", [OSError(37, "ENOLCK"), NotImplementedError("no flock")])
def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("pfo_fs.store.locks.FileLock.acquire", refuse)
    with courtesy_lock(Files(tmp_path), "x.lock") as held:
        assert not held


def test_a_held_lock_is_not_given_twice(tmp_path: Path) -> None:
    files = Files(tmp_path)
    first = try_lock(files, "x.lock")
    assert first is not None
    assert try_lock(files, "x.lock") is None
    first.release()


def test_lock_files_have_the_folders_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    with courtesy_lock(Files(tmp_path), "x.lock"):
        pass
    assert (tmp_path / "x.lock").stat().st_mode & 0o777 in (0o660, 0o640)


@pytest.mark.parametrize("job_id", ["..", "a/../../b", "", ".hidden"])
def test_a_job_id_cannot_lead_out(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(StoreError):
        SharedDirectory(Files(tmp_path)).job(job_id)


def test_ranks_of_a_stage_that_differ_get_files_of_their_own(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 2, dp=2), rank_infos(2, dp=2)
    register(folder, infos)
    clocks = [1200, 1200, 1200, 900]
    schedules = [FrequencySchedule(rank=rank, frequencies=[("forward", mhz)]) for rank, mhz in enumerate(clocks)]
    assert folder.write_schedule(0, 1, 0, bodies.Source(kind="scheduler", index=0), schedules, infos)
    index = folder.read_index(0)
    assert index is not None
    assert set(index.files) == {"stage:0", "rank:2", "rank:3"}
    assert [folder.read_schedule(index, info) for info in infos] == schedules


def test_a_number_is_committed_once(tmp_path: Path) -> None:
    folder, infos = make_job(tmp_path, 1), rank_infos(1)
    schedule = FrequencySchedule(rank=0, frequencies=[("forward", 1200)])
    assert folder.write_schedule(0, 1, 0, bodies.Source(kind="scheduler", index=0), [schedule], infos)
    assert not folder.write_schedule(0, 2, 0, bodies.Source(kind="yaml", sha256="x"), [schedule], infos)
    index = folder.read_index(0)
    assert index is not None
    assert index.generation == 1


def test_events_shorten_the_wait_on_a_local_file_system(tmp_path: Path, wait_for: Callable[..., Any]) -> None:
    files = Files(tmp_path)
    files.make_folder("jobs")
    files.make_folder("jobs/a")
    watcher = Watcher(tmp_path, "jobs", "events")
    watcher.start()
    try:
        assert watcher.uses_events
        watcher.follow("a")

        def told() -> bool:
            files.publish("jobs/a/x.json", b"1")
            return "a" in watcher.wait(0.5)

        wait_for(told, 10, "an event")
    finally:
        watcher.stop()


def test_what_is_not_followed_makes_no_events(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.make_folder("jobs")
    files.make_folder("jobs/a")
    watcher = Watcher(tmp_path, "jobs", "events")
    watcher.start()
    try:
        watcher.follow("a")
        watcher.leave("a")
        watcher.wait(0.2)
        files.publish("jobs/a/x.json", b"1")
        assert watcher.wait(0.2) == set()
    finally:
        watcher.stop()


def test_polling_uses_no_events(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, "jobs", "poll")
    watcher.start()
    assert not watcher.uses_events
    assert watcher.wait(0.01) == set()


def test_our_own_reads_are_no_events(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.make_folder("jobs")
    files.publish("jobs/x", b"1")
    watcher = Watcher(tmp_path, "jobs", "events")
    watcher.start()
    try:
        watcher.wait(0.2)
        for _ in range(20):
            files.read("jobs/x", 10)
            files.names("jobs")
        assert watcher.wait(0.2) == set()
    finally:
        watcher.stop()


def test_a_watch_that_cannot_be_had_leaves_polling(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, os.fspath("not-there"), "events")
    watcher.start()
    assert not watcher.uses_events
