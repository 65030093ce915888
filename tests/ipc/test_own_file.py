"""Programs close all descriptors that they find, and use the numbers for their own files, which stay open."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pfo_fs.ipc.system_calls import OwnFile


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    path = tmp_path / "diary"
    path.write_text("secret")
    return path


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_a_file_of_the_program_stays_open_where_the_number_was_that_of_our_socket(diary: Path) -> None:
    ours, theirs = socket.socketpair()
    fd, own = ours.fileno(), OwnFile(ours.fileno())
    with diary.open() as file:
        os.dup2(file.fileno(), fd)
    assert not own.is_open()
    own.close()
    for _ in range(2):
        own.close_socket(ours)
    assert os.read(fd, 6) == b"secret"
    os.close(fd)
    theirs.close()


def test_a_descriptor_that_is_still_ours_is_closed_once() -> None:
    ours, theirs = socket.socketpair()
    fd, own = ours.fileno(), OwnFile(ours.fileno())
    own.close_socket(ours)
    assert not is_open(fd)
    assert theirs.recv(1) == b""
    again = os.open(os.devnull, os.O_RDONLY)
    own.close_socket(ours)
    assert is_open(again)
    os.close(again)
    theirs.close()
