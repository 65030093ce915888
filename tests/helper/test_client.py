"""Which process starts a helper, and at which address, whoever else is on the host."""

import errno
import math
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from clock import Clock, replace_time
from running import HANGS_AFTER_S, open_fds, wait_for

from pfo_fs.errors import CoordinationError
from pfo_fs.helper import client as client_module
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import messages, transport

Make = Callable[..., HelperClient]
TOKEN = secrets.token_hex(16)


@pytest.fixture
def address() -> str:
    return f"pfo-fs-test-{secrets.token_hex(8)}"


@pytest.fixture
def make(tmp_path: Path, address: str) -> Iterator[Make]:
    clients: list[HelperClient] = []

    def make_one(rank: int, **options: Any) -> HelperClient:
        clients.append(HelperClient(address, str(tmp_path / "shared"), TOKEN, rank, {}, **options))
        return clients[-1]

    yield make_one
    for each in clients:
        each.close()
        if each.process is not None:
            each.process.kill()
            each.process.wait()


def starters(clients: list[HelperClient]) -> list[HelperClient]:
    return [each for each in clients if each.process is not None and each.process.poll() is None]


def die(clients: list[HelperClient]) -> None:
    """The helper of these ranks is killed."""
    (starter,) = starters(clients)
    starter.process.kill()
    starter.process.wait()
    for each in clients:
        wait_for(lambda each=each: each.poll() or each.lost, what="the end of the connection")


def answers(client: HelperClient) -> bool:
    """Whether the other end is a helper: one refuses a rank of a job that is not there."""
    client.send(messages.JoinJob(job_id="job", attempt="a", coordination="local", rank_body={}))
    return isinstance(client.wait_for(messages.Joined, HANGS_AFTER_S), messages.Refused)


def test_one_rank_starts_the_helper_and_any_rank_its_next_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_OTHERS_LATER_S", 0.0)
    clients = [make(rank) for rank in (4, 5, 6)]
    assert len(starters(clients)) == 1
    assert all(map(answers, clients))
    die(clients)
    for each in clients:
        each.revive([])
    assert len(starters(clients)) == 1
    assert all(each.revive([]) and answers(each) for each in clients)


def test_rank_0_is_the_first_to_replace_a_dead_helper_and_is_connected_to_the_new_one_at_once(make: Make) -> None:
    clients = [make(rank) for rank in (0, 1)]
    die(clients)
    assert not clients[1].revive([])
    assert not starters(clients)
    assert clients[0].revive([])
    assert starters(clients) == [clients[0]]
    assert answers(clients[0])


def test_helpers_that_die_often_are_started_rarely(make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make(0)
    die([client])
    started_s: list[float] = []
    replace_time(monkeypatch, client_module.__name__, monotonic=clock)
    monkeypatch.setattr(client_module, "start_process", lambda *_, **__: started_s.append(clock()))
    client.process = None
    for _ in range(600):
        client.revive([])
        clock.now += 1.0
    assert len(started_s) < 20
    assert max(later - earlier for earlier, later in pairwise(started_s)) <= 61


def test_no_address_to_be_had_is_an_error_within_the_deadline(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "listen", Mock(side_effect=OSError(errno.EADDRINUSE, "in use")))
    with pytest.raises(CoordinationError, match="no helper process"):
        make(0, deadline_s=0.3)


def test_a_socket_that_the_program_opens_where_it_had_closed_ours_is_neither_read_nor_written(make: Make) -> None:
    before = open_fds()
    client = make(0)
    opened = open_fds() - before
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for fd in opened:
            with suppress(OSError):  # the folder's own descriptor
                os.fstat(fd)
                os.dup2(ours.fileno(), fd)
        theirs.send(b"the program's")
        assert client.poll() is None
        assert not client.send(messages.WatchSwitch())
        assert client.wait_for(messages.ClocksHeld, math.inf) is None
        assert ours.recv(100, socket.MSG_DONTWAIT) == b"the program's"
        client.close()
        with pytest.raises(BlockingIOError):
            theirs.recv(100, socket.MSG_DONTWAIT)
        for fd in opened:
            with suppress(OSError):
                os.close(fd)


# ---- other users


def squat(name: str, uid: int | None, listens: bool) -> subprocess.Popen[str]:
    """Another process takes an address, as another user if `uid` is given."""
    code = (
        f"import os, socket, sys\n{f'os.setuid({uid})' if uid else ''}\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.bind('\\0' + sys.argv[1])\n"
        f"{'s.listen(5)' if listens else ''}\nprint('has it', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "has it\n"
    return process


@pytest.mark.parametrize("listens", [True, False], ids=["listens", "only has the name"])
def test_another_user_who_takes_the_address_of_a_dead_helper_keeps_no_rank_from_a_new_one(
    make: Make, address: str, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    if os.geteuid() and listens:
        pytest.skip("becoming another user needs root")
    monkeypatch.setattr(client_module, "_OTHERS_LATER_S", 0.0)
    monkeypatch.setattr(client_module, "_SILENT_S", 0.05)
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.0)
    clients = [make(rank) for rank in (0, 1)]
    names = transport.names_of_helper(address, TOKEN)
    squatters = []
    try:
        for name in names[:2]:
            die(clients)
            squatters.append(squat(name, 20001 if listens else None, listens))
            for each in clients:
                each._start_after_s = each._pause_s = 0.0
                wait_for(lambda each=each: each.revive([]), what="a new helper")
            assert len(starters(clients)) == 1
            assert all(map(answers, clients))
    finally:
        for squatter in squatters:
            squatter.communicate()


def test_nobody_can_tell_the_next_address_from_the_one_in_use() -> None:
    one, other = (transport.names_of_helper("pfo-fs-address", token) for token in ("a" * 32, "a" * 31 + "b"))
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])
    assert len(set(one)) == len(one) > 3


def test_a_clock_process_finds_the_helper_at_its_later_address(address: str) -> None:
    from pfo_fs.device.metering.reporter import Reporter

    with transport.listen(transport.names_of_helper(address, TOKEN)[2]) as server:
        reporter = Reporter(address, 3, TOKEN)
        assert reporter.send_waiting()
        connection, _ = server.accept()
        with connection:
            hello = transport.decode(transport.receive(connection), messages.ToHelper)
        assert (hello.rank, hello.role) == (3, "clocks")
        reporter.finish(0)
