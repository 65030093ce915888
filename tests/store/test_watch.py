"""Waiting for changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import wait_for

from pfo_fs.store import Files, Watcher


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A directory with the folder of a job."""
    files = Files(tmp_path)
    for folder in ("jobs", "jobs/a"):
        files.make_folder(folder)
    return files


@pytest.fixture
def watcher(files: Files, tmp_path: Path) -> Iterator[Watcher]:
    """One that uses events, and has seen all that was there before."""
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
def test_without_events_asked_for_or_to_be_had_there_is_polling(
    files: Files, tmp_path: Path, folder: str, mode: str
) -> None:
    watcher = Watcher(tmp_path, folder, mode)
    watcher.start()
    files.make_folder("jobs/b")
    assert not watcher.wait(0.1)


def test_a_wait_ends_at_a_wake_and_names_nothing(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, "jobs", "poll")
    watcher.wake()
    assert not watcher.wait(1e6)
