"""Locks on one host, by both kinds of calls."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path

from pfo_fs.doctor.catalogue_directory import LOCKS
from pfo_fs.doctor.directory.names import own_name, write_new
from pfo_fs.doctor.lines import Check
from pfo_fs.ipc.optional_calls import OFD_SETLK

_REFUSED = (errno.EAGAIN, errno.EACCES)
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _flock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open_file_lock(fd: int) -> None:
    fcntl.fcntl(fd, OFD_SETLK, _WHOLE_FILE)


LOCK_CALLS: dict[str, Callable[[int], None]] = {"flock": _flock, "fcntl": _open_file_lock}
"""Ways to lock an open file without waiting; a second open file of the same process conflicts with it."""


def try_to_lock(call: Callable[[int], None], fd: int) -> str:
    """Requests a lock; returns "granted", "held", or the name of another error."""
    try:
        call(fd)
    except OSError as error:
        return "held" if error.errno in _REFUSED else errno.errorcode.get(error.errno or 0, "error")
    return "granted"


def open_lock_file(path: Path) -> int:
    """Opens the file that is locked; the caller closes it, which releases its locks."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)


def check_locks(root: Path) -> Check:
    """Locks a file, and requests the lock once more through another open file, for each kind of lock."""
    results = {}
    for name, call in LOCK_CALLS.items():
        with own_name(root) as path:
            write_new(path, b"")
            first, second = open_lock_file(path), open_lock_file(path)
            try:
                results[name] = (try_to_lock(call, first), try_to_lock(call, second))
            finally:
                os.close(first)
                os.close(second)
    return judge_locks(results)


def judge_locks(results: dict[str, tuple[str, str]]) -> Check:
    """Returns the line; `results`: for each kind of lock, the answers to the first and to the second request."""
    text = "; ".join(f"{name}: {first}, then {second}" for name, (first, second) in results.items())
    if all(result == ("granted", "held") for result in results.values()):
        return LOCKS.check("ok", text)
    void = any(result == ("granted", "granted") for result in results.values())
    return LOCKS.check("void" if void else "none", text)
