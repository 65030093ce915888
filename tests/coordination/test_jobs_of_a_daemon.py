"""Finding new jobs among whatever else lies in `jobs/`, when a daemon polls its jobs, and the threads that do it."""

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from clock import Clock
from jobs import make_job
from running import HANGS_AFTER_S, wait_for

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.job_folders import LOOK_TAKES_S, Found, JobFolders
from pfo_fs.coordination.served_jobs import ServedJobs, Workers
from pfo_fs.errors import StoreError
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

DAY_S = 24 * 3600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    SharedDirectory(Files(tmp_path / "pfo", create=True)).make_folders()
    return tmp_path / "pfo"


def folders_in(root: Path, clock: Clock, archive_after_s: float = 7 * DAY_S) -> JobFolders:
    shared = SharedDirectory(Files(root))

    def make(job_id: str) -> Coordinator:
        return Coordinator(shared.job(job_id), PFOSettings(), kind="daemon", generation=1, monotonic=clock)

    return JobFolders(shared, make, archive_after_s, clock)


def look(folders: JobFolders, clock: Clock, seconds: float) -> list[str]:
    """Looks as often as is asked for; returns the jobs that were found."""
    found, end = [], clock.now + seconds
    while clock.now < end:
        outcome = folders.poll()
        found += [coordinator.folder.job_id for coordinator in outcome.jobs]
        clock.now += outcome.again_in_s
    return found


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """When the content of a job's folder was listed, which takes a hundredth of a second."""
    names, seen = JobFolder.names, []

    def slow(self: JobFolder) -> set[str]:
        seen.append(clock.now)
        clock.now += 0.01
        return names(self)

    monkeypatch.setattr(JobFolder, "names", slow)
    return seen


def test_fifty_jobs_that_start_at_once_are_all_claimed_before_any_is_served(root: Path, clock: Clock) -> None:
    jobs = [make_job(root, 1) for _ in range(50)]
    assert len(folders_in(root, clock).poll().jobs) == 50
    assert {job.read(bodies.ClaimBody).kind for job in jobs} == {"daemon"}


def test_a_look_among_ten_thousand_empty_folders_takes_a_bounded_time_and_a_job_that_comes_then_is_found_at_once(
    root: Path, clock: Clock, listed: list[float]
) -> None:
    for number in range(10_000):
        (root / "jobs" / f"empty{number}").mkdir()
    folders = folders_in(root, clock)
    before = clock.now
    folders.poll()
    assert clock.now - before <= 2 * LOOK_TAKES_S
    assert 1 <= len(listed) <= 20
    look(folders, clock, 30)
    job = make_job(root, 1)
    assert [coordinator.folder.job_id for coordinator in folders.poll(list_now=True).jobs] == [job.job_id]


def test_an_empty_folder_is_looked_at_ever_more_rarely(root: Path, clock: Clock, listed: list[float]) -> None:
    (root / "jobs" / "empty").mkdir()
    look(folders_in(root, clock), clock, 3 * 3600)
    assert len(listed) < 40
    pauses = [later - sooner for sooner, later in itertools.pairwise(listed)]
    assert pauses[0] < 0.1
    assert pauses[-1] > 500


def test_a_folder_that_gets_its_job_a_moment_later_is_claimed_soon(root: Path, clock: Clock) -> None:
    job = make_job(root, 1)
    path = root / job.path / "job.json"
    content = path.read_bytes()
    path.unlink()
    folders = folders_in(root, clock)
    assert look(folders, clock, 2) == []
    path.write_bytes(content)
    assert look(folders, clock, 3) == [job.job_id]


@pytest.mark.parametrize("content", [b"", b"junk", b"\x00" * 100])
def test_what_is_no_job_is_left_alone_logged_once_and_does_not_keep_others_from_being_found(
    root: Path, clock: Clock, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    bad, good = make_job(root, 1), make_job(root, 1)
    (root / bad.path / "job.json").write_bytes(content)
    (root / "jobs" / "file").write_text("hello")
    (root / "jobs" / "link").symlink_to(root)
    assert look(folders_in(root, clock), clock, 3600) == [good.job_id]
    assert sum(bad.job_id in record.getMessage() for record in caplog.records) == 1
    assert (root / "jobs" / "file").read_text() == "hello"


def test_an_error_costs_only_the_job_that_makes_it(root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = make_job(root, 1), make_job(root, 1)
    monkeypatch.setattr(Coordinator, "claim", lambda self, names: self.folder.job_id != bad.job_id or 1 // 0)
    assert look(folders_in(root, clock), clock, 60) == [good.job_id]


def aged(path: Path, seconds: float) -> None:
    for one in (path, *path.rglob("*")):
        os.utime(one, (one.stat().st_atime, one.stat().st_mtime - seconds))


def test_ended_jobs_are_archived_by_their_own_age_and_others_stay(root: Path, clock: Clock) -> None:
    young, old, empty = make_job(root, 1), make_job(root, 1, attempt="b"), root / "jobs" / "empty"
    empty.mkdir()
    for job, age_s in ((young, 80), (old, 110)):
        job.write(bodies.EndBody(reason="finished"))
        aged(root / job.path, age_s)
    aged(empty, 1000)
    folders = folders_in(root, clock, archive_after_s=100)
    assert look(folders, clock, 5) == []
    assert {path.name for path in (root / "jobs").iterdir()} == {young.job_id, "empty"}
    look(folders, clock, 20)
    assert {path.name for path in (root / "archive").iterdir()} == {young.job_id, old.job_id}
    assert empty.exists(), "it is for `pfo-fs prune`"


def test_a_job_is_silent_since_the_last_file_of_its_own_processes(root: Path, clock: Clock) -> None:
    job = make_job(root, 1)
    job.write(bodies.ProgressBody(ranks=[]))
    aged(root / job.path, 1000)
    folders = folders_in(root, clock)
    job.write(bodies.CurrentBody(generation=1, number=-1, start_step=0, state="running"))
    aged(root / job.path / "current.json", -2000)
    assert 1000 <= folders.silent_s(job.job_id) < 1100
    job.write(bodies.ProgressBody(ranks=[]))
    assert folders.silent_s(job.job_id) < 100


def test_an_ended_job_whose_age_cannot_be_read_at_first_is_archived_later(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(root, 1)
    job.write(bodies.EndBody(reason="finished"))
    changed_s, fails = Files.changed_s, [StoreError(errno.EIO, "for once")]

    def fails_once(files: Files, path: str) -> float:
        if fails:
            raise fails.pop()
        return changed_s(files, path)

    monkeypatch.setattr(Files, "changed_s", fails_once)
    look(folders_in(root, clock, archive_after_s=1), clock, 60)
    assert [path.name for path in (root / "archive").iterdir()] == [job.job_id]


def test_a_job_that_cannot_be_archived_is_tried_again_rarely(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Mock(side_effect=StoreError(errno.EROFS, "read-only"))
    monkeypatch.setattr(SharedDirectory, "archive", archive)
    make_job(root, 1).write(bodies.EndBody(reason="finished"))
    look(folders_in(root, clock, archive_after_s=1), clock, 3600)
    assert 2 <= archive.call_count <= 8
    assert len(caplog.records) == 1


def test_a_job_whose_folder_is_missing_from_two_listings_is_reported(root: Path, clock: Clock) -> None:
    job = make_job(root, 1)
    folders = folders_in(root, clock)
    look(folders, clock, 2)
    (root / job.path).rename(root / "elsewhere")
    gone = []
    for _ in range(60):
        gone += folders.poll().gone
        clock.now += 1
    assert gone == [job.job_id]
    (root / "elsewhere").rename(root / job.path)
    assert look(folders, clock, 2) == [job.job_id]


class PolledJob:
    """A coordinator that only counts; it is also its own folder."""

    state, is_mine, is_calm = "running", True, False
    still_leads = staticmethod(lambda: False)

    def __init__(self, job_id: str, clock: Clock, pause_s: float) -> None:
        self.job_id, self.pause_s, self.polls = job_id, pause_s, 0
        self.clock, self.polled_at = clock, 0.0
        self.folder = self
        self.last_alive = clock()

    def poll(self) -> float:
        self.polls += 1
        self.polled_at = self.clock()
        return self.pause_s

    def close(self) -> None:
        pass


def serve(jobs: list[Any], clock: Clock) -> ServedJobs:
    folders: Any = SimpleNamespace(poll=lambda *, list_now: Found(jobs=jobs, again_in_s=1e9))
    return ServedJobs(folders, max_idle_s=1e9, interval_s=1e9, wake=lambda: None, monotonic=clock)


def run(served: ServedJobs, clock: Clock, seconds: float) -> None:
    until = clock() + seconds
    while clock() < until:
        served.serve()  # uses the results of the polls that have ended, and starts those that are due
        wait_for(lambda: not served.busy, what="the polls of this turn")
        clock.now += 0.01


def test_a_job_that_is_polled_often_makes_the_others_be_polled_hardly_more_often(clock: Clock) -> None:
    eager, other = PolledJob("eager", clock, 0.02), PolledJob("other", clock, 0.2)
    served = serve([eager, other], clock)
    run(served, clock, 10.0)
    served.close()
    assert eager.polls > 300
    assert 45 <= other.polls <= 75


def test_jobs_with_the_same_pause_come_to_be_polled_in_the_same_turn(clock: Clock) -> None:
    first, second = PolledJob("first", clock, 1.0), PolledJob("second", clock, 1.0)
    served = serve([first, second], clock)
    run(served, clock, 0.5)
    second.pause_s = 1.2  # its next poll moves by 0.2 s
    run(served, clock, 1.0)
    second.pause_s = 1.0
    run(served, clock, 10.0)
    assert first.polled_at == second.polled_at
    clock.now, ended = clock.now + 1e9, []
    first.end, served.folders.silent_s = lambda *said: ended.append(said), lambda _: 2e9
    run(served, clock, 0.1)
    assert not ended, "a daemon that leads no more ends no idle job"
    served.close()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(3)
    yield made
    made.close()


def test_a_call_that_takes_long_holds_up_no_other_and_each_runs_once(workers: Workers) -> None:
    held, done = threading.Event(), []
    workers.start(lambda: held.wait(HANGS_AFTER_S) and None)
    for number in range(50):
        workers.start(lambda number=number: done.append(number))
    wait_for(lambda: workers.retry() or len(done) == 50, what="the other calls")
    assert workers.busy
    held.set()
    wait_for(lambda: not workers.busy, what="the first call")
    assert sorted(done) == list(range(50))


def test_an_exception_is_logged_and_the_next_call_runs(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    workers.start(lambda: 1 // 0 and None)
    workers.start(lambda: done.append(1))
    wait_for(lambda: done, what="the next call")
    assert "ZeroDivisionError" in caplog.text


def test_a_call_begins_at_once_when_no_other_runs(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfo_fs.coordination.served_jobs.PATIENCE_S", 60.0)
    begun, held, done = threading.Event(), threading.Event(), list[int]()
    workers.start(lambda: begun.set() or (held.wait(HANGS_AFTER_S) and None))
    assert begun.wait(HANGS_AFTER_S)
    workers.start(lambda: done.append(1))
    held.set()
    wait_for(lambda: done and not workers.busy, what="the first two calls")
    workers.start(lambda: done.append(2))
    wait_for(lambda: len(done) == 2, what="the third call")
