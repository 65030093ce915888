"""Slow episodes: a job with real processes on simulated GPUs, which signals and a vanishing directory disturb."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.chaos.records import broken_schedules, damaged_records, ranks_with_result
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

_MARK = "PFO_CHAOS_EPISODE"
_ROOT = Path(__file__).resolve().parents[2]
_WHAT = {
    "helper": "pfo_fs.helper.process",
    "clocks": "pfo_fs.device.clock_process",
    "daemon": "pfo_fs\0daemon",
    "rank": "benchmarks.chaos.rank_program",
    "decider": "pfo_fs.training.load_decider",
}
_STARTS_WITHIN_S = 120.0
_ENDS_WITHIN_S = 90.0
_LEFT_S = 30.0
"""The processes beside training end within this time after it."""
_DISK_BYTES = 4 << 20
_JUMP_S = 30 * 86_400
"""The file system's clock jumps by this time, which is more than the idle time of a job (a week)."""
_PROFILE_WINDOW = 48
"""After this many steps of 20 ms in a row under one schedule, all ranks have surely measured it: a result takes five
readings of the energy counter, and on a busy host each can take 10 ms, after which there is none for 200 ms."""


class SlowEpisode:
    """One job with real processes.

    Args:
        seed: Which things go wrong, and when; when exactly a process meets them is up to the machine.
        folder: An empty folder.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.disk = folder / "disk"
        self.root = self.disk / "pfo"
        self.happened: list[str] = []
        self.world_size = self.random.choice((1, 2, 2))
        self.coordination = "local" if self.world_size == 1 else "daemon"
        self.loads = self.world_size == 2 and self.random.random() < 0.4  # clocks come from loads
        self.killed: set[str] = set()  # kinds of processes that were killed
        self.held_up: set[str] = set()  # kinds of processes that were killed or stopped
        self.may_fail = False
        self.is_lost = False  # the directory was removed: what it holds says nothing
        self._is_full = False  # until training has ended
        self._is_own_disk = False
        self._stopped: set[int] = set()
        self._mark = f"{seed}-{os.getpid()}-{time.monotonic_ns()}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PFO_FS_")},
            _MARK: self._mark,
            "PYTHONPATH": str(_ROOT),
            "PFO_FS_GPU": "simulated",
            "PFO_FS_SIM_DIR": str(folder / "gpus"),
            "PFO_FS_RUN_DIR": str(folder / "run"),
            "PFO_FS_SCHEDULER": "benchmarks.chaos.policies:Learner",
        }

    # ---- processes

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a process of the episode, with its output in `output`."""
        with (self.folder / "output").open("ab") as output:
            command = [sys.executable, "-m", *arguments]
            process = subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(process)
        return process

    def start_daemon(self) -> None:
        """Starts a daemon, if fewer than two run."""
        if len(self.pids("daemon")) < 2:
            self.start("pfo_fs", "daemon", str(self.root), "--lease-timeout", "1")

    def pids(self, what: str = "") -> list[int]:
        """Returns the processes of this episode that run, of one kind or of all, by their environment."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with suppress(OSError):
                environment = Path(f"/proc/{entry}/environ").read_bytes()
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                if f"{_MARK}={self._mark}\0".encode() in environment and _WHAT.get(what, "").encode() in command:
                    found.append(int(entry))
        return sorted(found)

    def signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def wait(self, ready: Callable[[], object], within_s: float) -> bool:
        """Waits for a condition, and returns whether it came true in time."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if ready():
                return True
            for process in self._started:
                process.poll()
            time.sleep(0.05)
        return False

    # ---- the episode

    def play(self) -> list[str]:
        """Plays the episode; returns what was violated."""
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(self.disk)]
        self._is_own_disk = os.geteuid() == 0 and not subprocess.run(mount, capture_output=True, check=False).returncode
        self.root.mkdir(mode=0o700)
        try:
            if self.coordination == "daemon":
                self.start_daemon()
            for rank in range(self.world_size):
                given = {
                    "rank": rank,
                    "world_size": self.world_size,
                    "folder": str(self.folder),
                    "coordination": self.coordination,
                    "loads": self.loads,
                }
                self._ranks.append(self.start("benchmarks.chaos.rank_program", json.dumps(given)))
            trains = self.wait(
                lambda: all(len(self.log(rank)) > 3 for rank in range(self.world_size)), _STARTS_WITHIN_S
            )
            if not trains:
                return ["training did not start"]
            for _ in range(self.random.randint(3, 8)):
                self.disturb()
                time.sleep(self.random.uniform(0.1, 1.0))
            return self.finish()
        finally:
            self.heal()
            for pid in self.pids():
                self.signal(pid, signal.SIGKILL)
            for process in self._started:
                process.wait()
            if self._is_own_disk:
                subprocess.run(["umount", "-l", str(self.disk)], check=True)

    def disturb(self) -> None:
        """Makes one thing go wrong, or lets a stopped process go on."""
        kinds = (
            "helper",
            "clocks",
            "daemon",
            "daemon",
            "rank",
            "directory",
            "start",
            "people",
            "clock",
            "full",
            "removed",
        )
        kind = self.random.choice((*kinds, "decider", "decider") if self.loads else kinds)
        number = self.random.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT))
        choice, pause_s = self.random.random(), self.random.uniform(0.2, 2.5)
        if kind == "directory":
            self.happened.append(f"the directory is away for {pause_s:.1f} s")
            with suppress(FileNotFoundError):  # it was removed
                self.root.rename(self.disk / "away")
            time.sleep(pause_s)
            self._bring_back()
        elif kind == "removed":
            if choice < 0.3:
                shutil.rmtree(self.root, ignore_errors=True)
                self.is_lost = True
                self.happened.append("the directory is removed")
        elif kind == "full":
            if self._is_own_disk:
                with suppress(OSError), (self.disk / "fill").open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
                self._is_full = self._is_full or choice < 0.3
                self.happened.append("the disk is full" + (" until training has ended" if self._is_full else ""))
                time.sleep(pause_s)
                self._make_room()
        elif kind == "clock":
            jump_s = _JUMP_S if choice < 0.5 else -_JUMP_S
            for path in self.root.rglob("*"):
                with suppress(FileNotFoundError):
                    os.utime(path, times=(path.stat().st_mtime - jump_s,) * 2)
            self.happened.append(f"the file system's clock jumps by {jump_s} s")
        elif kind == "people":
            text = "all: 1200\n" if choice < 0.5 else "target: {slowdown: 1.1}\n"
            for path in self.root.glob("jobs/*"):
                with suppress(OSError):  # the disk is full
                    (path / "schedule.yaml").write_text(text)
            self.happened.append("a person writes schedule.yaml")
        elif kind == "start":
            if self.coordination == "daemon":
                self.start_daemon()
                self.happened.append("a daemon is started")
        else:
            pids = self.pids(kind)
            if kind == "rank" and number == signal.SIGKILL and choice > 0.3:
                number = signal.SIGSTOP  # most jobs are to go on
            if not pids or (kind == "rank" and self.may_fail):
                return
            pid = pids[int(choice * len(pids))]
            self.happened.append(f"{kind} {pids.index(pid)} gets {number.name}")
            self.signal(pid, number)
            if number != signal.SIGCONT:
                self.held_up.add(kind)
            if number == signal.SIGSTOP:
                self._stopped.add(pid)
            if number == signal.SIGKILL:
                self.killed.add(kind)
                self.may_fail = self.may_fail or kind == "rank"

    def heal(self) -> None:
        """Ends all that is wrong."""
        self._bring_back()
        self._make_room()
        for pid in self.pids():
            self.signal(pid, signal.SIGCONT)

    def _make_room(self) -> None:
        if not self._is_full:
            (self.disk / "fill").unlink(missing_ok=True)

    def _bring_back(self) -> None:
        away = self.disk / "away"
        while away.exists():
            shutil.rmtree(self.root, ignore_errors=True)
            with suppress(OSError):  # a daemon that starts just now has made a new one: remove that too
                away.rename(self.root)

    def finish(self) -> list[str]:
        """Lets the job go on for a while and end; returns what was violated."""
        self.heal()
        if self.coordination == "daemon" and not self.pids("daemon"):
            self.start_daemon()
        before = len(self.log(0))
        steps = 30 if self.loads else 150
        if not self.may_fail and not self.wait(lambda: len(self.log(0)) > before + steps, _ENDS_WITHIN_S):
            return ["training has stopped"]
        (self.folder / "stop").touch()
        if not self.wait(lambda: all(process.poll() is not None for process in self._ranks), _ENDS_WITHIN_S):
            return ["training does not end"]
        self._is_full = False
        self._make_room()
        found = []
        codes = [process.returncode for process in self._ranks]
        if any(codes) and not self.may_fail:
            found.append(f"training ended with status {codes}")
        beside = ("helper", "clocks", "decider")
        if not self.wait(lambda: not any(map(self.pids, beside)), _LEFT_S):
            found.append(f"processes are left: { {kind: self.pids(kind) for kind in beside} }")
        for pid in self.pids("daemon"):
            self.signal(pid, signal.SIGTERM)
        if not self.wait(lambda: not self.pids("daemon"), _ENDS_WITHIN_S):
            found.append("a daemon does not end on SIGTERM")
        return [*found, *self.violations()]

    # ---- what must hold

    def log(self, rank: int) -> list[Any]:
        """Returns what a rank has written: first the job, then its steps."""
        with suppress(FileNotFoundError):
            lines = (self.folder / f"rank{rank}.log").read_text().splitlines()
            return [json.loads(line) for line in lines if line.endswith(("]", "}"))]
        return []

    def violations(self) -> list[str]:
        """Returns what does not hold in the directory, the ranks' logs and the GPUs' logs."""
        found = [] if self.is_lost else damaged_records(self.root)
        logs = [
            {step: (number, measured) for step, number, measured in self.log(rank)[1:]}
            for rank in range(self.world_size)
        ]
        for path in sorted((self.folder / "gpus").glob("*.log")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            if actions and actions[-1]["action"] != "reset":
                found.append(f"{path.name}: the clock is left at {actions[-1]['mhz']} MHz")
        job_id = self.log(0)[0]["job_id"]
        if job_id is None or self.is_lost:
            return found
        folder = SharedDirectory(Files(self.root)).job(job_id)
        folder.read_job()
        end = folder.read(bodies.EndBody)
        if end is None and "helper" not in self.killed:
            found.append("the job has no end")
        elif end is not None and end.reason not in (("terminated", "crashed") if self.may_fail else ("finished",)):
            found.append(f"the job's record says {end.reason}: {end.message}")
        found += broken_schedules(folder, logs, self.coordination)
        found += _disagreements(folder, logs, self.coordination, self.held_up)
        return [*found, *self._results(folder, logs)]

    def _results(self, folder: JobFolder, logs: list[dict[int, tuple[int, int]]]) -> list[str]:
        """If no process that measures or writes was killed, what was measured is in the directory."""
        found: list[str] = []
        if self.killed & {"helper", "clocks", "rank"}:
            return found
        for rank, log in enumerate(logs):
            counts: dict[int, int] = {}
            for _, measured in log.values():
                counts[measured] = counts.get(measured, 0) + 1
            there = {number for number in counts if number >= 0 and rank in ranks_with_result(folder, number)}
            found += [
                f"rank {rank} ran {count} steps under schedule {number}, and has no result"
                for number, count in counts.items()
                if number >= 0 and count > _PROFILE_WINDOW and number not in there
            ]
        return found


def _disagreements(
    folder: JobFolder, logs: list[dict[int, tuple[int, int]]], coordination: str, held_up: set[str]
) -> list[str]:
    """Ranks agree. Where a daemon schedules, one may be late if a process that carries schedules was held up."""
    if coordination == "daemon" and held_up & {"daemon", "helper"}:
        return []
    found = []
    for step in set.intersection(*(set(log) for log in logs)):
        active = {log[step][1] for log in logs} - {-1}
        index = folder.read(bodies.IndexBody, number=max(active)) if len(active) > 1 else None
        if index is not None and index.start_step == step:
            found.append(f"at step {step} ranks followed different schedules: {sorted(active)}")
    return found


def play_slow(seed: int) -> tuple[int, list[str], list[str]]:
    """Plays one slow episode; returns its seed, what was violated, and what happened."""
    with tempfile.TemporaryDirectory(prefix="pfo-chaos-", ignore_cleanup_errors=True) as name:
        episode = SlowEpisode(seed, Path(name))
        found = episode.play()
        about = "clocks from loads" if episode.loads else "a schedule"
        happened = [f"{episode.world_size} ranks, {episode.coordination}, {about}", *episode.happened]
        if found:
            happened += (Path(name) / "output").read_text(errors="replace").splitlines()[-25:]
        return seed, found, happened
