"""Checks between several hosts: all of them run the same steps, and all print the same results."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pfo_fs.doctor.catalogue_directory import PEER_CREATE, PEER_DELAY, PEER_EVENTS, PEER_LOCKS, PEER_RENAME
from pfo_fs.doctor.directory.board import Board
from pfo_fs.doctor.directory.clocks import judge_host_clocks
from pfo_fs.doctor.directory.locks import LOCK_CALLS, open_lock_file, try_to_lock
from pfo_fs.doctor.directory.names import content, judge_reads, read_until, replace, shown_reads, write_new
from pfo_fs.doctor.lines import Check
from pfo_fs.store import NO_HARD_LINKS, Files, Watcher, layout

_NAMES = 20
_WRITES_S = 1.5
_ROUNDS = 4
_ENOUGH_S = 3.0
"""Rounds that take longer than this are not repeated."""
_DELAY_WITHIN_S = 70.0
"""NFS caches names for 60 s."""
_SLOW_S, _BROKEN_S = 2.0, 65.0
_REPLACED, _NEW = _WAYS = ("replaced file", "new name")
_EVENT_WITHIN_S = 2.0


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
        for check in (check_claims, check_replace, check_host_locks, check_delay, check_host_events):
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


# ---- locks


def check_host_locks(peers: Peers) -> Iterator[Check]:
    """Lets the first host hold locks, which the others request before and after they are released."""
    board = peers.board
    fds, mine = _lock_all(peers) if board.is_first else ({}, {})
    try:
        first = board.exchange(mine)[board.members[0]]
        if not board.is_first:
            fds, mine = _lock_all(peers)
        held = board.exchange({} if board.is_first else mine)
    finally:
        for fd in fds.values():
            os.close(fd)
    board.exchange("released")
    later = board.exchange({} if board.is_first else {name: _lock_soon(peers, name) for name in LOCK_CALLS})
    yield judge_host_locks({name: [str(first[name]), _of_all(held, name), _of_all(later, name)] for name in LOCK_CALLS})


def _lock_all(peers: Peers) -> tuple[dict[str, int], dict[str, str]]:
    """Requests a lock of each kind; returns the open files and the answers."""
    fds: dict[str, int] = {}
    answers: dict[str, str] = {}
    for name, call in LOCK_CALLS.items():
        try:
            fds[name] = open_lock_file(peers.path(f"lock-{name}"))
        except OSError as error:
            answers[name] = errno.errorcode.get(error.errno or 0, "error")
        else:
            answers[name] = try_to_lock(call, fds[name])
    return fds, answers


def _lock_soon(peers: Peers, name: str) -> str:
    """Requests a lock until it is granted, for some seconds, and releases it at once."""
    deadline = time.monotonic() + 5.0
    while True:
        fds, answers = _lock_all(peers)
        for fd in fds.values():
            os.close(fd)
        if answers[name] == "granted" or time.monotonic() > deadline:
            return answers[name]
        peers.board.pause()


def _of_all(answers: dict[str, dict[str, str]], name: str) -> str:
    """Returns the answers of all hosts that differ, as one text."""
    return "/".join(sorted({str(answer[name]) for answer in answers.values() if answer}))


def judge_host_locks(results: dict[str, list[str]]) -> Check:
    """Returns the line; `results`: for each kind of lock, the three answers."""
    text = "; ".join(f"{name}: {first}, others {held}, then {later}" for name, (first, held, later) in results.items())
    if all(result == ["granted", "held", "granted"] for result in results.values()):
        return PEER_LOCKS.check("ok", text)
    local = any(first == "granted" and "granted" in held for first, held, _ in results.values())
    return PEER_LOCKS.check("local" if local else "none", text)


# ---- delay, and the clocks of the hosts


class RoundTrip(NamedTuple):
    """One change that went to another host, and its answer that came back; times in s."""

    sent_s: float
    answered_s: float
    """By the wall clock of the other host."""
    back_s: float


def check_delay(peers: Peers) -> Iterator[Check]:
    """Measures round trips between the first host and each other host."""
    board = peers.board
    delays: dict[str, dict[str, float]] = {}
    clocks: dict[str, float] = {}
    unsure_s = 0.0
    for other in board.members[1:]:
        if board.is_first:
            trips = {way: _ask(peers, other, way) for way in _WAYS}
            host = board.label(other)
            for way, found in trips.items():
                worst_s = max(((trip.back_s - trip.sent_s) / 2 for trip in found), default=_DELAY_WITHIN_S)
                delays.setdefault(host, {})[way] = worst_s
            if trips[_REPLACED]:
                best = min(trips[_REPLACED], key=lambda trip: trip.back_s - trip.sent_s)
                unsure_s = max(unsure_s, (best.back_s - best.sent_s) / 2)
                clocks[host] = best.answered_s - (best.sent_s + best.back_s) / 2
        elif other == board.me:
            for way in _WAYS:
                _answer(peers, way)
        board.exchange("next", within_s=4 * _DELAY_WITHIN_S)
    measured = board.exchange([delays, clocks, unsure_s])[board.members[0]]
    yield judge_delay(measured[0])
    yield judge_host_clocks(measured[1], max(float(measured[2]), 0.1))


def _name(way: str, kind: str, other: str, number: int) -> str:
    return f"{kind}-{other}" if way == _REPLACED else f"{kind}-{other}-{number}"


def _send(peers: Peers, way: str, kind: str, other: str, number: int) -> float:
    now_s = time.time()
    data = json.dumps([number, now_s]).encode()
    peers.files.publish(peers.board.path(_name(way, kind, other, number)), data)
    return now_s


def _receive(peers: Peers, way: str, kind: str, other: str, number: int, deadline: float) -> float | None:
    """Waits until a change is seen; returns the time in it. None: not seen in time."""
    path = peers.board.path(_name(way, kind, other, number))
    while time.monotonic() < deadline:
        if way == _REPLACED or path.rpartition("/")[2] in peers.files.names(layout.DOCTOR):
            data = peers.files.read(path, 1000)
            with suppress(ValueError, TypeError):
                found, sent_s = json.loads(data or b"")
                if found == number:
                    return float(sent_s)
        peers.board.pause()
    return None


def _ask(peers: Peers, other: str, way: str) -> list[RoundTrip]:
    """Sends changes to another host and waits for its answers."""
    trips: list[RoundTrip] = []
    began = time.monotonic()
    for number in range(1, _ROUNDS + 1):
        last = number == _ROUNDS or time.monotonic() - began > _ENOUGH_S
        sent_s = _send(peers, way, "ask", other, -1 if last else number)
        answered_s = _receive(peers, way, "say", other, -1 if last else number, time.monotonic() + _DELAY_WITHIN_S)
        if answered_s is None:
            return []
        trips.append(RoundTrip(sent_s, answered_s, time.time()))
        if last:
            break
    return trips


def _answer(peers: Peers, way: str) -> None:
    """Answers the changes of the first host, up to the one with number -1."""
    me, number = peers.board.me, 1
    deadline = time.monotonic() + 2 * _DELAY_WITHIN_S
    while time.monotonic() < deadline:
        for wanted in (number, -1):
            if _receive(peers, way, "ask", me, wanted, time.monotonic() + 0.01) is not None:
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


# ---- events


def check_host_events(peers: Peers) -> Iterator[Check]:
    """Lets the first host make a file, and looks whether the others get an event."""
    board, name = peers.board, peers.path("event.json").name
    watcher = Watcher(peers.files.root, layout.DOCTOR, "events")
    if not board.is_first:
        watcher.start()
    try:
        board.exchange("watching")
        if board.is_first:
            with suppress(OSError):
                write_new(peers.path("event.json"), b"1")
        said = "" if board.is_first else _sees_event(peers, watcher, name)
    finally:
        watcher.stop()
    seen = [answer for answer in board.exchange(said).values() if answer]
    crossed = bool(seen) and all(answer == "seen" for answer in seen)
    yield PEER_EVENTS.check("cross" if crossed else "none", "/".join(seen))


def _sees_event(peers: Peers, watcher: Watcher, name: str) -> str:
    if not watcher.uses_events:
        return "cannot be had"
    deadline = time.monotonic() + _EVENT_WITHIN_S
    while time.monotonic() < deadline:
        if name in watcher.wait(0.05):
            return "seen"
        peers.board.pause()
    return "not seen"
