"""The helper of a power-limit optimizer over real sockets, with files that hang."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pfo_fs.helper import power_limit_operations as op
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.loop import HelperLoop
from pfo_fs.helper.power_limit_state import PowerLimitState
from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport


class HangingFiles:
    """Each operation hangs until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.done: list[Any] = []

    def execute(self, operation: Any) -> Any:
        self.begun.release()
        self.may_end.wait()
        self.done.append(operation)
        return b"content" if isinstance(operation, op.ReadProfile) else None


@pytest.fixture
def files() -> Iterator[HangingFiles]:
    files = HangingFiles()
    yield files
    files.may_end.set()


@pytest.fixture
def client(files: HangingFiles) -> Iterator[HelperClient]:
    token = secrets.token_hex(8)
    address = f"pfo-fs-test-{token}"
    loop = HelperLoop(PowerLimitState(token, now_s=time.monotonic()), files)
    thread = threading.Thread(target=loop.serve, args=(transport.listen(address),), daemon=True)
    thread.start()
    client = HelperClient(address, "", token, 0, {}, deadline_s=5)
    yield client
    client.close()
    files.may_end.set()
    thread.join(10)
    assert not thread.is_alive(), "the helper ends when training has gone"


def test_a_mount_that_hangs_holds_the_worker_and_training_is_answered(
    client: HelperClient, files: HangingFiles
) -> None:
    client.send(m.OpenPowerLimitFiles(profile_path="/p.json", shared_dir=None, key="key"))
    assert files.begun.acquire(timeout=10)
    assert client.request(m.ReadProfile(offset=0), m.ProfilePart, 10).content == b""
    files.may_end.set()
    opened = client.wait_for(m.PowerLimitFilesOpened, 10)
    assert opened == m.PowerLimitFilesOpened(profile="read", profile_bytes=7)
    assert client.request(m.ReadProfile(offset=3), m.ProfilePart, 10).content == b"tent"


def test_the_helper_lets_training_go_when_everything_is_written(client: HelperClient, files: HangingFiles) -> None:
    client.send(m.SaveProfile(path="/p.json", content=b"1", replace=True))
    client.send(m.SaveProfile(path="/p.json", content=b"2", replace=True))
    client.send(m.Goodbye(reason="finished"))
    assert files.begun.acquire(timeout=10)
    client.send(m.ReadProfile(offset=0))
    assert client.wait_for(m.ProfilePart, 10) is not None
    assert not client.lost, "two profiles are not written yet"
    files.may_end.set()
    assert client.wait_for(m.PowerLimitFilesOpened, 10) is None
    assert client.lost
    assert [operation.content for operation in files.done] == [b"1", b"2"]


def test_files_of_a_trainer_that_is_killed_are_written(client: HelperClient, files: HangingFiles) -> None:
    client.send(m.SaveProfile(path="/p.json", content=b"1", replace=True))
    client.close()
    assert files.begun.acquire(timeout=10)
    files.may_end.set()  # the fixture waits for the end of the helper
