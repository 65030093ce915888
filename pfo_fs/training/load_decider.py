"""The process of rank 0 that decides the clocks of all ranks: a rank sends a row for each step and gets its clock.

Each rank's clock process connects to this process (`device/load_exchange.py`), which ends when rank 0's training ends.
The process keeps what it knows in a file in memory, which training reads.
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, TypeAlias

from pfo_fs.ipc.process_end import in_forked_children
from pfo_fs.ipc.spawn import start_process
from pfo_fs.ipc.system_calls import OwnFile, open_memory_file
from pfo_fs.loads import step_rows
from pfo_fs.loads.messages import HELLO, TOKEN_BYTES, Seals, next_row, pack_clock, proof
from pfo_fs.loads_known import LoadsKnown

if TYPE_CHECKING:
    from pfo_fs.loads.coordinator import LoadCoordinator

_MOST_OPEN = 64
"""At most this many steps wait for rows of some ranks; if there are more, a rank sends wrong rows."""
_HELLO_WITHIN_S = 10.0
_NO_ROOM_S = 0.1
_OFFSETS = 64
"""A host's clock is taken to differ by the least of its last 64 times from sending to arriving: no packet arrives
before it is sent, and clocks drift by less than 10 ms in 64 steps of 10 s."""
_SETTLED = 8
"""Times of a rank count from its eighth packet on: one of eight is quick, also at the start of a large job."""
_STATE_BYTES = 65_536
"""Size of the file with what is known: some 2,000 characters of text at most, 100 numbers of the last step, and some 10
learned numbers per rank. For several thousand ranks these do not fit, and are left out."""

_BACKLOG = 4096

Orders: TypeAlias = Sequence[Sequence[tuple[int, str, int]]]
"""(stage, name, micro-batch) of the instructions of each rank of a pipeline, in their order."""


class _Rank:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank = -1
        self.pending = b""
        self.since_s = time.monotonic()
        self.challenge = secrets.token_bytes(TOKEN_BYTES)
        self.rows: Seals | None = None
        self.clocks: Seals | None = None
        self._offsets_s: deque[float] = deque(maxlen=_OFFSETS)

    def on_own_clock(self, row: list[float], sent_s: float) -> list[float]:
        """Returns a row that has just come, with its times on this process's clock."""
        self._offsets_s.append(time.monotonic() - sent_s)
        return step_rows.moved(row, min(self._offsets_s) if len(self._offsets_s) >= _SETTLED else step_rows.UNKNOWN)


class Decider:
    def __init__(
        self,
        listening: socket.socket,
        training: socket.socket,
        token: bytes,
        state_fd: int,
        coordinator: LoadCoordinator,
        ranks: int,
    ) -> None:
        self._listening, self._training, self._token = listening, training, token
        self._state_fd, self._coordinator = state_fd, coordinator
        self._size = ranks
        self._open: dict[int, dict[int, list[float]]] = {}  # the rows of each step, by rank, until all have come
        self._ranks: dict[int, _Rank] = {}
        self._ready = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serves until training, or a rank, has ended."""
        self._ready.register(self._listening, selectors.EVENT_READ)
        self._ready.register(self._training, selectors.EVENT_READ)
        try:
            while self._serve_once():
                pass
        except (ValueError, OverflowError) as error:
            known: LoadsKnown = self._coordinator.state
            problem = f"the process that decides clocks has stopped: {error}"
            self._write(known.model_copy(update={"text": f"{problem}. {known.text}", "problem": problem}))
        finally:
            for key in list(self._ready.get_map().values()):
                if isinstance(key.data, _Rank):
                    key.data.connection.close()
            self._ready.close()

    def _serve_once(self) -> bool:
        whole = len(self._ranks) == self._size
        for key, _ in self._ready.select(None if whole else 1.0):
            if key.fileobj is self._training:
                return False
            if key.fileobj is self._listening:
                self._accept()
            elif key.data.connection.fileno() >= 0 and not self._take(key.data):
                return False
        if not whole:
            self._drop_strangers(_HELLO_WITHIN_S)
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            time.sleep(_NO_ROOM_S)  # too many files are open: the connection waits
            return
        of = _Rank(connection)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(of.challenge, socket.MSG_DONTWAIT)
        self._ready.register(connection, selectors.EVENT_READ, of)

    def _take(self, of: _Rank) -> bool:
        """Takes what a rank has sent; returns False if a rank of the job has ended."""
        try:
            piece = of.connection.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            piece = b""
        of.pending += piece
        if of.rank < 0 and (not piece or not self._greets(of)):
            self._drop(of)
            return True
        while of.rows is not None and (packet := next_row(of.pending, of.rows)) is not None:
            row, sent_s, of.pending = packet
            self._add(of.rank, of.on_own_clock(row, sent_s))
        return bool(piece)

    def _add(self, rank: int, row: list[float]) -> None:
        """Takes a rank's row; decides the clocks of its step once the rows of all ranks have come.

        Raises:
            ValueError: The row's step is NaN, or too many steps are open; OverflowError: it is infinite.
        """
        step = int(row[0])
        rows = self._open.setdefault(step, {})
        rows[rank] = row
        if len(self._open) > _MOST_OPEN:
            raise ValueError("too many steps are open")
        if len(rows) == self._size:
            del self._open[step]
            self._decide(step, [rows[member] for member in range(self._size)])

    def _greets(self, of: _Rank) -> bool:
        """Takes a connection's greeting once it is complete; returns False if it is not that of a rank."""
        if len(of.pending) < HELLO.size:
            return True
        shown, challenge, rank = HELLO.unpack(of.pending[: HELLO.size])
        of.pending = of.pending[HELLO.size :]
        if not compare_digest(shown, proof(self._token, of.challenge, rank)):
            return False
        if rank in self._ranks or not 0 <= rank < self._size:
            return False
        with suppress(OSError):  # if the rank has ended, `_take` finds that next
            of.connection.sendall(proof(self._token, challenge, -1))
        challenges = of.challenge, challenge
        of.rows, of.clocks = (Seals(self._token, challenges, rank, clocks=to_rank) for to_rank in (False, True))
        of.rank = rank
        self._ranks[rank] = of
        if len(self._ranks) == self._size:
            self._ready.unregister(self._listening)
            self._listening.close()
            self._drop_strangers(0.0)
        return True

    def _drop_strangers(self, silent_s: float) -> None:
        """Drops connections that have been open for `silent_s` without showing the secret."""
        for key in list(self._ready.get_map().values()):
            of = key.data
            if isinstance(of, _Rank) and of.rank < 0 and time.monotonic() - of.since_s >= silent_s:
                self._drop(of)

    def _drop(self, of: _Rank) -> None:
        self._ready.unregister(of.connection)
        of.connection.close()

    def _decide(self, step: int, rows: list[list[float]]) -> None:
        clocks = self._coordinator.receive(rows)
        for rank, mhz in enumerate(clocks):
            seals = self._ranks[rank].clocks
            assert seals is not None  # it has greeted
            with suppress(OSError):  # as in `_greets`
                self._ranks[rank].connection.sendall(pack_clock(step, mhz, seals))
        self._coordinator.learn()
        self._write(self._coordinator.state)

    def _write(self, known: LoadsKnown) -> None:
        text = known.model_dump_json(warnings=False).encode()
        if len(text) > _STATE_BYTES:
            text = known.model_dump_json(warnings=False, exclude={"learned"}).encode()
        os.pwrite(self._state_fd, text.ljust(_STATE_BYTES, b" "), 0)


def read_state(fd: int) -> LoadsKnown | None:
    """Returns what the process has written last; None before the first time, and while it writes."""
    with suppress(OSError, ValueError):
        return LoadsKnown.model_validate_json(os.pread(fd, _STATE_BYTES, 0))
    return None


class LoadDecider:
    """Training's side of the process that decides; the process ends when this object closes its end of a socket pair.

    The arguments are those of `LoadCoordinator`; `orders` are the pipeline's, empty without a pipeline; `token` is the
    job's secret as hexadecimal digits.

    Raises:
        OSError: The process cannot be started, or no port can be opened.
    """

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        offered_mhz: Sequence[int],
        change_s: float,
        lost_time: float,
        orders: Orders,
        token: str,
        learned: dict[str, list[float]] | None = None,
        holds: bool = False,
    ) -> None:
        arguments = [places, offered_mhz, change_s, lost_time, orders, learned, holds]
        self._state_fd = open_memory_file("pfo-fs-loads")
        weakref.finalize(self, OwnFile(self._state_fd).close).atexit = False
        with _listening() as listening:
            self.port: int = listening.getsockname()[1]
            ours, theirs = socket.socketpair()
            with theirs:
                fds = {"socket_fd": theirs.fileno(), "listening_fd": listening.fileno(), "state_fd": self._state_fd}
                self._process = start_process(__name__, {"arguments": arguments, "token": token}, fds=fds)
        self._file = OwnFile(ours.detach())
        weakref.finalize(self, self._file.close).atexit = False
        in_forked_children(self._file.close)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where ranks may reach the process, the likeliest first; others that answer there lack the job's secret."""
        hosts = [os.environ.get("MASTER_ADDR", ""), socket.gethostname(), "127.0.0.1"]
        return [(host, self.port) for host in dict.fromkeys(hosts) if host]

    @property
    def state(self) -> LoadsKnown | None:
        """What is known; None before the first step."""
        return read_state(self._state_fd)

    def close(self) -> None:
        """Ends the process; does not wait."""
        self._file.close()


def _listening() -> socket.socket:
    """Returns a socket on a free port, for IPv4 and, where there is one, IPv6."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_BACKLOG)


def main(given: dict[str, Any]) -> int:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # training needs the other cores; NumPy is not imported yet
    from pfo_fs.loads.coordinator import LoadCoordinator
    from pfo_fs.loads.durations import StepShape

    with suppress(OSError, ValueError):  # each rank's connection takes a descriptor
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    places, offered_mhz, change_s, lost_time, orders, learned, holds = given["arguments"]
    shape = StepShape.of_orders(orders) if orders else None
    coordinator = LoadCoordinator(places, offered_mhz, change_s, lost_time, shape, learned, holds)
    listening = socket.socket(fileno=given["listening_fd"])
    training = socket.socket(fileno=given["socket_fd"])
    token = bytes.fromhex(given["token"])
    Decider(listening, training, token, given["state_fd"], coordinator, len(places)).serve()
    return 0
