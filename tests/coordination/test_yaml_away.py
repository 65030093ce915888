"""A folder or a file that is away for a moment is not a file that was removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import clock_mhz, coordinate, poll, say_yaml
from jobs import current_of

from pfo_fs.errors import StoreUnavailable
from pfo_fs.store import JobFolder


def test_a_job_folder_that_is_away_for_a_while_does_not_count_as_a_removed_yaml(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 4)
    assert clock_mhz(folder) == 1200
    path = folder.files.root / folder.path
    os.rename(path, path.with_name("away"))
    poll(coordinator, clock, 60)
    os.rename(path.with_name("away"), path)
    poll(coordinator, clock, 2)
    assert clock_mhz(folder) == 1200
    assert folder.schedule_numbers() == [0, 1]
    assert coordinator.state == "running"


def test_a_listing_that_fails_does_not_count_as_one_without_the_yaml(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> set[str]:
        raise StoreUnavailable(errno.EIO, "no answer")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 4)
    with monkeypatch.context() as outage:
        outage.setattr(JobFolder, "names", fails)
        poll(coordinator, clock, 60)
    poll(coordinator, clock, 2)
    assert folder.schedule_numbers() == [0, 1]


def test_a_yaml_that_cannot_be_read_for_a_while_is_a_problem_only_so_long(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user whose Kerberos ticket has expired, and is renewed."""

    def refuses(*_: object) -> bytes:
        raise StoreUnavailable(errno.EACCES, "Permission denied")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 4)
    with monkeypatch.context() as outage:
        outage.setattr(JobFolder, "read_file", refuses)
        poll(coordinator, clock, 10)
        assert "Permission denied" in current_of(folder).yaml_problem
        assert clock_mhz(folder) == 1200
    poll(coordinator, clock, 10)
    assert current_of(folder).yaml_problem == ""
    assert folder.schedule_numbers() == [0, 1]


def test_a_yaml_that_an_editor_replaces_again_and_again_is_not_removed(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed, but not there when it is read: between the two a new file is put in its place."""
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 4)
    with monkeypatch.context() as editor:
        editor.setattr(JobFolder, "read_file", lambda *_: None)
        poll(coordinator, clock, 10)
    assert folder.schedule_numbers() == [0, 1]


@pytest.mark.parametrize(
    ("make", "remove"),
    [
        (Path.mkdir, Path.rmdir),
        (lambda path: path.write_bytes(b"#" * (10 << 20)), Path.unlink),
        (lambda path: path.symlink_to("/etc/passwd"), Path.unlink),
    ],
    ids=["a folder", "a huge file", "a link out of the directory"],
)
def test_a_yaml_that_was_refused_unread_and_then_removed_is_not_a_problem_any_more(
    folder: JobFolder, clock: Clock, make: Callable[[Path], object], remove: Callable[[Path], object]
) -> None:
    coordinator, path = coordinate(folder, clock), folder.location / "schedule.yaml"
    poll(coordinator, clock, 2)
    make(path)
    poll(coordinator, clock, 4)
    assert current_of(folder).yaml_problem
    assert "state: rejected" in (folder.location / "schedule.status.yaml").read_text()
    assert folder.schedule_numbers() == [0]
    remove(path)
    poll(coordinator, clock, 6)
    assert not current_of(folder).yaml_problem
