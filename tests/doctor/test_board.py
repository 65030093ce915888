"""Hosts that run `pfo-fs doctor --peer` find each other, whatever else lies in the directory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from running import HANGS_AFTER_S

from pfo_fs.doctor.directory.between import check_delay
from pfo_fs.doctor.directory.board import Board, PeerLost, PeersNotFound
from pfo_fs.doctor.lines import Check
from pfo_fs.store import Files


def board_in(root: Path) -> Board:
    return Board(Files(root), beat=lambda: None)


def test_hosts_find_each_other_beside_leftovers_and_hear_what_each_has_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    crashed = board_in(tmp_path)
    crashed._write(now=True)
    os.mkfifo(tmp_path / "doctor" / f"{'f' * 16}.json")
    (tmp_path / "doctor" / f"{'e' * 16}.json").write_text("junk")
    heard: dict[str, list[Any]] = {}

    def run(name: str) -> None:
        board = board_in(tmp_path)
        board.find(3, 60)
        heard[name] = [sorted(board.exchange([name, step]).values()) for step in range(3)]
        heard[name].append(board.session)
        board.leave(60)

    hosts = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join(HANGS_AFTER_S)
    assert heard["a"][:3] == [[["a", step], ["b", step], ["c", step]] for step in range(3)]
    assert heard["a"] == heard["b"] == heard["c"]
    left = {path.name[0] for path in (tmp_path / "doctor").iterdir()} if (tmp_path / "doctor").exists() else set()
    assert left <= {"e", "f"}, "the files of hosts, and of the one that has crashed, are removed"


def test_a_host_that_is_alone_and_one_that_falls_silent_are_told_in_time(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    board = board_in(tmp_path)
    with pytest.raises(PeersNotFound, match="1 of 2 hosts"):
        board.find(2, 0.2)
    other = board_in(tmp_path)
    board.members = [board.me, other.me]
    board.hosts[other.me] = "node2"
    with pytest.raises(PeerLost, match="node2"):
        board.exchange("x", within_s=0.2)


def test_all_hosts_hear_how_long_changes_take_to_each_of_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found: list[list[Check]] = []

    def run() -> None:
        board = board_in(tmp_path)
        board.find(3, 60)
        found.append(list(check_delay(board)))
        if board.is_first:
            board.remove_files()
        board.leave(60)

    hosts = [threading.Thread(target=run) for _ in range(3)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join(HANGS_AFTER_S)
    (delay, clocks), *others = found
    assert others == [[delay, clocks]] * 2
    assert delay.found.count("replaced file") == delay.found.count("new name") == 2
    assert clocks.ok, "it is one clock"
    assert not (tmp_path / "doctor").exists()
