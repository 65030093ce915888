"""What is optional: locks where they work, and where their calls never return; events that shorten a wait."""

import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from running import HANGS_AFTER_S, wait_for

from pfo_fs.store import Files, Watcher, locks


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(locks, "ANSWERS_WITHIN_S", HANGS_AFTER_S)
    return Files(tmp_path)


@pytest.fixture
def hanging(files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Locks whose calls return only once the event is set."""
    go_on = threading.Event()
    flock = fcntl.flock

    def hang(fd: int, operation: int) -> None:
        go_on.wait()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", hang)
    monkeypatch.setattr(locks, "ANSWERS_WITHIN_S", 0.05)
    threads = set(threading.enumerate())
    yield go_on
    go_on.set()
    for thread in set(threading.enumerate()) - threads:
        thread.join()


def held(files: Files, path: str = "lock") -> bool:
    with locks.courtesy_lock(files, path, timeout_s=0.0) as got:
        return got


def test_a_lock_is_held_by_one_until_it_is_released_and_leaves_no_descriptors(files: Files) -> None:
    with locks.courtesy_lock(files, "lock") as first:
        assert first
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            assert not held(files)
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert held(files)


def test_a_lock_that_never_answers_is_given_up_and_no_other_waited_for(files: Files, hanging: threading.Event) -> None:
    assert not held(files)
    threads = threading.active_count()
    for _ in range(200):
        assert not held(files, "other")
        assert threading.active_count() <= threads
    hanging.set()
    wait_for(lambda: held(files), what="a free lock, which was released once it answered")


def test_without_threads_there_is_no_lock_and_no_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    assert not held(files)


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
def test_a_link_in_the_place_of_a_lock_leaves_its_target_as_it_is(
    files: Files, tmp_path: Path, umask: int, link: Callable[[Path, Path], None]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("my thesis")
    precious.chmod(0o600)
    link(precious, tmp_path / "lock")
    before = os.umask(umask)
    try:
        assert not held(files) or link is os.link
    finally:
        os.umask(before)
    assert precious.read_text() == "my thesis"
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600


def test_what_is_no_plain_file_is_no_lock_and_none_is_made_outside(files: Files, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-private"
    outside.mkdir()
    (tmp_path / "ranks").symlink_to(outside)
    os.mkfifo(tmp_path / "fifo")
    os.mkdir(tmp_path / "folder")
    for path in ("ranks/.0.lock", "fifo", "folder"):
        assert not held(files, path)
    assert not list(outside.iterdir())


@pytest.fixture
def watcher(files: Files, tmp_path: Path) -> Iterator[Watcher]:
    """One that uses events, in a directory with the folder of a job, and has seen all that was there before."""
    for folder in ("jobs", "jobs/a"):
        files.make_folder(folder)
    watcher = Watcher(tmp_path, "jobs", "events")
    watcher.start()
    watcher.wait(0.2)
    yield watcher
    watcher.stop()


def test_events_shorten_the_wait_on_a_local_file_system(files: Files, watcher: Watcher) -> None:
    made = itertools.count()
    wait_for(lambda: files.make_folder(f"jobs/{next(made)}") and watcher.wait(0.5), "an event")


def test_what_lies_deeper_and_our_own_reads_make_no_events(files: Files, watcher: Watcher) -> None:
    for _ in range(20):
        files.read("jobs/x", 10)
        files.names("jobs")
    files.publish("jobs/a/x.json", b"1")
    assert not watcher.wait(0.2)


@pytest.mark.parametrize(("folder", "mode"), [("jobs", "poll"), ("not-there", "events")])
def test_without_events_asked_for_or_had_there_is_polling(files: Files, tmp_path: Path, folder: str, mode: str) -> None:
    files.make_folder("jobs")
    watcher = Watcher(tmp_path, folder, mode)
    watcher.start()
    files.make_folder("jobs/b")
    assert not watcher.wait(0.1)


def test_a_wait_ends_at_a_wake_and_names_nothing(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, "jobs", "poll")
    watcher.wake()
    assert not watcher.wait(1e6)
