"""Sends a rank's loads from its clock process to rank 0's process that decides clocks, and receives these clocks.

Training writes a packet when a step begins (`loads/messages.py`), and never waits. The clock process sends the step's
row to the process that decides (`training/load_decider.py`), and writes the clock that comes back into the page: as the
clock of a step to come, and, if the step has begun and its clock can still change, as the clock of that step. When
clocks are decided no more, the clock process closes its end of training's socket, which tells training.
"""

import hmac
import secrets
import select
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pfo_fs.device import shared_page
from pfo_fs.loads import step_rows
from pfo_fs.loads.messages import (
    CLOCK_BYTES,
    HELLO,
    MOST_BYTES,
    TOKEN_BYTES,
    ReachDecider,
    Seals,
    StepBegun,
    clock_of,
    message_of,
    pack_row,
    proof,
)

_CONNECTS_WITHIN_S = 60.0
_TRY_S = 5.0
_KEPT = 64
_WAITING = 2
"""At most this many ended steps wait for later rows: CUDA may tell the times of two steps at once."""
_SAYS_AFTER_S = 5.0
"""If the process that decides is not reached after 5 s, training hears of it, and again if the search fails."""
_MOST_UNSENT = 1 << 21
"""At most this many bytes wait, room for all open rows: else the process that decides, or the network, has ended."""


class LoadClient:
    """One rank's part of the exchange, without its sockets."""

    def __init__(self, words: memoryview, offered_mhz: Sequence[int]) -> None:
        self._words, self._offered_mhz = words, frozenset(offered_mhz)
        self._top_mhz = max(offered_mhz)
        self._decided: OrderedDict[int, int] = OrderedDict()
        self._begun: OrderedDict[int, int] = OrderedDict()
        self._ended: deque[tuple[int, float, float]] = deque(maxlen=_KEPT)

    def begun(self, told: StepBegun) -> tuple[list[float] | None, bool]:
        """Takes what training tells; returns the row to send, if there is one, and whether a clock changes."""
        changes = False
        if told.turn >= 0 and not told.mhz:
            self._begun[told.runs] = told.turn
            changes = self._change(told.runs)
        self._ended += told.ended
        for kept in (self._begun, self._decided):
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        if told.posts < 0:
            return None, changes
        # A row has the begin of one step: the oldest that has ended, or the last of several if too many wait.
        count = min(len(self._ended), max(1, len(self._ended) - _WAITING), step_rows.MOST_ENDED)
        ended = [self._ended.popleft() for _ in range(count)]
        reading = step_rows.Reading(told.runs)
        if ended:
            step, _, began_s = ended[-1]
            reading = step_rows.Reading(step, shared_page.energy_at(self._words, round(began_s * 1e9)), began_s)
        steps = [step_rows.EndedStep(step, work_s, self._clock(began_s, work_s)) for step, work_s, began_s in ended]
        now_s = told.at_s if told.posts == told.runs else step_rows.UNKNOWN
        return step_rows.make_row(told.posts, told.load, reading, steps, now_s), changes

    def _clock(self, began_s: float, work_s: float) -> float:
        return shared_page.mean_clock_mhz(
            self._words, round(began_s * 1e9), round((began_s + work_s) * 1e9), self._top_mhz
        )

    def decided(self, step: int, mhz: int) -> bool:
        """Takes the decided clock of a step; returns whether it changes the clock of a step that has begun."""
        if mhz and mhz not in self._offered_mhz:
            return False
        self._decided[step] = mhz
        shared_page.write_decided(self._words, step, mhz)
        return self._change(step)

    def _change(self, step: int) -> bool:
        mhz, turn = self._decided.get(step, 0), self._begun.get(step, -1)
        if not mhz or turn < 0:
            return False
        self._words[shared_page.TURNS + turn % shared_page.RECENT_TURNS] = mhz
        return True


@dataclass
class Connection:
    """A connection to the process that decides."""

    stream: socket.socket
    rows: Seals
    clocks: Seals


def connect(
    addresses: Sequence[tuple[str, int]],
    token: bytes,
    rank: int,
    within_s: float = _CONNECTS_WITHIN_S,
    note: Callable[[str], object] = lambda text: None,
) -> Connection:
    """Returns a connection to the process that decides; both sides have shown that they know the job's secret.

    Args:
        note: Called with what is tried, and with each problem.

    Raises:
        OSError: The process answers at none of the addresses.
    """
    until_s = time.monotonic() + within_s
    problem: OSError = OSError("there is no address")
    while addresses and time.monotonic() < until_s:
        for host, port in addresses:
            note(f"{host}:{port} has not answered yet")
            try:
                made = socket.create_connection((host, port), timeout=_TRY_S)
            except OSError as error:
                problem = OSError(f"{host}:{port}: {error.strerror or error}")
                note(str(problem))
                continue
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                challenge, own = received(made, TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
                made.sendall(HELLO.pack(proof(token, challenge, rank), own, rank))
                if hmac.compare_digest(received(made, TOKEN_BYTES), proof(token, own, -1)):
                    made.settimeout(None)
                    rows, clocks = (Seals(token, (challenge, own), rank, clocks=to_rank) for to_rank in (False, True))
                    return Connection(made, rows, clocks)
                problem = OSError(f"what answers at {host}:{port} is not of this job")
            except OSError as error:
                problem = OSError(f"{host}:{port}: {error.strerror or error}")
            note(str(problem))
            made.close()
        time.sleep(0.2)
    raise problem


def received(of: socket.socket, size: int) -> bytes:
    """Returns a packet of this size; empty at the end of the connection."""
    packet = b""
    while len(packet) < size:
        piece = of.recv(size - len(packet))
        if not piece:
            return b""
        packet += piece
    return packet


class LoadExchange:
    """A rank's connections to training and to the process that decides, in the loop of its clock process.

    No call waits. Only the search for the process that decides runs in a thread, since looking up the name of a host
    can take half a minute, and nothing interrupts that.

    Args:
        training: The socket on which training tells how to reach the process that decides, and then its steps.
    """

    def __init__(self, training: socket.socket, words: memoryview, poll: select.epoll) -> None:
        self._training, self._words, self._poll = training, words, poll
        self._client: LoadClient | None = None
        self._deciding: Connection | None = None
        self._greeted = self._closed = False
        self._received = self._unsent = b""

    def answer(self, fd: int) -> bool:
        """Does what an event of a descriptor asks for; returns whether the clock of the running step changes."""
        try:
            if fd == self._training.fileno():
                return self._hear_training()
            if self._deciding is not None and fd == self._deciding.stream.fileno():
                return self._hear_decider(self._deciding)
        except Exception as error:  # noqa: BLE001  clocks are set without it, too
            self._say(f"the connection to rank 0's process that decides clocks: {error}")
            self.close()
        return False

    def close(self) -> None:
        self._closed = True
        for connection in (self._training, *([self._deciding.stream] if self._deciding is not None else [])):
            if connection.fileno() >= 0:
                with suppress(OSError):
                    self._poll.unregister(connection)
                connection.close()

    def _hear_training(self) -> bool:
        packet = self._training.recv(MOST_BYTES, socket.MSG_DONTWAIT)
        if not packet:
            self.close()
        elif self._client is None:
            join = message_of(packet, ReachDecider)
            self._client = LoadClient(self._words, join.offered_mhz)
            self._poll.modify(self._training, 0)  # what training tells waits; its end is still seen
            threading.Thread(target=self._search, args=(join,), daemon=True).start()
        elif self._deciding is None:
            self.close()  # training, or the search, has ended
        else:
            row, changes = self._client.begun(message_of(packet, StepBegun))
            if row is not None:
                self._unsent += pack_row(row, time.monotonic(), self._deciding.rows)
                self._send(self._deciding.stream)
            return changes
        return False

    def _search(self, join: ReachDecider) -> None:
        notes = deque(["it has no address that this host may use"], maxlen=1)
        slow = threading.Timer(
            _SAYS_AFTER_S,
            lambda: self._say(f"waiting for rank 0's process that decides clocks: {notes[0]}"),
        )
        slow.daemon = True
        slow.start()
        try:
            made = connect(join.addresses, join.token, join.rank, note=notes.append)
            made.stream.setblocking(False)
            self._deciding = made
            self._poll.register(made.stream, select.EPOLLOUT)
        except (OSError, ValueError):  # the name of a host may be invalid
            self._say(f"rank 0's process that decides clocks was not reached: {notes[0]}")
            with suppress(OSError):
                self._training.shutdown(socket.SHUT_RDWR)  # the loop closes it
        finally:
            slow.cancel()

    def _hear_decider(self, deciding: Connection) -> bool:
        if not self._greeted:
            self._greeted = True
            if self._closed:  # during the search
                self.close()
                return False
            self._poll.modify(self._training, select.EPOLLIN)
        self._send(deciding.stream)
        with suppress(BlockingIOError):
            piece = deciding.stream.recv(65_536)
            if not piece:
                self.close()
            self._received += piece
        changes = False
        while len(self._received) >= CLOCK_BYTES:
            packet, self._received = self._received[:CLOCK_BYTES], self._received[CLOCK_BYTES:]
            assert self._client is not None
            changes |= self._client.decided(*clock_of(packet, deciding.clocks))
        return changes

    def _send(self, stream: socket.socket) -> None:
        """Sends as much of the waiting rows as the kernel takes.

        Raises:
            OSError: Too much waits.
        """
        with suppress(BlockingIOError):
            if self._unsent:
                self._unsent = self._unsent[stream.send(self._unsent) :]
        if len(self._unsent) > _MOST_UNSENT:
            raise OSError("the process that decides reads no more loads")
        self._poll.modify(stream, select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._training.send(text.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
