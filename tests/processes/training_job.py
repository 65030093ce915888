"""A torchrun job of `rank_program.py`, followed while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfo_fs.store import Files, JobFolder, SharedDirectory

HERE = Path(__file__).parent


class Job:
    """A torchrun job of `rank_program.py`, followed while it runs."""

    def __init__(self, tmp_path: Path, ranks: int, given: dict[str, Any], **environment: str) -> None:
        self.shared_dir = Path(given.setdefault("shared_dir", str(tmp_path / "pfo")))
        self.stop_file = tmp_path / "stop"
        if "steps" not in given:
            given["stop_file"] = str(self.stop_file)
        self.sim_dir = tmp_path / "sim"
        self.lines: list[dict[str, Any]] = []
        self.log: list[str] = []
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        self.process = subprocess.Popen(
            [*command, str(HERE / "rank_program.py"), json.dumps(given)],
            env={
                **os.environ,
                "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE.parents[1]}",
                "PFO_FS_GPU": "simulated",
                "PFO_FS_SIM_DIR": str(self.sim_dir),
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.readers = [
            threading.Thread(target=self._follow, args=(self.process.stdout, self._line), daemon=True),
            threading.Thread(target=self._follow, args=(self.process.stderr, self.log.append), daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _follow(stream: Any, take: Callable[[str], None]) -> None:
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

    def finish(self, timeout_s: float = 60.0) -> int:
        self.stop_file.touch()
        code = self.process.wait(timeout_s)
        for reader in self.readers:
            reader.join(10)
        return code

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

    def put_yaml(self, text: str) -> None:
        (self.shared_dir / self.folder.path / "schedule.yaml").write_text(text)

    def clock_logs(self) -> dict[str, list[dict[str, Any]]]:
        """What each simulated GPU was told, in order."""
        return {
            path.name: [json.loads(line) for line in path.read_text().splitlines()]
            for path in self.sim_dir.glob("*.log")
        }

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for reader in self.readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def told_on_failure(job: Job) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n" + "\n".join(job.log[-40:])) from error


def all_made(job: Job, ranks: int) -> Callable[[], bool]:
    return lambda: len(job.having("coordination")) == ranks
