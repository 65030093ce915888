"""Processes that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class Processes:
    """Starts processes for a test and ends all that are left, by pid."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **options: object) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        process = subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload]
        self.started.append(process)
        return process

    def python(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        return self.start(sys.executable, *arguments, **options)

    def daemon(self, shared_dir: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
        return self.python("-m", "pfo_fs", "daemon", str(shared_dir), *arguments, **options)


@dataclass
class Gluster:
    """A volume: its two mounts, and the process that serves it."""

    mounts: tuple[Path, Path]
    server: subprocess.Popen[bytes]


def open_fds() -> set[int]:
    """The descriptors that this process has open, without that of the list itself."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


def modules_loaded_by(code: str) -> set[str]:
    """The modules that `code` loads in an interpreter of its own, which coverage does not measure: it loads many."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split())


def pids_with(variable: str, value: str) -> list[int]:
    """The processes that have an environment variable with this value."""
    wanted, found = f"{variable}={value}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def wait_for_end(variable: str, value: str, within_s: float = 20.0) -> None:
    """Waits until no other process has an environment variable with this value; fails with those that are left."""
    deadline = time.monotonic() + within_s
    while left := set(pids_with(variable, value)) - {os.getpid()}:
        if time.monotonic() > deadline:
            lines = []
            for pid in sorted(left):
                with suppress(OSError):
                    lines.append(f"{pid}: " + Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:500])
            raise AssertionError("these processes have not ended:\n" + "\n".join(lines))
        time.sleep(0.01)


def wait_for(condition: Callable[[], T], timeout_s: float = 20.0, what: str = "the condition") -> T:
    """Returns the first true value of `condition`, looking often; fails after the deadline."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true within {timeout_s} s")
