"""What files, names and locks do on one host: writes, exclusive creation, hard links, replacement by rename, locks.

Each check makes files of its own and removes them. Their names are those of unfinished files, which listings leave out
and the daemon removes after an hour if this process is killed.
"""

import errno
import fcntl
import os
import secrets
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfo_fs.doctor.lines import Check, line
from pfo_fs.ipc.system_calls import FLOCK, OFD_SETLK
from pfo_fs.store import NO_HARD_LINKS, TEMP_PREFIX

_WRITTEN_BYTES = 64 << 10
_REPLACEMENTS = 60
_REPLACE_FOR_S = 2.0
READS_TRIED = 4
"""The store tries a call on a file this often."""


@contextmanager
def own_name(root: Path) -> Iterator[Path]:
    """Gives a name that no other process uses; removes what was made there."""
    path = root / f"{TEMP_PREFIX}doctor-{secrets.token_hex(6)}.tmp"
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink()


def write_new(path: Path, data: bytes) -> os.stat_result:
    """Makes a file that must not exist, with its data on the server; returns its owner and time."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)  # write-behind clients report "no space" here
    return os.stat(path, follow_symlinks=False)


def check_write(root: Path) -> list[Check]:
    """Writes a file, reads it again and changes its mode; also says to which user it belongs."""
    data = secrets.token_bytes(_WRITTEN_BYTES)
    with own_name(root) as path:
        try:
            found = write_new(path, data)
            same = path.read_bytes() == data
            chmod = judge_chmod(path)
        except OSError as error:
            return [judge_error(error)]
    if not same:
        return [line("write", "changed", "other bytes were read")]
    return [
        line("write", "ok", f"{_WRITTEN_BYTES >> 10} KiB written, synchronised and read"),
        judge_owner(found.st_uid, os.geteuid(), shared=bool(os.stat(root).st_mode & stat.S_IWGRP)),
        chmod,
    ]


def judge_chmod(path: Path) -> Check:
    try:
        path.chmod(0o640)
    except OSError as error:
        return line("chmod", "refused", error.strerror or str(error))
    mode = stat.S_IMODE(path.stat().st_mode)
    return line("chmod", "ok" if mode == 0o640 else "refused", f"mode 640 was set, and is {mode:o}")


def judge_error(error: OSError) -> Check:
    outcome = {
        errno.ENOSPC: "full",
        errno.EDQUOT: "quota",
        errno.EROFS: "read-only",
        errno.EACCES: "denied",
        errno.EPERM: "denied",
    }.get(error.errno or 0, "error")
    return line("write", outcome, error.strerror or str(error))


def judge_owner(owner: int, user: int, *, shared: bool) -> Check:
    """Returns the line about the owner of new files; `shared`: the directory is for a group."""
    if owner == user:
        return line("owner of new files", "ok", f"user {owner}")
    return line(
        "owner of new files", "squashed-group" if shared else "squashed", f"user {owner}, although user {user} wrote it"
    )


def check_create(root: Path) -> Check:
    """Tries to create a name that exists already, as a file and as a folder."""
    with own_name(root) as path:
        write_new(path, b"")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return line("exclusive create", "broken", "O_EXCL opened a file that existed")
        except FileExistsError:
            pass
        try:
            path.mkdir()
            return line("exclusive create", "broken", "mkdir took a name that existed")
        except FileExistsError:
            return line("exclusive create", "ok", "refused, as it should be")


def check_links(root: Path) -> Check:
    with own_name(root) as path, own_name(root) as second:
        write_new(path, b"1")
        try:
            os.link(path, second)
        except OSError as error:
            if error.errno in NO_HARD_LINKS:
                return line("hard links", "none", error.strerror or "refused")
            raise
        try:
            os.link(path, second)
            return line("hard links", "broken", "a link took a name that existed")
        except FileExistsError:
            return line("hard links", "ok", f"{os.stat(path).st_nlink} names for one file")


def check_rename(root: Path) -> Check:
    """Replaces a file again and again while a thread reads it."""
    stop, counts = threading.Event(), Counter[str]()
    with own_name(root) as path:
        write_new(path, _content(0))
        reader = threading.Thread(target=_read_until, args=(path, stop, counts))
        reader.start()
        try:
            end_s = time.monotonic() + _REPLACE_FOR_S
            for number in range(1, _REPLACEMENTS + 1):
                with own_name(root) as temporary:
                    write_new(temporary, _content(number))
                    os.replace(temporary, path)
                if time.monotonic() > end_s:  # a slow file system
                    break
        finally:
            stop.set()
            reader.join()
    return judge_reads(counts)


def _content(number: int) -> bytes:
    """Returns a content that proves itself: its length and its bytes follow from its first line."""
    size = 200 + number % 7 * 3000
    return f"{size:05}\n".encode() + bytes([65 + number % 26]) * size


def _read_until(path: Path, stop: threading.Event, counts: Counter[str]) -> None:
    """Counts reads; repeated reads, by the reason; and reads that failed every time."""
    while not stop.is_set():
        problem = ""
        for _ in range(READS_TRIED):
            problem = _read_problem(path)
            if not problem:
                break
            counts[problem] += 1
        counts["failed" if problem else "reads"] += 1


def _read_problem(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "error")
    head, _, rest = data.partition(b"\n")
    return "" if head.isdigit() and len(rest) == int(head) and len(set(rest)) == 1 else "incomplete"


def judge_reads(counts: Counter[str]) -> Check:
    more = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if what != "reads" and count)
    text = f"{counts['reads']} reads" + (f", {more}" if more else "")
    if counts["failed"] or not counts["reads"]:
        return line("replace by rename", "broken", text)
    return line("replace by rename", "retried" if more else "ok", text)


# ---- locks

_WHOLE_FILE = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_LOCK_CALLS: dict[str, Callable[[int], object]] = {
    "flock": lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
    "fcntl": lambda fd: fcntl.fcntl(fd, OFD_SETLK, _WHOLE_FILE),
}
"""Ways to lock an open file without waiting; a second open file of the same process conflicts with it."""


def _try_to_lock(call: Callable[[int], object], fd: int) -> str:
    """Requests a lock; returns "granted", "held", or the name of another error."""
    try:
        call(fd)
    except OSError as error:
        held = error.errno in (errno.EAGAIN, errno.EACCES)
        return "held" if held else errno.errorcode.get(error.errno or 0, "error")
    return "granted"


def check_locks(root: Path) -> Check:
    """Locks a file, and requests the lock once more through another open file, for each kind of lock."""
    results = {}
    for name, call in _LOCK_CALLS.items():
        with own_name(root) as path:
            write_new(path, b"")
            with path.open("r+b") as first, path.open("r+b") as second:
                results[name] = (_try_to_lock(call, first.fileno()), _try_to_lock(call, second.fileno()))
    return judge_locks(results)


def judge_locks(results: dict[str, tuple[str, str]]) -> Check:
    """Returns the line; `results`: for each kind of lock, the answers to the first and to the second request."""
    text = "; ".join(f"{name}: {first}, then {second}" for name, (first, second) in results.items())
    if all(result == ("granted", "held") for result in results.values()):
        return line("locks on this host", "ok", text)
    void = any(result == ("granted", "granted") for result in results.values())
    return line("locks on this host", "void" if void else "none", text)
