"""The process beside each training process that exchanges its loads: to rank 0's decisions, and clocks back.

Training writes a packet when a step begins (`load_messages.py`), and never waits. This process sends the step's row to
the process that decides (`load_decider.py`), and writes the clock that comes back into the page that training shares
with its clock process: as the clock of a step to come, and, where the device follows training, as that of a step that
has begun. It ends with training, or when clocks are decided no more; training sees that it is gone.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
import select
import selectors
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pfo_fs.device import shared_page
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.loads import step_rows
from pfo_fs.training.load_messages import (
    CLOCK_BYTES,
    HELLO,
    MOST_BYTES,
    TOKEN_BYTES,
    Seals,
    StepBegun,
    clock_of,
    pack_row,
    proof,
    step_begun,
)

_CONNECTS_WITHIN_S = 60.0
_TRY_S = 5.0
_LOOKS_EVERY_S = 0.05
_KEPT = 64
_WAITING = 2
"""CUDA may tell the times of two steps at once."""
_SAYS_AFTER_S = 5.0
"""Training hears after 5 s where the process that decides was not reached, and again when the search is given up."""
_ONE = (1).to_bytes(8, "little")


class LoadClient:
    """One rank's part, without sockets.

    Args:
        words: The page shared with the clock process.
        offered_mhz: The clocks that may be decided.
    """

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
        """Takes the clock of a step; returns whether that of a step that has begun changes."""
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
    """A connection to the process that decides.

    Attributes:
        stream: The socket.
        rows, clocks: Seals of the packets of both directions.
    """

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
        addresses: Where it may be.
        token: The secret.
        rank: This rank.
        within_s: How long to try.
        note: Called with what is tried, and with each problem.

    Raises:
        OSError: It answers at none of the addresses.
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
                    rows, clocks = (Seals(token, (challenge, own), rank, clocks=each) for each in (False, True))
                    return Connection(made, rows, clocks)
                problem = OSError(f"what answers at {host}:{port} is not of this job")
            except OSError as error:
                problem = OSError(f"{host}:{port}: {error.strerror or error}")
            note(str(problem))
            made.close()
        time.sleep(0.2)
    raise problem


def connect_beside(
    training: socket.socket, addresses: Sequence[tuple[str, int]], token: bytes, rank: int
) -> Connection | None:
    """Returns what `connect` does; None at once if training ends meanwhile, or if nothing answers.

    A thread connects, since looking up the name of a host can take half a minute, and nothing interrupts that. Training
    is told what the search is waiting for.
    """
    made: list[Connection] = []
    notes = deque(["it has no address that this host may use"], maxlen=1)

    def search() -> None:
        with suppress(OSError):
            made.append(connect(addresses, token, rank, note=notes.append))

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    end = select.poll()
    end.register(training, select.POLLRDHUP)  # also while packets of training wait to be read
    says_at_s = time.monotonic() + _SAYS_AFTER_S
    while thread.is_alive() and not end.poll(0):
        thread.join(_LOOKS_EVERY_S)
        if time.monotonic() > says_at_s:
            says_at_s = math.inf
            _say(training, f"waiting for rank 0's process that decides clocks: {notes[0]}")
    if not made:
        _say(training, f"rank 0's process that decides clocks was not reached: {notes[0]}")
    return made[0] if made else None


def _say(training: socket.socket, text: str) -> None:
    with suppress(OSError):
        training.send(text.encode(), socket.MSG_DONTWAIT)


def received(of: socket.socket, size: int) -> bytes:
    """Returns a packet of this size; empty at the end of the connection."""
    found = b""
    while len(found) < size:
        piece = of.recv(size - len(found))
        if not piece:
            return b""
        found += piece
    return found


def main(given: dict[str, Any]) -> int:
    """Runs the process."""
    training = socket.socket(fileno=given["socket_fd"])
    words = SharedPage(given["page_fd"]).words
    client = LoadClient(words, given["offered_mhz"])
    addresses = [(str(host), int(port)) for host, port in given["addresses"]]
    deciding = connect_beside(training, addresses, bytes.fromhex(given["token"]), given["rank"])
    if deciding is None:
        return 0
    with deciding.stream:
        try:
            _serve(client, training, deciding, given["doorbell_fd"])
        except (OSError, ValueError) as error:
            _say(training, f"the connection to rank 0's process that decides clocks: {error}")
    return 0


def _serve(client: LoadClient, training: socket.socket, deciding: Connection, doorbell: int) -> None:
    """Serves until training or the process that decides has ended."""
    with selectors.DefaultSelector() as ready:
        ready.register(training, selectors.EVENT_READ)
        ready.register(deciding.stream, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is training:
                    message = training.recv(MOST_BYTES)
                    if not message:
                        return
                    row, changes = client.begun(step_begun(message))
                    if changes:
                        os.write(doorbell, _ONE)
                    if row is not None:
                        deciding.stream.sendall(pack_row(row, time.monotonic(), deciding.rows))
                    continue
                packet = received(deciding.stream, CLOCK_BYTES)
                if not packet:
                    return
                if client.decided(*clock_of(packet, deciding.clocks)):
                    os.write(doorbell, _ONE)
