"""Processes that tests start."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pfo_fs.store import Files, SharedDirectory

T = TypeVar("T")

HANGS_AFTER_S = 300.0
"""What takes this long hangs, also on a machine that has other work. A deadline in a test says nothing else."""


def environment(**more: str) -> dict[str, str]:
    """The variables of a process that a test starts: it finds the tests' modules and the package."""
    tests = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}", "OMP_NUM_THREADS": "1", **more}


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
        return self.python("-m", "pfo_fs", "daemon", str(shared_dir), *arguments, **{"env": environment(), **options})

    def leader(self, shared_dir: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
        """A daemon that has begun to lead."""
        daemon = self.daemon(shared_dir, *arguments, **options)
        wait_for(SharedDirectory(Files(shared_dir, create=True)).read_daemon, "a leader")
        return daemon


def open_fds() -> set[int]:
    """The descriptors that this process has open, without that of the list itself."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


def modules_loaded_by(code: str) -> set[str]:
    """The modules that `code` loads in an interpreter of its own, which coverage does not measure: it loads many."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split())


def pids_with(variable: str, value: str) -> list[int]:
    wanted, found = f"{variable}={value}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(int(pid))
    return found


def children() -> dict[int, str]:
    """The child processes that run, with their command lines; not the one that `multiprocessing` keeps for good."""
    with suppress(ChildProcessError):  # there is none: `/proc` need not be read
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        found = {pid: command_line(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_child(pid)}
        return {pid: command for pid, command in found.items() if "multiprocessing.resource_tracker" not in command}
    return {}


def is_child(pid: int) -> bool:
    with suppress(OSError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return int(parent) == os.getpid() and state != "Z"
    return False


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:500]
    return ""


def wait_for(condition: Callable[[], T], what: str = "the condition", within_s: float = HANGS_AFTER_S) -> T:
    """Returns the first true value of `condition`, looking often; fails if it hangs."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true within {within_s:g} s")
