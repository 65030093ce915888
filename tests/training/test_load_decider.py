"""The process that decides, and the exchange in each clock process: connections, secrets, endings."""

import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from clock import replace_time
from hypothesis import given
from hypothesis import strategies as st
from running import HANGS_AFTER_S, wait_for

from pfo_fs.device import shared_page
from pfo_fs.device.load_exchange import Connection, LoadClient, LoadExchange, connect, received
from pfo_fs.device.shared_page import TURNS, SharedPage, decided_mhz, write_change
from pfo_fs.device.shared_page import Reading as PageReading
from pfo_fs.device.shared_page import write_reading as write_energy
from pfo_fs.ipc.transport import receive
from pfo_fs.loads.coordinator import LoadCoordinator
from pfo_fs.loads.messages import (
    CLOCK_BYTES,
    HELLO,
    TOKEN_BYTES,
    ReachDecider,
    StepBegun,
    clock_of,
    message_of,
    pack_row,
    packed,
    proof,
)
from pfo_fs.loads.step_rows import EndedStep, Reading, StepRows, make_row
from pfo_fs.training.load_decider import Decider, read_state

TOKEN = secrets.token_bytes(TOKEN_BYTES)


class Running:
    """A decider of two ranks in a thread."""

    def __init__(self, folder: Path) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.training, theirs = socket.socketpair()
        self.state_fd = os.open(folder / "state", os.O_RDWR | os.O_CREAT)
        coordinator = LoadCoordinator([(0, 0), (1, 0)], (1410, 1200), 0.0, 5e-4)
        decider = Decider(listening, theirs, TOKEN, self.state_fd, coordinator, 2)
        self._thread = threading.Thread(target=decider.serve)
        self._thread.start()
        self._connections: list[socket.socket] = [listening, theirs]

    def connect(self, rank: int) -> Connection:
        made = connect([("127.0.0.1", self.port)], TOKEN, rank)
        self._connections.append(made.stream)
        made.stream.settimeout(HANGS_AFTER_S)
        return made

    def greet(self, rank: int, token: bytes = TOKEN) -> socket.socket:
        """Greets as a rank, and waits for nothing."""
        made = socket.create_connection(("127.0.0.1", self.port))
        made.settimeout(HANGS_AFTER_S)
        self._connections.append(made)
        challenge, own = received(made, TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
        made.sendall(HELLO.pack(proof(token, challenge, rank), own, rank))
        return made

    def has_ended(self) -> bool:
        self._thread.join(HANGS_AFTER_S)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.training.close()
        assert self.has_ended()
        for one in self._connections:
            one.close()
        os.close(self.state_fd)


@pytest.fixture
def decider(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.close()


def tell(rank: Connection, step: int, ended: list[EndedStep] | None = None) -> None:
    row = make_row(step, (1.0, 2.0, 4.0), Reading(step, 0.0, time.monotonic()), ended or [])
    rank.stream.sendall(pack_row(row, time.monotonic(), rank.rows))


def hear(rank: Connection) -> tuple[int, int]:
    return clock_of(received(rank.stream, CLOCK_BYTES), rank.clocks)


@contextmanager
def answered_by(greet: Callable[[socket.socket], None]) -> Iterator[int]:
    """Gives the port of a process whose first connection is handled by a function."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                greet(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_connection_without_the_jobs_secret_is_closed_and_the_job_goes_on(decider: Running, rank: int) -> None:
    stranger = decider.greet(rank, secrets.token_bytes(TOKEN_BYTES))
    assert stranger.recv(1) == b""
    ranks = [decider.connect(0), decider.connect(1)]
    for one in ranks:
        tell(one, 0)
    assert hear(ranks[0]) == (0, 0)


def test_a_stranger_who_has_passed_on_the_greetings_can_forge_neither_rows_nor_clocks(decider: Running) -> None:
    ranks = [decider.connect(0), decider.connect(1)]
    for rank in ranks:
        tell(rank, 0)
    genuine = received(ranks[0].stream, CLOCK_BYTES)
    assert clock_of(genuine, ranks[0].clocks) == (0, 0)
    with pytest.raises(ValueError, match="no rank of the job"):
        clock_of(genuine, ranks[0].clocks)  # said again
    hear(ranks[1])
    row = pack_row(make_row(1, (9.0, 9.0, 9.0), Reading(1), []), 0.0, ranks[0].clocks)  # sealed with another key
    ranks[1].stream.sendall(row)
    assert decider.has_ended(), "all ranks go back to default clocks"


def test_a_step_that_is_no_number_ends_the_process_and_is_told(decider: Running) -> None:
    rank = decider.connect(0)
    rank.stream.sendall(pack_row([float("inf"), *make_row(0, (1.0,), Reading(0), [])[1:]], time.monotonic(), rank.rows))
    assert decider.has_ended()
    assert "cannot convert float" in read_state(decider.state_fd).problem  # type: ignore[union-attr]


def test_a_process_that_does_not_know_the_jobs_secret_is_not_taken_for_the_one_that_decides() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(bytes(TOKEN_BYTES))
        received(connection, HELLO.size)
        connection.sendall(bytes(TOKEN_BYTES))

    with answered_by(greet) as port, pytest.raises(OSError, match="not of this job"):
        connect([("127.0.0.1", port)], TOKEN, 0, within_s=0.1)


class Exchanging:
    """A rank's exchange, with the loop of its clock process.

    Args:
        addresses: Where the process that decides may be.
    """

    def __init__(self, addresses: list[tuple[str, int]], rank: int = 0) -> None:
        self.page = SharedPage.create()
        self.training, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.training.settimeout(HANGS_AFTER_S)
        self._theirs, self._poll = theirs, select.epoll()
        self._poll.register(theirs, select.EPOLLIN)
        self.exchange = LoadExchange(theirs, self.page.words, self._poll)
        self.changes = 0
        self.training.send(packed(ReachDecider(rank, [1410, 1200], addresses, TOKEN)))

    def turn(self) -> bool:
        """Answers what has come; returns whether the exchange goes on."""
        self.changes += sum(self.exchange.answer(fd) for fd, _ in self._poll.poll(0.01))
        return self._theirs.fileno() >= 0

    def close(self) -> None:
        self.exchange.close()
        self.training.close()
        self._poll.close()
        self.page.close()


@pytest.fixture
def exchanging() -> Iterator[Callable[..., Exchanging]]:
    made: list[Exchanging] = []

    def make(addresses: list[tuple[str, int]], rank: int = 0) -> Exchanging:
        made.append(Exchanging(addresses, rank))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_clocks_of_steps_come_into_the_page_of_each_rank(
    decider: Running, exchanging: Callable[..., Exchanging]
) -> None:
    ranks = [exchanging([("127.0.0.1", decider.port)], rank) for rank in (0, 1)]
    for step in (3, 4):
        for rank in ranks:
            rank.training.send(packed(begun(step, step, turn=step)))

    def have_come() -> bool:
        return [rank.turn() and decided_step(rank.page.words, 4) for rank in ranks] == [4, 4]

    wait_for(have_come)
    ranks[0].training.close()
    wait_for(lambda: [rank.turn() for rank in ranks] == [False, False], what="the end of both")
    assert ranks[1].training.recv(1) == b"", "training sees it"


def test_a_decider_that_takes_no_rows_holds_nobody_up_and_is_given_up(exchanging: Callable[..., Exchanging]) -> None:
    over = threading.Event()

    def greet(connection: socket.socket) -> None:
        connection.sendall(bytes(TOKEN_BYTES))
        _, own, _ = HELLO.unpack(received(connection, HELLO.size))
        connection.sendall(proof(TOKEN, own, -1))
        over.wait(HANGS_AFTER_S)

    with answered_by(greet) as port:
        rank = exchanging([("127.0.0.1", port)])
        row = packed(begun(7, 7)._replace(load=tuple(map(float, range(4096)))))
        rank.training.setblocking(False)  # with a time limit, Python waits although MSG_DONTWAIT is given
        while rank.turn():
            with suppress(BlockingIOError, BrokenPipeError):
                rank.training.send(row)
        rank.training.settimeout(HANGS_AFTER_S)
        assert b"reads no more loads" in receive(rank.training)
        over.set()


def test_the_search_for_the_process_that_decides_holds_nobody_up_also_while_a_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, exchanging: Callable[..., Exchanging]
) -> None:
    looked_up, answers = threading.Event(), threading.Event()

    def look_up(*_: object, **__: object) -> None:
        looked_up.set()
        answers.wait()
        raise socket.gaierror

    def now_s() -> float:  # once there is an answer, the time to search is over
        return time.monotonic() + 3600 * answers.is_set()

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    replace_time(monkeypatch, "pfo_fs.device.load_exchange", monotonic=now_s)
    threads = threading.active_count()
    rank = exchanging([("host", 1)])
    rank.training.sendall(b"a packet that waits")
    wait_for(lambda: rank.turn() and looked_up.is_set())
    rank.training.close()
    wait_for(lambda: not rank.turn(), what="its end")
    answers.set()
    wait_for(lambda: threading.active_count() == threads)


def test_training_hears_where_the_process_that_decides_was_not_reached_and_why(
    monkeypatch: pytest.MonkeyPatch, exchanging: Callable[..., Exchanging]
) -> None:
    unknown = socket.gaierror(-2, "Name or service not known")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=unknown))
    notes: list[str] = []
    with pytest.raises(OSError, match=r"node7\.cluster:4711: Name or service not known"):
        connect([("node7.cluster", 4711)], TOKEN, 1, within_s=0.1, note=notes.append)
    assert "node7.cluster:4711: Name or service not known" in notes
    rank = exchanging([])
    wait_for(lambda: not rank.turn(), what="the end of the exchange")
    assert b"was not reached" in rank.training.recv(4096)
    assert rank.training.recv(4096) == b"", "training sees that it has ended"


NUMBERS = st.floats(-1e12, 1e12)


@given(
    st.builds(
        StepBegun,
        *(st.integers(low, high) for low, high in ((-1, 2**40), (0, 2**40), (-1, 2**15), (-1, 60_000))),
        st.just(1.5),
        st.lists(NUMBERS, max_size=9).map(tuple),
        st.lists(st.tuples(st.integers(0, 2**40), NUMBERS, NUMBERS), max_size=4),
    )
)
def test_what_training_tells_arrives_as_it_was(told: StepBegun) -> None:
    assert message_of(packed(told), StepBegun) == told


def decided_step(words: memoryview, step: int) -> int:
    """The step whose clock stands in the page at the place of this one."""
    return words[shared_page._DECIDED + 2 * (step % shared_page.RECENT_TURNS)]


def begun(posts: int, runs: int, turn: int = -1, mhz: int = 0) -> StepBegun:
    return StepBegun(posts, runs, turn, mhz, time.monotonic(), (1.0, 1.0, 1.0), [])


@pytest.fixture
def client(page: SharedPage) -> LoadClient:
    return LoadClient(page.words, (1410, 1210))


@pytest.mark.parametrize(("mhz", "turn"), [(1210, 3), (1210, -1), (300, 3)])
def test_a_clock_that_comes_while_its_step_runs_changes_that_step_if_it_is_on_offer_and_the_device_follows(
    page: SharedPage, client: LoadClient, mhz: int, turn: int
) -> None:
    client.begun(begun(7, 7, turn=turn))
    assert not client.decided(8, 1210), "it is known before its step"
    assert decided_mhz(page.words, 8) == 1210
    follows = (mhz, turn) == (1210, 3)
    assert client.decided(7, mhz) == follows
    assert page.words[TURNS + 3] == mhz * follows
    assert decided_mhz(page.words, 7) == (mhz if mhz == 1210 else 0)


@pytest.mark.parametrize(("set_at_s", "told_mhz"), [((), 1410.0), ((10.0,), 1210.0), ((10.5,), 1310.0)])
def test_a_step_is_told_with_the_mean_of_the_clock_that_was_set_while_it_ran(
    page: SharedPage, client: LoadClient, set_at_s: tuple[float, ...], told_mhz: float
) -> None:
    client.begun(begun(7, 7, turn=3))
    client.decided(7, 1210)  # the GPU refuses it, or takes it at once, or late
    for at_s in set_at_s:
        write_change(page.words, round(at_s * 1e9), 1210)
    write_change(page.words, round(11.5e9), 0)
    row, _ = client.begun(begun(8, 8)._replace(ended=[(7, 1.0, 10.0)]))
    assert StepRows([row]).ended[0, 0].tolist() == [7.0, 1.0, told_mhz]


def test_a_step_is_told_with_the_energy_counter_at_its_begin(page: SharedPage, client: LoadClient) -> None:
    for at_s, energy_j in ((9.0, 100.0), (11.0, 300.0), (13.0, 301.0)):
        write_energy(page.words, PageReading(round(at_s * 1e9), round(energy_j * 1e6), 0))
    row, _ = client.begun(begun(8, 8)._replace(ended=[(7, 1.0, 10.0)]))
    assert StepRows([row]).readings[0].tolist() == [7.0, 200.0, 10.0]


def test_times_of_ranks_on_other_hosts_are_those_of_the_host_that_decides(decider: Running) -> None:
    ranks = [decider.connect(0), decider.connect(1)]
    ahead_s = 5000.0  # the monotonic clock of rank 1's host
    for step in range(30):
        now_s = time.monotonic()
        for number, rank in enumerate(ranks):
            ended = [EndedStep(step - 1, 0.001 if number else 0.02, 1410.0)] if step else []
            at_s = now_s + ahead_s * number
            row = make_row(step, (1.0, 2.0 - number, 4.0), Reading(step, 0.0, at_s), ended)
            rank.stream.sendall(pack_row(row, time.monotonic() + ahead_s * number, rank.rows))
        for rank in ranks:
            hear(rank)
        time.sleep(0.025)
    state = read_state(decider.state_fd)
    assert not state.problem, "all ranks begin their steps together"
