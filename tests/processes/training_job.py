"""A job whose ranks run `rank_program.py`, followed while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster import Host
from running import HANGS_AFTER_S, environment, wait_for

from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

HERE = Path(__file__).parent


class Job:
    """The ranks of a job, and what they print.

    Args:
        tmp_path: Folder of the test.
        ranks: How many to start.
        given: What `rank_program.py` is given.
        torchrun: Start the ranks with torchrun. As forks of one process they start in less than half the time.
        hosts: The host of each rank; None: this one.
        program: Another program than `rank_program.py`, and its arguments.
        environment: More variables.
    """

    def __init__(
        self,
        tmp_path: Path,
        ranks: int,
        given: dict[str, Any],
        *,
        torchrun: bool = False,
        hosts: Sequence[Host] | None = None,
        program: Sequence[str] = (),
        **more: str,
    ) -> None:
        if hosts:
            given["shared_dir"] = str(hosts[0].mount / "pfo")
        self.shared_dir = Path(given.setdefault("shared_dir", str(tmp_path / "pfo")))
        self.stop_file = tmp_path / "stop"
        if "steps" not in given:
            given["stop_file"] = str(self.stop_file)
        self.sim_dir = tmp_path / "sim"
        self.ranks = ranks
        self.lines: list[dict[str, Any]] = []
        self.log: list[str] = []
        self._environment = environment(**{"PFO_FS_GPU": "simulated", "PFO_FS_SIM_DIR": str(self.sim_dir), **more})
        program = [*program] or [str(HERE / "rank_program.py"), json.dumps(given)]
        if hosts:
            world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29555"}
            self.processes = [self._start_on(host, given, rank, world) for rank, host in enumerate(hosts)]
        elif torchrun:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            self.processes = [self._start([*launcher, *program])]
        else:
            self.processes = [self._start([str(HERE.parent / "forked_ranks.py"), str(ranks), *program])]
        self.readers = [
            threading.Thread(target=self._follow, args=way, daemon=True)
            for process in self.processes
            for way in ((process.stdout, self._line), (process.stderr, self.log.append))
        ]
        for reader in self.readers:
            reader.start()

    def _start_on(self, host: Host, given: dict[str, Any], rank: int, world: dict[str, str]) -> subprocess.Popen[str]:
        program = [str(HERE / "rank_program.py"), json.dumps({**given, "shared_dir": str(host.mount / "pfo")})]
        return self._start(program, host.prefix, **world, **host.environment, RANK=str(rank), LOCAL_RANK="0")

    def _start(self, command: list[str], prefix: Sequence[str] = (), **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, sys.executable, *command],
            env={**self._environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        """Waits until all ranks have their optimizer; if an assertion in the block fails, it shows their last lines."""
        try:
            wait_for(lambda: len(self.having("coordination")) == self.ranks, "all ranks")
        except AssertionError as error:
            self.__exit__(None, error)
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, AssertionError):
            raise AssertionError(f"{error}\n" + "\n".join(self.log[-40:])) from error

    @staticmethod
    def _follow(stream: Any, take: Callable[[str], None]) -> None:
        with suppress(ValueError):  # `kill` closes the stream, which a process that the job left behind may hold open
            for line in stream:
                take(line.rstrip())

    def _line(self, text: str) -> None:
        if text.startswith("{"):
            self.lines.append(json.loads(text))

    def of(self, **fields: Any) -> list[dict[str, Any]]:
        """The lines that have these fields."""
        return [line for line in list(self.lines) if all(line.get(key) == value for key, value in fields.items())]

    def having(self, key: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if key in line]

    def finish(self) -> int:
        """Asks the ranks to stop; returns 0, or the exit status of a process that failed."""
        self.stop_file.touch()
        codes = [process.wait(HANGS_AFTER_S) for process in self.processes]
        for reader in self.readers:
            reader.join(HANGS_AFTER_S)
        return next((code for code in codes if code), 0)

    def trains_on(self, steps: int = 60) -> None:
        """Waits until all ranks have run so many steps more."""
        until = max((line["step"] for line in self.having("step")), default=0) + steps
        wait_for(lambda: len(self.of(step=until)) == self.ranks, f"{steps} steps of all ranks")

    def follows(self, number: int) -> int:
        """Waits until all ranks run under a schedule; returns the step at which all of them have begun it."""
        wait_for(lambda: len(self.first_steps_of(number)) == self.ranks, f"schedule {number} on all ranks")
        first = self.first_steps_of(number)
        assert len(set(first.values())) == 1, f"ranks begin schedule {number} at steps {first}"
        return first[0]

    def switches(self, text: str = "all: 1200\n") -> int:
        """A person writes a schedule, the second one of the job: returns the step at which all ranks have begun it."""
        (self.folder.location / "schedule.yaml").write_text(text)
        return self.follows(1)

    def ends(self, reason: str = "finished") -> None:
        """Training ends without an error, its end is recorded, and all GPUs have their default clocks."""
        assert self.finish() == 0
        assert wait_for(lambda: self.folder.read(bodies.EndBody), "the end").reason == reason
        assert self.has_default_clocks()

    def has_default_clocks(self) -> bool:
        return all(log[-1]["action"] == "reset" for log in self.clock_logs().values())

    def first_steps_of(self, number: int) -> dict[int, int]:
        """rank -> the first step that it ran under schedule `number`."""
        first: dict[int, int] = {}
        for line in self.having("step"):
            if line["number"] == number:
                first.setdefault(line["rank"], line["step"])
        return first

    @property
    def folder(self) -> JobFolder:
        shared = SharedDirectory(Files(self.shared_dir))
        folder = shared.job(self.having("job_id")[0]["job_id"])
        folder.read_job()
        return folder

    def clock_logs(self) -> dict[str, list[dict[str, Any]]]:
        """What each simulated GPU was told, in order."""
        return {
            path.name: [json.loads(line) for line in path.read_text().splitlines()]
            for path in self.sim_dir.glob("*.log")
        }

    def kill(self) -> None:
        """Ends all processes of the job that still run."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for reader in self.readers:
            reader.join(HANGS_AFTER_S)
        for process in self.processes:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


StartJob = Callable[..., Job]
