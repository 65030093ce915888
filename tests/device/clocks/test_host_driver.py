"""The driver of a host, as several clock processes share it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import HANGS_AFTER_S, Processes

from pfo_fs.device.clocks import driver_calls
from pfo_fs.device.clocks.driver_calls import HostDriver, driver_file

HOLDS = """
import sys, time
from pfo_fs.device.clocks.driver_calls import HostDriver
driver = HostDriver(sys.argv[1])
if sys.argv[2] == "locked":
    turn = driver.turn()
    turn.__enter__()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(driver_calls, "_PATIENCE_NS", HANGS_AFTER_S * 1e9)
    return str(tmp_path / "driver")


def start(processes: Processes, path: str, how: str) -> Any:
    process = processes.python("-c", HOLDS, path, how)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_each_process_counts_the_others_until_they_are_killed(
    processes: Processes, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_calls, "_COUNT_EVERY_NS", 0)
    driver = HostDriver(path)
    others = [start(processes, path, "free") for _ in range(2)]
    with driver.turn():
        assert driver.gpus == 3
    for process in others:
        process.kill()
        process.wait()
    with driver.turn():
        assert driver.gpus == 1


def test_one_that_is_closed_does_not_count_and_its_place_is_taken_again(path: str) -> None:
    first, second = HostDriver(path), HostDriver(path)
    assert first.others() == 1
    second.close()
    second.close()
    assert first.others() == 0
    assert HostDriver(path).others() == 1


def test_a_call_waits_for_that_of_another_gpu_and_knows_for_how_long(path: str) -> None:
    first, second = HostDriver(path), HostDriver(path)
    order: list[str] = []
    holds, goes_on = threading.Event(), threading.Event()

    def call() -> None:
        with first.turn():
            holds.set()
            goes_on.wait(HANGS_AFTER_S)
            order.append("first")

    thread = threading.Thread(target=call)
    thread.start()
    holds.wait(HANGS_AFTER_S)
    threading.Timer(0.02, goes_on.set).start()
    with second.turn():
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert second.waited_ns > 1_000_000
    with second.turn():
        assert second.waited_ns < driver_calls._PATIENCE_NS


def test_an_error_of_the_driver_gives_the_turn_to_the_next(path: str) -> None:
    first, second = HostDriver(path), HostDriver(path)
    with pytest.raises(RuntimeError), first.turn():
        raise RuntimeError("the driver refuses")
    with second.turn():
        assert second.waited_ns < driver_calls._PATIENCE_NS


def test_a_process_whose_driver_hangs_does_not_stop_the_others(
    processes: Processes, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_calls, "_PATIENCE_NS", 20_000_000)
    start(processes, path, "locked")
    driver = HostDriver(path)
    with driver.turn():
        pass
    assert driver.waited_ns >= 20_000_000


def test_a_process_that_is_killed_in_its_turn_gives_it_up(processes: Processes, path: str) -> None:
    process = start(processes, path, "locked")
    process.kill()
    process.wait()
    driver = HostDriver(path)
    with driver.turn():
        assert driver.waited_ns < driver_calls._PATIENCE_NS


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"mine")
    path.symlink_to(path.parent / "elsewhere")


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_missing_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize("make", [make_folder, make_link, make_pipe, make_missing_folder])
def test_without_a_usable_file_a_process_is_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "driver"
    make(path)
    driver = HostDriver(str(path))
    with driver.turn():
        assert driver.gpus == 1
    driver.close()
    if (tmp_path / "run" / "elsewhere").exists():
        assert (tmp_path / "run" / "elsewhere").read_bytes() == b"mine"


def test_a_file_of_another_user_is_not_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = HostDriver(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    other = HostDriver(path)
    assert (mine.others(), other.others()) == (0, 0)


@pytest.mark.parametrize("content", [b"", b"\xff" * 5000, os.urandom(4096)])
def test_what_stands_in_the_file_does_not_matter(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    assert HostDriver(path).others() == 0


def test_the_file_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path))
    path = driver_file()
    assert path == str(tmp_path / f"pfo-fs-driver-{os.geteuid()}")
    HostDriver(path).close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_where_files_cannot_be_locked_a_process_goes_on_alone_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    driver = HostDriver(path)
    monkeypatch.setattr(driver_calls.fcntl, "flock", refuse)
    for _ in range(2):
        with driver.turn():
            assert driver.waited_ns < driver_calls._PATIENCE_NS
