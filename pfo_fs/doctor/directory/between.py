"""Checks between several hosts: all of them run the same steps, and all print the same results."""

from __future__ import annotations

import errno
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pfo_fs.doctor.directory.board import Board
from pfo_fs.doctor.directory.names import (
    LOCK_CALLS,
    content,
    judge_reads,
    open_lock_file,
    read_until,
    replace,
    shown_reads,
    try_to_lock,
    write_new,
)
from pfo_fs.doctor.lines import Check, line
from pfo_fs.store import NO_HARD_LINKS

_NAMES = 20
_WRITES_S = 1.5
_ROUNDS = 4
_ENOUGH_S = 3.0
"""Rounds that take longer than this are not repeated."""
_DELAY_WITHIN_S = 70.0
"""NFS caches names for 60 s."""
_SLOW_S, _BROKEN_S = 2.0, 65.0
_REPLACED, _NEW = _WAYS = ("replaced file", "new name")
_ANSWER_WITHIN_S = 4 * _DELAY_WITHIN_S
"""An answer may wait until all other hosts have seen a change."""
_CLOCK_OFF_S = 5.0


def checks_between_hosts(board: Board) -> Iterator[Check]:
    """Makes all checks, one after the other.

    Raises:
        PeerLost: Another host has stopped.
    """
    try:
        for check in (check_claims, check_replace, check_host_locks, check_delay):
            yield from check(board)
    finally:
        if board.is_first:
            board.remove_files()


# ---- one name, many hosts


def check_claims(board: Board) -> Iterator[Check]:
    """Lets all hosts create the same names."""
    won: dict[str, list[int]] = {"O_EXCL": [], "link": []}
    links = True
    board.exchange("ready")  # so that all begin at once
    try:
        mine = board.path(f"mine-{board.me}")
        write_new(mine, b"")
        for number in range(_NAMES):
            board.pause()
            with suppress(FileExistsError):
                write_new(board.path(f"create-{number}"), b"")
                won["O_EXCL"].append(number)
            try:
                os.link(mine, board.path(f"link-{number}"))
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
    yield judge_claims(list(board.exchange(said).values()))


def judge_claims(said: list[dict[str, Any]]) -> Check:
    """Returns the line; `said`: for each host, the names that it has won in each way, or an error."""
    failed = next((str(one["error"]) for one in said if "error" in one), "")
    if failed:
        return line("claims between hosts", "error", failed)
    texts, exact = [], True
    for way in ("O_EXCL", "link"):
        if all(way in one for one in said):
            winners = Counter(number for one in said for number in one[way])
            exact &= all(winners[number] == 1 for number in range(_NAMES))
            texts.append(f"{way}: {_NAMES} names, won by {'/'.join(str(len(one[way])) for one in said)}")
    return line("claims between hosts", "ok" if exact else "broken", "; ".join(texts))


# ---- one writer, many readers


def check_replace(board: Board) -> Iterator[Check]:
    """Lets the first host replace a file while the others read it."""
    path = board.path("replaced")
    if board.is_first:
        write_new(path, content(0))
    board.exchange("there")
    if not board.is_first:
        _is_there_in_time(board, path)
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
    yield line("replace between hosts", judge_reads(counts), shown_reads(counts))


def _is_there_in_time(board: Board, path: Path) -> bool:
    deadline = time.monotonic() + _DELAY_WITHIN_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            return False
        board.pause()
    return True


# ---- locks


def check_host_locks(board: Board) -> Iterator[Check]:
    """Lets the first host hold locks, which the others request before and after they are released."""
    fds, mine = _lock_all(board) if board.is_first else ({}, {})
    try:
        first = board.exchange(mine)[board.members[0]]
        if not board.is_first:
            fds, mine = _lock_all(board)
        held = board.exchange({} if board.is_first else mine)
    finally:
        for fd in fds.values():
            os.close(fd)
    board.exchange("released")
    later = board.exchange({} if board.is_first else {name: _lock_soon(board, name) for name in LOCK_CALLS})
    yield judge_host_locks({name: [str(first[name]), _of_all(held, name), _of_all(later, name)] for name in LOCK_CALLS})


def _lock_all(board: Board) -> tuple[dict[str, int], dict[str, str]]:
    """Requests a lock of each kind; returns the open files and the answers."""
    fds: dict[str, int] = {}
    answers: dict[str, str] = {}
    for name, call in LOCK_CALLS.items():
        try:
            fds[name] = open_lock_file(board.path(f"lock-{name}"))
        except OSError as error:
            answers[name] = errno.errorcode.get(error.errno or 0, "error")
        else:
            answers[name] = try_to_lock(call, fds[name])
    return fds, answers


def _lock_soon(board: Board, name: str) -> str:
    """Requests a lock until it is granted, for some seconds, and releases it at once."""
    deadline = time.monotonic() + 5.0
    while True:
        fds, answers = _lock_all(board)
        for fd in fds.values():
            os.close(fd)
        if answers[name] == "granted" or time.monotonic() > deadline:
            return answers[name]
        board.pause()


def _of_all(answers: dict[str, dict[str, str]], name: str) -> str:
    """Returns the answers of all hosts that differ, as one text."""
    return "/".join(sorted({str(answer[name]) for answer in answers.values() if answer}))


def judge_host_locks(results: dict[str, list[str]]) -> Check:
    """Returns the line; `results`: for each kind of lock, the three answers."""
    text = "; ".join(f"{name}: {first}, others {held}, then {later}" for name, (first, held, later) in results.items())
    if all(result == ["granted", "held", "granted"] for result in results.values()):
        return line("locks between hosts", "ok", text)
    local = any(first == "granted" and "granted" in held for first, held, _ in results.values())
    return line("locks between hosts", "local" if local else "none", text)


# ---- delay, and the clocks of the hosts


def check_delay(board: Board) -> Iterator[Check]:
    """Measures how long changes take to other hosts: the first host makes one, the others answer when they see it."""
    first = board.members[0]
    delays: dict[str, dict[str, float]] = {}
    clocks: dict[str, tuple[float, float]] = {}  # of each host: half a round trip; how far its clock is ahead, in s
    began_s = time.monotonic()
    for number in range(_ROUNDS):
        passed_s = board.exchange(time.monotonic() - began_s)[first]
        if number and passed_s > _ENOUGH_S:
            break
        for way in _WAYS:
            sent_s, seen_s = _see_change(board, way, number)
            answers = board.exchange(seen_s, _ANSWER_WITHIN_S, of=board.members if board.is_first else ())
            for host in board.members[1:] if board.is_first else ():
                label, trip_s = board.label(host), board.heard_s[host] - sent_s
                known = delays.setdefault(label, dict.fromkeys(_WAYS, 0.0))
                if way == _REPLACED:
                    there_s = trip_s / 2
                    clocks[label] = min(clocks.get(label, (math.inf, 0.0)), (there_s, answers[host] - sent_s - there_s))
                else:
                    there_s = _DELAY_WITHIN_S if answers[host] is None else trip_s - clocks[label][0]
                known[way] = max(known[way], there_s)
    delays, clocks = board.exchange([delays, clocks])[first]
    yield judge_delay(delays)
    unsure_s = max(0.1, *(float(error_s) for error_s, _ in clocks.values()))
    yield judge_host_clocks({host: float(ahead_s) for host, (_, ahead_s) in clocks.items()}, unsure_s)


def _see_change(board: Board, way: str, number: int) -> tuple[float, float | None]:
    """Makes a change on the first host, and waits for it on the others; returns when it did so, and when it was there.

    None: it was not there in time.
    """
    path = board.path(f"new-{number}")
    if way == _REPLACED:
        sent_s = time.time()
        board.exchange("", _ANSWER_WITHIN_S, of=() if board.is_first else board.members[:1])
        return sent_s, time.time()
    os.path.exists(path)  # a client may remember for long that a name was not there
    board.exchange("", _ANSWER_WITHIN_S, of=board.members if board.is_first else ())
    sent_s = time.time()
    if board.is_first:
        write_new(path, b"")
    return sent_s, time.time() if board.is_first or _is_there_in_time(board, path) else None


def judge_delay(delays: dict[str, dict[str, float]]) -> Check:
    """Returns the line; `delays`: for each host and each kind of change, the longest delay in s."""
    worst_s = max((delay_s for ways in delays.values() for delay_s in ways.values()), default=0.0)
    outcome = "ok" if worst_s <= _SLOW_S else "slow" if worst_s < _BROKEN_S else "broken"
    text = "; ".join(
        f"{host}: " + ", ".join(f"{way} {delay_s:.2f} s" for way, delay_s in ways.items())
        for host, ways in delays.items()
    )
    return line("change seen by other hosts", outcome, f"{text} (the longest of several)")


def judge_host_clocks(ahead_s: Mapping[str, float], unsure_s: float) -> Check:
    """Returns the line; `ahead_s`: how far each host's clock is ahead of the first host's, known within `unsure_s`."""
    worst_s = max(ahead_s.values(), key=abs, default=0.0)
    text = ", ".join(f"{host} {_clock_text(by_s, unsure_s)}" for host, by_s in ahead_s.items())
    return line("clocks of the hosts", "off" if abs(worst_s) > _CLOCK_OFF_S + unsure_s else "ok", text)


def _clock_text(ahead_s: float, unsure_s: float) -> str:
    if abs(ahead_s) <= unsure_s:
        return f"the same within {unsure_s:.1f} s"
    return f"{abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'} (within {unsure_s:.1f} s)"
