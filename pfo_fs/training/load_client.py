"""The process beside each training process that exchanges its loads: to rank 0's decisions, and clocks back.

Training writes a packet when a step begins (`load_messages.py`), and never waits. This process sends the step's row to
the process that decides (`load_decider.py`), and writes the clock that comes back into the page that training shares
with its clock process: as the clock of a step to come, and, where the device follows training, as that of a step that
has begun. It ends with training, or when clocks are decided no more; training sees that it is gone.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pfo_fs.device import shared_page
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.loads import step_rows
from pfo_fs.training.load_messages import (
    CLOCK,
    HELLO,
    MOST_BYTES,
    TOKEN_BYTES,
    StepBegun,
    pack_row,
    proof,
    step_begun,
)

_CONNECTS_WITHIN_S = 60.0
_TRY_S = 5.0
_LOOKS_EVERY_S = 0.05
_KEPT = 64
_SOON_S = 0.05
"""A clock that comes within 50 ms after the begin of a step counts as that of the whole step."""
_ONE = (1).to_bytes(8, "little")


class LoadClient:
    """One rank's part, without sockets.

    Args:
        words: The page shared with the clock process.
        top_mhz: The highest clock.
    """

    def __init__(self, words: memoryview, top_mhz: int) -> None:
        self._words, self._top_mhz = words, float(top_mhz)
        self._decided: OrderedDict[int, int] = OrderedDict()
        self._begun: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._ran: OrderedDict[int, float] = OrderedDict()  # the clock of each step in MHz, negative if it came late
        self._ended: list[step_rows.EndedStep] = []

    def begun(self, told: StepBegun) -> tuple[list[float] | None, bool]:
        """Takes what training tells; returns the row to send, if there is one, and whether a clock changes."""
        changes = False
        self._ran[told.runs] = step_rows.UNKNOWN if told.mhz < 0 else float(told.mhz) or self._top_mhz
        if told.turn >= 0 and not told.mhz:
            self._begun[told.runs] = told.turn, told.at_s
            changes = self._change(told.runs, time.monotonic())
        self._ended += [
            step_rows.EndedStep(step, work_s, self._ran.get(step, step_rows.UNKNOWN)) for step, work_s in told.ended
        ]
        for kept in (self._ran, self._begun, self._decided):
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        if told.posts < 0:
            return None, changes
        ended, self._ended = self._ended[: step_rows.MOST_ENDED], self._ended[step_rows.MOST_ENDED :]
        reading = shared_page.newest_reading(self._words)
        energy = step_rows.Reading(told.runs)
        if reading is not None:
            energy = step_rows.Reading(told.runs, reading.energy_uj / 1e6, reading.time_ns / 1e9)
        return step_rows.make_row(told.posts, told.load, energy, ended), changes

    def decided(self, step: int, mhz: int) -> bool:
        """Takes the clock of a step; returns whether that of a step that has begun changes."""
        self._decided[step] = mhz
        shared_page.write_decided(self._words, step, mhz)
        return self._change(step, time.monotonic())

    def _change(self, step: int, now_s: float) -> bool:
        mhz, (turn, began_s) = self._decided.get(step, 0), self._begun.get(step, (-1, 0.0))
        if not mhz or turn < 0:
            return False
        self._words[shared_page.TURNS + turn % shared_page.RECENT_TURNS] = mhz
        self._ran[step] = float(mhz) if now_s - began_s < _SOON_S else -float(mhz)
        return True


def connect(
    addresses: Sequence[tuple[str, int]], token: bytes, rank: int, within_s: float = _CONNECTS_WITHIN_S
) -> socket.socket:
    """Returns a connection to the process that decides; both sides have shown that they know the job's secret.

    Raises:
        OSError: It answers at none of the addresses.
    """
    until_s = time.monotonic() + within_s
    problem: OSError = OSError("there is no address")
    while time.monotonic() < until_s:
        for host, port in addresses:
            try:
                made = socket.create_connection((host, port), timeout=_TRY_S)
            except OSError as error:
                problem = error
                continue
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                challenge, own = received(made, TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
                made.sendall(HELLO.pack(proof(token, challenge, rank), own, rank))
                if hmac.compare_digest(received(made, TOKEN_BYTES), proof(token, own, -1)):
                    made.settimeout(None)
                    return made
                problem = OSError(f"what answers at {host}:{port} is not of this job")
            except OSError as error:
                problem = error
            made.close()
        time.sleep(0.2)
    raise problem


def connect_beside(
    training: socket.socket, addresses: Sequence[tuple[str, int]], token: bytes, rank: int
) -> socket.socket | None:
    """Returns what `connect` does; None at once if training ends meanwhile, or if nothing answers.

    A thread connects, since looking up the name of a host can take half a minute, and nothing interrupts that.
    """
    found: list[socket.socket] = []

    def search() -> None:
        with suppress(OSError):
            found.append(connect(addresses, token, rank))

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    end = select.poll()
    end.register(training, select.POLLRDHUP)  # also while packets of training wait to be read
    while thread.is_alive() and not end.poll(0):
        thread.join(_LOOKS_EVERY_S)
    return found[0] if found else None


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
    client = LoadClient(words, given["top_mhz"])
    addresses = [(str(host), int(port)) for host, port in given["addresses"]]
    deciding = connect_beside(training, addresses, bytes.fromhex(given["token"]), given["rank"])
    with suppress(OSError):
        if deciding is not None:
            _serve(client, training, deciding, given["doorbell_fd"])
    return 0


def _serve(client: LoadClient, training: socket.socket, deciding: socket.socket, doorbell: int) -> None:
    """Serves until training or the process that decides has ended."""
    with selectors.DefaultSelector() as ready:
        ready.register(training, selectors.EVENT_READ)
        ready.register(deciding, selectors.EVENT_READ)
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
                        deciding.sendall(pack_row(row))
                    continue
                packet = received(deciding, CLOCK.size)
                if not packet:
                    return
                if client.decided(*CLOCK.unpack(packet)):
                    os.write(doorbell, _ONE)
