"""Locks where locks work, and where their calls never return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from pfo_fs.store import Files, SharedDirectory, locks

Wait = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Locks whose calls return only once the event is set."""
    go_on = threading.Event()
    acquire = filelock.FileLock.acquire

    def hang(self: Any, *args: Any, **options: Any) -> Any:
        go_on.wait(30)
        return acquire(self, *args, **options)

    monkeypatch.setattr(filelock.FileLock, "acquire", hang)
    monkeypatch.setattr(locks, "ANSWERS_WITHIN_S", 0.05)
    yield go_on
    go_on.set()


def test_a_lock_is_held_by_one_until_it_is_released(files: Files) -> None:
    first = locks.try_lock(files, "lock")
    assert first is not None
    assert locks.try_lock(files, "lock") is None
    first.release()
    second = locks.try_lock(files, "lock")
    assert second is not None
    second.release()


def test_a_lock_that_never_answers_is_given_up(files: Files, hanging: threading.Event) -> None:
    assert locks.try_lock(files, "lock") is None


def test_while_a_lock_hangs_no_other_is_waited_for(files: Files, hanging: threading.Event) -> None:
    locks.try_lock(files, "lock")
    threads, began = threading.active_count(), time.monotonic()
    for _ in range(200):
        assert locks.try_lock(files, "other") is None
    assert time.monotonic() - began < 5
    assert threading.active_count() <= threads


def test_a_lock_that_was_given_up_is_released_once_it_answers(
    files: Files, hanging: threading.Event, wait_for: Wait
) -> None:
    assert locks.try_lock(files, "lock") is None
    hanging.set()
    wait_for(lambda: (lock := locks.try_lock(files, "lock")) and (lock.release() or True), what="a free lock")


def test_without_threads_there_is_no_lock_and_no_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert locks.try_lock(files, "lock") is None


def test_a_leader_writes_its_heartbeat_though_locks_hang(
    files: Files, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfo_fs.coordination.leader import Leader

    shared = SharedDirectory(files)
    shared.make_folders()
    leader = Leader(shared, 3.0, "Manual", 1.0, time.monotonic)
    leader.poll()
    leader.poll()
    heartbeat = shared.read_daemon()
    assert heartbeat is not None
    assert heartbeat.counter >= 1
