"""The switch: a name in `off/`, whatever it is the name of."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import make_job, rank_infos, register
from replaced_calls import Calls, creates, refuses

from pfo_fs.errors import StoreError
from pfo_fs.store import Files, OffSwitch, SharedDirectory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    SharedDirectory.open(tmp_path / "pfo", create=True)
    return tmp_path / "pfo"


def test_a_jobs_name_covers_that_job_and_all_covers_every_job(root: Path) -> None:
    switch = OffSwitch(Files(root))
    assert switch.read().is_there
    assert not switch.read().covers("one")
    switch.turn_off("one", "first")
    switch.turn_off("one", "second")
    assert (switch.read().covers("one"), switch.read().covers("other")) == (True, False)
    assert "first" in switch.about("one"), "a switch that is there keeps what it says"
    switch.turn_off("all")
    assert switch.read().covers("other")
    assert switch.turn_on("all")
    assert switch.turn_on("one")
    assert not switch.turn_on("one"), "it was on already"
    assert not switch.read().names


def test_without_the_folder_nothing_is_off_and_switching_off_makes_it(root: Path) -> None:
    shutil.rmtree(root / "off")
    switch = OffSwitch(Files(root))
    assert not switch.read().is_there
    switch.turn_off("all")
    assert switch.read().covers("job")


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("/nonexistent"),
        lambda path: path.write_bytes(os.urandom(1 << 20)),
        lambda path: (path.touch(), path.chmod(0)),
    ],
)
def test_whatever_has_the_name_switches_off(root: Path, make: Callable[[Path], object]) -> None:
    make(root / "off" / "all")
    switch = OffSwitch(Files(root))
    assert switch.read().covers("job")
    assert len(switch.about("all")) <= 300
    switch.turn_off("all")
    assert switch.read().covers("job")


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/tmp"), None])
def test_what_is_no_folder_or_may_not_be_read_in_its_place_switches_everything_off(
    root: Path, make: Callable[[Path], object] | None
) -> None:
    if make is not None:
        shutil.rmtree(root / "off")
        make(root / "off")
    calls = refuses_to_open(errno.EACCES, "off") if make is None else None
    assert OffSwitch(Files(root, calls=calls)).read().covers("job")


def refuses_to_open(number: int, *names: str) -> Calls:
    return Calls(open=refuses(number, os.open, lambda path, *_, **__: path in names))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EKEYEXPIRED], ids=errno.errorcode.get)
@pytest.mark.parametrize("around", ["root", "jobs", "."])
def test_a_directory_that_refuses_around_the_switch_too_switches_nothing(root: Path, number: int, around: str) -> None:
    """As a network file system does once the user's ticket has expired; it may still answer for some folders."""
    names = ("off", str(root) if around == "root" else around)
    with pytest.raises(StoreError):
        OffSwitch(Files(root, calls=refuses_to_open(number, *names))).read()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT])
def test_trouble_of_the_file_system_switches_nothing(root: Path, number: int) -> None:
    with pytest.raises(StoreError):
        OffSwitch(Files(root, calls=refuses_to_open(number, "off"))).read()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("left", ["names and files", "names", "nothing"])
def test_a_full_file_system_can_be_switched_off_and_on(root: Path, number: int, left: str) -> None:
    register(make_job(root, 1), rank_infos(1))
    full = Calls(write=refuses(number), mkdir=refuses(number))  # no room for content
    if left != "names and files":
        full.open = refuses(number, os.open, creates)  # type: ignore[method-assign]
    if left == "nothing":  # as on tmpfs
        full.link = refuses(number)  # type: ignore[method-assign]
    switch = OffSwitch(Files(root, calls=full))
    records = {path for path in root.rglob("*") if path.suffix != ".lock"}
    switch.turn_off("all", "a checkpoint has filled the quota")
    assert OffSwitch(Files(root)).read().covers("job")
    assert switch.about("all") == ""
    assert switch.turn_on("all")
    assert {path for path in root.rglob("*") if path.suffix != ".lock"} == records
