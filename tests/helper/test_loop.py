"""The helper's loop over real sockets, with files that hang, and with real ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helper_host import Host
from running import HANGS_AFTER_S

from pfo_fs.helper import operations as op
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.power_limit_files import carry_out
from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport


class HangingFiles:
    """Each request hangs until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.done: list[Any] = []

    def execute(self, operation: Any) -> Any:
        if isinstance(operation, op.OpenDirectory):
            return True
        self.begun.release()
        self.may_end.wait()
        self.done.append(operation)
        return [m.ProfileSaved()]


@pytest.fixture
def files() -> Iterator[HangingFiles]:
    files = HangingFiles()
    yield files
    files.may_end.set()


@pytest.fixture
def client(files: HangingFiles, tmp_path: Path) -> Iterator[HelperClient]:
    host = Host(tmp_path, files)
    yield host.client(0)
    files.may_end.set()
    host.close()


def test_training_is_told_of_a_profile_when_it_is_written(client: HelperClient, files: HangingFiles) -> None:
    client.send(m.SaveProfile(path="/p.json", content=b"1", replace=True))
    client.send(m.SaveProfile(path="/p.json", content=b"2", replace=True))
    assert files.begun.acquire(timeout=HANGS_AFTER_S)
    assert client.wait_for(m.ProfileSaved, 0.1) is None
    files.may_end.set()
    for _ in range(2):
        assert client.wait_for(m.ProfileSaved, HANGS_AFTER_S) is not None
    assert [operation.content for operation in files.done] == [b"1", b"2"]


def test_files_of_a_trainer_that_is_killed_are_written(client: HelperClient, files: HangingFiles) -> None:
    client.send(m.SaveProfile(path="/p.json", content=b"1", replace=True))
    client.close()
    assert files.begun.acquire(timeout=HANGS_AFTER_S)
    files.may_end.set()  # the fixture waits for the end of the helper


def test_the_largest_profile_fits_into_one_message_even_if_it_cannot_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(os.urandom(2 * m.MAX_PROFILE_BYTES))
    (read,) = carry_out(m.ReadProfile(path=str(path)))
    assert isinstance(read, m.ProfileRead)
    assert len(read.content) == m.MAX_PROFILE_BYTES + 1
    assert len(transport.encode(read)) < transport.MAX_PACKET_BYTES


def test_an_error_is_a_message_and_what_is_asked_for_is_answered(tmp_path: Path) -> None:
    read = carry_out(m.ReadProfile(path=str(tmp_path)))
    assert [type(message) for message in read] == [m.LogLine, m.ProfileRead]
    assert read[-1] == m.ProfileRead(profile="unknown")
    save = m.SaveProfile(path=str(tmp_path / "none" / "p.json"), content=b"", replace=True)
    assert [type(message) for message in carry_out(save)] == [m.LogLine, m.ProfileSaved]
