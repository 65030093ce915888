"""One job of `faults.py`: ranks, perhaps a daemon, their processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from _fault_rank import STARTS, STATE, STOP, TRAINED, Page

ROOT = Path(__file__).resolve().parents[1]
_RANK = Path(__file__).with_name("_fault_rank.py")
_MARK = "PFO_FAULTS_JOB"
_WHAT = {"helper": "helper.process", "clocks": "clock_process", "rank": "_fault_rank.py", "daemon": "daemon"}
LOW_MHZ = 210


class Job:
    """A job in a folder of its own.

    Args:
        folder: The folder; it is made.
        world_size: Number of ranks.
        given: What `_fault_rank.py` is to do.
        environment: Variables of the ranks, added to those of this process.
        has_daemon: Whether a daemon schedules it.
    """

    def __init__(
        self, folder: Path, world_size: int, given: Mapping[str, Any], environment: Mapping[str, str], has_daemon: bool
    ) -> None:
        folder.mkdir()
        self.folder, self.world_size = folder, world_size
        self.root, self.gpus = folder / "pfo", folder / "gpus"
        self.root.mkdir(mode=0o700)
        self.gpus.mkdir(mode=0o700)
        self.given, self.has_daemon = {"dir": str(self.root), "checkout": str(ROOT), **given}, has_daemon
        self.pages = [Page.make(folder / f"page{rank}") for rank in range(world_size)]
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.stopped: set[int] = set()  # processes that a fault has stopped
        self.undo: list[Callable[[], object]] = []  # what ends a fault
        self.notes: list[str] = []  # what a fault has found that must not be
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "PFO_FS_GPU": "simulated",
            "PFO_FS_SIM_DIR": str(self.gpus),
            "PFO_FS_RUN_DIR": str(folder / "run"),
            "PFO_FS_SCHEDULER": "Manual",
            _MARK: self._mark,
            **environment,
        }
        (folder / "run").mkdir(mode=0o700)

    def start_daemon(self, *prefix: str) -> None:
        """Starts the daemon, and waits until it leads."""
        command = [*prefix, sys.executable, "-m", "pfo_fs", "daemon", str(self.root), "--lease-timeout", "2"]
        self._popen(command, "daemon.log")
        self.wait(lambda: (self.root / "daemon.json").exists(), 60)

    def start(self) -> None:
        """Starts the ranks."""
        for rank in range(self.world_size):
            given = {
                **self.given,
                "rank": rank,
                "world_size": self.world_size,
                "page": str(self.folder / f"page{rank}"),
                "socket": f"\0{self._mark}",
            }
            self.ranks.append(self._popen([sys.executable, str(_RANK), json.dumps(given)], f"rank{rank}.log"))

    def _popen(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as sink:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=self.folder,
                process_group=0,  # in this session, so that SIGTSTP stops it
            )
        self._started.append(process)
        return process

    # ---- what runs

    def wait(self, ready: Callable[[], object], within_s: float) -> bool:
        """Waits for a condition; returns whether it came true in time."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if ready():
                return True
            time.sleep(0.05)
        return bool(ready())

    def pids(self, what: str = "") -> list[int]:
        """Returns the processes of this job that run, of one kind or of all, by their environment."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                environment = Path(f"/proc/{entry}/environ").read_bytes()
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                if f"{_MARK}={self._mark}\0".encode() in environment and _WHAT.get(what, "").encode() in command:
                    found.append(int(entry))
        return sorted(found)

    def signal(self, number: signal.Signals, *kinds: str) -> None:
        """Sends a signal to all processes of some kinds."""
        for kind in kinds:
            for pid in self.pids(kind):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                if number in (signal.SIGSTOP, signal.SIGTSTP):
                    self.stopped.add(pid)

    @property
    def trains(self) -> bool:
        """Whether all ranks train, or have."""
        return all(page[STATE] != STARTS for page in self.pages)

    @property
    def has_ended(self) -> bool:
        """Whether no rank runs any more."""
        return all(process.poll() is not None for process in self.ranks)

    @property
    def has_trained(self) -> bool:
        """Whether all ranks have left their last step."""
        return all(page[STATE] >= TRAINED for page in self.pages)

    def longest_ms(self, since_s: float, until_s: float) -> tuple[float, float]:
        """Returns the longest step that touches this time, and the longest time inside of the product in one, in ms.

        A step that has not ended counts as long as it has taken.
        """
        steps = [each for page in self.pages for each in page.steps() if each[0] + each[1] > since_s]
        steps = [each for each in steps if each[0] < until_s]
        longest_s = max((took_s for _, took_s, _ in steps), default=0.0)
        for page in self.pages:
            if page[STATE] < TRAINED and page.steps():
                began_s, took_s, _ = page.steps()[-1]
                longest_s = max(longest_s, until_s - began_s - took_s)
        return 1e3 * longest_s, 1e3 * max((inside_s for _, _, inside_s in steps), default=0.0)

    # ---- clocks

    def clocks_mhz(self) -> list[int]:
        """Returns the clock that each GPU is locked at; 0: the default."""
        found = [struct.unpack("16q", path.read_bytes()[:128])[1] for path in sorted(self.gpus.glob("*.state"))]
        with suppress(FileNotFoundError):
            locked = dict(map(str.split, (self.folder / "driver.log").read_text().splitlines()))
            found += [int(mhz) for mhz in locked.values()]
        return found

    def lower_clocks(self) -> bool:
        """Has all clocks lowered by a person's `schedule.yaml`; returns whether they are."""
        for path in self.root.glob("jobs/*/job.json"):
            (path.parent / "schedule.yaml").write_text(f"all: {LOW_MHZ}\n")
        return self.wait(lambda: self.clocks_mhz().count(LOW_MHZ) == self.world_size or self.has_ended, 20)

    # ---- the end

    def stop_training(self) -> None:
        """Tells the ranks to end; returns at once."""
        for page in self.pages:
            page[STOP] = 1

    def heal(self) -> None:
        """Ends what a fault does: stopped processes go on."""
        while self.undo:
            self.undo.pop()()
        for pid in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> list[int]:
        """Ends everything; returns the clock processes that a job that has ended has left running.

        A helper may stay: up to ten minutes while the directory is away, and one that has just been started a minute.
        """
        self.heal()
        left: list[int] = []
        if self.has_ended and self.ranks:
            self.wait(lambda: not self.pids("clocks"), 20)
            left = self.pids("clocks")
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        return left
