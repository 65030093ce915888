"""Checks between several hosts: all of them run the same steps, and all print the same results."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pfo_fs.doctor.catalogue_directory import PEER_CREATE, PEER_DELAY, PEER_RENAME
from pfo_fs.doctor.directory.board import Board
from pfo_fs.doctor.directory.names import content, judge_reads, read_until, replace, shown_reads, write_new
from pfo_fs.doctor.lines import Check
from pfo_fs.store import NO_HARD_LINKS, Files, layout

_NAMES = 20
_WRITES_S = 1.5
_ROUNDS = 4
_ENOUGH_S = 3.0
"""Rounds that take longer than this are not repeated."""
_DELAY_WITHIN_S = 70.0
"""NFS caches names for 60 s."""
_SLOW_S, _BROKEN_S = 2.0, 65.0
_REPLACED, _NEW = _WAYS = ("replaced file", "new name")


class Peers(NamedTuple):
    """What the checks work with.

    Attributes:
        board: The hosts.
        files: The shared directory.
        folder: The path of the folder that they use.
    """

    board: Board
    files: Files
    folder: Path

    def path(self, name: str) -> Path:
        """Returns the path of a file of this group."""
        return self.files.root / self.board.path(name)


def checks_between_hosts(board: Board, files: Files) -> Iterator[Check]:
    """Makes all checks, one after the other.

    Raises:
        PeerLost: Another host has stopped.
    """
    peers = Peers(board, files, files.root / layout.DOCTOR)
    try:
        for check in (check_claims, check_replace, check_delay):
            yield from check(peers)
    finally:
        if board.is_first:
            _clean(peers)


def _clean(peers: Peers) -> None:
    with suppress(OSError):
        for name in os.listdir(peers.folder):
            if name.startswith(f"{peers.board.session}-"):
                peers.board.beat()
                with suppress(OSError):
                    os.unlink(peers.folder / name)


# ---- one name, many hosts


def check_claims(peers: Peers) -> Iterator[Check]:
    """Lets all hosts create the same names."""
    won: dict[str, list[int]] = {"O_EXCL": [], "link": []}
    links = True
    peers.board.exchange("ready")  # so that all begin at once
    try:
        mine = peers.path(f"mine-{peers.board.me}")
        write_new(mine, b"")
        for number in range(_NAMES):
            peers.board.pause()
            with suppress(FileExistsError):
                write_new(peers.path(f"create-{number}"), b"")
                won["O_EXCL"].append(number)
            try:
                os.link(mine, peers.path(f"link-{number}"))
                won["link"].append(number)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in NO_HARD_LINKS:
                    raise
                links = False
        said: Any = won if links else {"O_EXCL": won["O_EXCL"]}
    except OSError as error:
        said = {"error": error.strerror or str(error)}
    yield judge_claims(list(peers.board.exchange(said).values()))


def judge_claims(said: list[dict[str, Any]]) -> Check:
    """Returns the line; `said`: for each host, the names that it has won in each way, or an error."""
    failed = next((str(one["error"]) for one in said if "error" in one), "")
    if failed:
        return PEER_CREATE.check("error", failed)
    texts, exact = [], True
    for way in ("O_EXCL", "link"):
        if all(way in one for one in said):
            winners = Counter(number for one in said for number in one[way])
            exact &= all(winners[number] == 1 for number in range(_NAMES))
            texts.append(f"{way}: {_NAMES} names, won by {'/'.join(str(len(one[way])) for one in said)}")
    return PEER_CREATE.check("ok" if exact else "broken", "; ".join(texts))


# ---- one writer, many readers


def check_replace(peers: Peers) -> Iterator[Check]:
    """Lets the first host replace a file while the others read it."""
    path, board = peers.path("replaced"), peers.board
    if board.is_first:
        write_new(path, content(0))
    board.exchange("there")
    if not board.is_first:
        _wait_until_listed(peers, path)
    end_s = time.monotonic() + _WRITES_S

    def is_over() -> bool:
        board.pause()
        return time.monotonic() > end_s

    number, said = 0, {}
    if board.is_first:
        while not is_over():
            number += 1
            replace(path, content(number))
    else:
        said = dict(read_until(path, is_over))
    found = board.exchange(said)
    counts = Counter[str]()
    for one in board.members[1:]:
        counts.update({str(what): int(count) for what, count in found[one].items()})
    yield PEER_RENAME.check(judge_reads(counts), shown_reads(counts))


def _wait_until_listed(peers: Peers, path: Path) -> None:
    deadline = time.monotonic() + _DELAY_WITHIN_S
    while path.name not in peers.files.names(layout.DOCTOR) and time.monotonic() < deadline:
        peers.board.pause()


# ---- delay


def check_delay(peers: Peers) -> Iterator[Check]:
    """Measures round trips between the first host and each other host."""
    board = peers.board
    delays: dict[str, dict[str, float]] = {}
    for other in board.members[1:]:
        if board.is_first:
            delays[board.label(other)] = {
                way: max((trip_s / 2 for trip_s in _ask(peers, other, way)), default=_DELAY_WITHIN_S) for way in _WAYS
            }
        elif other == board.me:
            for way in _WAYS:
                _answer(peers, way)
        board.exchange("next", within_s=4 * _DELAY_WITHIN_S)
    yield judge_delay(board.exchange(delays)[board.members[0]])


def _name(way: str, kind: str, other: str, number: int) -> str:
    return f"{kind}-{other}" if way == _REPLACED else f"{kind}-{other}-{number}"


def _send(peers: Peers, way: str, kind: str, other: str, number: int) -> None:
    peers.files.publish(peers.board.path(_name(way, kind, other, number)), json.dumps(number).encode())


def _is_received(peers: Peers, way: str, kind: str, other: str, number: int, deadline: float) -> bool:
    """Waits until a change is seen; returns whether it was seen in time."""
    path = peers.board.path(_name(way, kind, other, number))
    while time.monotonic() < deadline:
        listed = way == _REPLACED or path.rpartition("/")[2] in peers.files.names(layout.DOCTOR)
        if listed and peers.files.read(path, 1000) == json.dumps(number).encode():
            return True
        peers.board.pause()
    return False


def _ask(peers: Peers, other: str, way: str) -> list[float]:
    """Sends changes to another host and waits for its answers; returns what each round trip took, in s."""
    trips_s: list[float] = []
    began = time.monotonic()
    for number in range(1, _ROUNDS + 1):
        last = number == _ROUNDS or time.monotonic() - began > _ENOUGH_S
        sent_s = time.monotonic()
        _send(peers, way, "ask", other, -1 if last else number)
        if not _is_received(peers, way, "say", other, -1 if last else number, sent_s + _DELAY_WITHIN_S):
            return []
        trips_s.append(time.monotonic() - sent_s)
        if last:
            break
    return trips_s


def _answer(peers: Peers, way: str) -> None:
    """Answers the changes of the first host, up to the one with number -1."""
    me, number = peers.board.me, 1
    deadline = time.monotonic() + 2 * _DELAY_WITHIN_S
    while time.monotonic() < deadline:
        for wanted in (number, -1):
            if _is_received(peers, way, "ask", me, wanted, time.monotonic() + 0.01):
                _send(peers, way, "say", me, wanted)
                if wanted == -1:
                    return
                number += 1


def judge_delay(delays: dict[str, dict[str, float]]) -> Check:
    """Returns the line; `delays`: for each host and each kind of change, the longest delay in s."""
    worst_s = max((delay_s for ways in delays.values() for delay_s in ways.values()), default=0.0)
    outcome = "ok" if worst_s <= _SLOW_S else "slow" if worst_s < _BROKEN_S else "broken"
    text = "; ".join(
        f"{host}: " + ", ".join(f"{way} {delay_s:.2f} s" for way, delay_s in ways.items())
        for host, ways in delays.items()
    )
    return PEER_DELAY.check(outcome, f"{text} (the longest of several)")
