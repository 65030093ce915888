"""Checks a directory in a process of its own: only it makes calls on the file system, so only it can hang there.

That process writes one line of JSON for each check that it begins and for each result. This module has both sides.
"""

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from pfo_fs.coordination import read_site_policy
from pfo_fs.doctor.directory.hosts import Hosts, HostsMissing, judge
from pfo_fs.doctor.directory.names import check_create, check_links, check_locks, check_rename, check_write
from pfo_fs.doctor.directory.place import check_rights, judge_mount
from pfo_fs.doctor.lines import Check, line
from pfo_fs.errors import StoreError
from pfo_fs.ipc.spawn import Child, start_process
from pfo_fs.ipc.started import on_sigterm
from pfo_fs.store import Files, SharedDirectory, mount_of

_START_S = 30.0
"""The process may need this time, in s, to begin: Python itself may lie on a slow file system."""
_END_S = 3.0

Tell = Callable[[str, object], None]

Checks = tuple[tuple[str, Callable[[Path], Check | list[Check]]], ...]

_READING: Checks = (
    ("reading the table of mounts", lambda root: judge_mount(mount_of(os.path.realpath(root)))),
    ("reading owners and modes", check_rights),
)
_WRITING: Checks = (
    ("creating a name twice", check_create),
    ("making a hard link", check_links),
    ("replacing a file", check_rename),
    ("locking a file", check_locks),
)


def check_directory(root: Path, peers: int, wait_s: float, tell: Tell) -> Iterator[Check]:
    """Makes all checks of a directory; `tell` is called with ("doing", text) before each.

    `peers`: number of hosts that run this at the same time, this one included; they wait `wait_s` for each other.
    """
    trouble = False
    for check in _checks(root, peers, wait_s, tell):
        trouble = trouble or check.name == "answers"
        yield check
    if not trouble:
        yield line("answers", "ok", "all file operations ended")


def _checks(root: Path, peers: int, wait_s: float, tell: Tell) -> Iterator[Check]:
    tell("doing", "looking for the directory")
    try:
        os.listdir(root)
    except FileNotFoundError:
        yield line("answers", "missing", f"{root} is not there")
        return
    except (NotADirectoryError, PermissionError) as error:
        yield line("answers", "refused", f"{root}: {error.strerror}")
        return
    yield from _run(_READING, root, tell)
    tell("doing", "writing a file")
    written = check_write(root)
    yield from written
    if written[0].ok:
        yield from _run(_WRITING, root, tell)
        yield from _with_peers(root, peers, wait_s, tell)
    tell("doing", "reading site.yaml")
    try:
        site = read_site_policy(SharedDirectory(Files(root)))
        rules = site.problem or f"coordination: {site.coordination}"
        yield line("rules of the site", "mistake" if site.problem else "ok", rules)
    except StoreError as error:
        yield line("answers", "refused", str(error.args[-1]))


def _run(checks: Checks, root: Path, tell: Tell) -> Iterator[Check]:
    for doing, check in checks:
        tell("doing", doing)
        try:
            found = check(root)
        except OSError as error:
            yield line("answers", "broken", f"{doing}: {error.strerror or error}")
        else:
            yield from found if isinstance(found, list) else [found]


def _with_peers(root: Path, peers: int, wait_s: float, tell: Tell) -> Iterator[Check]:
    if peers < 2:
        yield line("other hosts", "not-asked", "not tested")
        return
    tell("doing", f"waiting for {peers - 1} other host(s) to run `pfo-fs doctor {root} --peer {peers}`")
    try:
        files = Files(root)
    except StoreError as error:
        yield line("other hosts", "missing", f"not looked for: {error.args[-1]}")
        return
    there = Hosts(files, beat=lambda: tell("beat", ""))
    try:
        there.find(peers, wait_s)
        tell("doing", "testing between hosts")
        yield from judge(there.reports())
    except HostsMissing as error:
        yield line("other hosts", error.outcome, str(error))
    except (OSError, StoreError) as error:
        yield line("answers", "broken", f"testing between hosts: {error}")
    finally:
        there.leave()


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)  # so that this process removes its files


def main(given: dict[str, Any]) -> int:
    """Runs the checks; writes what is found to the file descriptor that was given."""
    on_sigterm(_end)
    with open(given["to_fd"], "w", encoding="utf-8") as to:

        def tell(kind: str, value: object) -> None:
            to.write(json.dumps({kind: value}) + "\n")
            to.flush()

        try:
            for check in check_directory(Path(given["directory"]), given["peers"], given["wait_s"], tell):
                tell("check", check._asdict())
        except OSError as error:
            if error.errno == errno.EPIPE:
                return 1
            tell("check", line("answers", "broken", error.strerror or str(error))._asdict())
        tell("done", True)
    return 0


# ---- the process that asks for the checks


def check_directory_in_time(
    directory: Path, *, peers: int, wait_s: float, answer_within_s: float, show: Callable[[str], object]
) -> list[Check]:
    """Checks a directory as `check_directory` does, but returns even if its mount hangs.

    A file operation that takes longer than `answer_within_s` counts as hung. `show` is told what is being done.
    """
    path = os.path.abspath(directory)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    arguments = {"directory": path, "peers": peers, "wait_s": wait_s}
    try:
        process = start_process(__name__, arguments, fds={"to_fd": writing})
    finally:
        os.close(writing)
    checks: list[Check] = []
    doing, lines = "starting", SimpleQueue[dict[str, Any]]()
    Thread(target=_read, args=(reading, lines), daemon=True).start()
    try:
        while True:
            within_s = _START_S if doing == "starting" else answer_within_s
            try:
                told = lines.get(timeout=within_s)
            except Empty:
                kind = mount_of(path).kind
                text = f"{doing}: no answer within {within_s:g} s (file system: {kind})"
                return [*checks, line("answers", "hung", text)]
            if "doing" in told:
                doing = told["doing"]
                show(doing)
            elif "check" in told:
                checks.append(Check(**told["check"]))
            elif "done" in told:
                return checks
            elif not told:
                ended = process.how_it_ended(within_s=1.0)
                return [*checks, line("answers", "broken", f"{doing}: the checking process has ended{ended}")]
    finally:
        _end_process(process)


def _read(fd: int, told: SimpleQueue[dict[str, Any]]) -> None:
    """Reads lines of JSON from a pipe; {} is its end."""
    with open(fd, encoding="utf-8") as lines:
        for text in lines:
            if text.endswith("\n"):  # else the process was ended while it wrote
                told.put(json.loads(text))
    told.put({})


def _end_process(process: Child) -> None:
    """Ends the process; waits only a few seconds, since no signal ends a process that hangs in the file system."""
    for number, within_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, 0.2)):
        process.send_signal(number)
        with suppress(TimeoutError):
            process.wait(within_s)
            return
