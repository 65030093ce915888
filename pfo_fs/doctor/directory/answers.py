"""Runs the checks of a directory in a process of their own, and ends them if the file system does not answer.

This process makes no call on the directory's file system: a hung mount cannot hang it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from pfo_fs.doctor.lines import Check, line
from pfo_fs.ipc.spawn import start_process
from pfo_fs.store import mount_of

_START_S = 30.0
"""A process that has not begun after this time in s: Python itself may lie on a slow file system."""
_END_S = 3.0


def check_directory_in_time(
    directory: Path, *, peers: int, wait_s: float, answer_within_s: float, show: Callable[[str], object]
) -> list[Check]:
    """Checks a directory; returns also if its mount hangs.

    Args:
        directory: The directory, by any path.
        peers: The number of hosts that run this at once; 1 for this host alone.
        wait_s: How long to wait for the other hosts, in s.
        answer_within_s: A file operation that takes longer, in s, counts as hung.
        show: Called with what is being done.
    """
    path = os.path.abspath(directory)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    arguments = {"directory": path, "peers": peers, "wait_s": wait_s}
    try:
        process = start_process("pfo_fs.doctor.directory.process", arguments, fds={"to_fd": writing})
    finally:
        os.close(writing)
    checks: list[Check] = []
    doing, lines = "starting", SimpleQueue[dict[str, Any]]()
    Thread(target=_read, args=(reading, lines), daemon=True).start()
    try:
        while True:
            try:
                told = lines.get(timeout=_START_S if doing == "starting" else answer_within_s)
            except Empty:
                kind = mount_of(path).kind
                text = f"{doing}: no answer within {answer_within_s:g} s (file system: {kind})"
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
        _end(process)


def _read(fd: int, told: SimpleQueue[dict[str, Any]]) -> None:
    """Reads lines of JSON from a pipe; {} is its end."""
    with open(fd, encoding="utf-8") as lines:
        for text in lines:
            if text.endswith("\n"):  # else the process was ended while it wrote
                told.put(json.loads(text))
    told.put({})


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process; does not wait for one that no signal can end, because it hangs in the file system."""
    with suppress(OSError):
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
        return
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
