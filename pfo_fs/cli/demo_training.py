"""Real training for `pfo-fs demo`: an example in processes of its own, on simulated GPUs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pfo_fs.errors import ConfigError, CoordinationError
from pfo_fs.store import JobFolder, SharedDirectory

EXAMPLE_FOLDERS = (Path(__file__).parents[1] / "examples", Path(__file__).parents[2] / "examples")
"""Where the examples are: inside the package if it was installed from a wheel, beside it in a checkout."""
_START_WITHIN_S = 120.0
_REMOVED_WITHIN_S = 5.0


@dataclass
class Training:
    """The training processes and the last lines that they have printed."""

    process: subprocess.Popen[str]
    tail: list[str] = field(default_factory=list)

    def follow(self, output: IO[str]) -> None:
        """Reads the output to its end."""
        for line in output:
            self.tail = [*self.tail[-60:], line.rstrip()]
            self.hear(line)

    def hear(self, line: str) -> None:
        """Takes what it needs from a line that training has printed."""

    def check_alive(self) -> None:
        """Raises CoordinationError if training has ended, with its last output."""
        if self.process.poll() is not None:
            time.sleep(0.2)  # the thread that reads its output may still be behind
            raise self.ended_early()

    def ended_early(self) -> CoordinationError:
        """Returns the error that shows the last output."""
        output = "\n".join(self.tail[-25:])
        return CoordinationError(f"the training ended early, with exit code {self.process.returncode}:\n{output}")


T = TypeVar("T", bound=Training)


def check_torch() -> None:
    """Raises ConfigError if torch is not installed."""
    if find_spec("torch") is None:
        raise ConfigError("the demo trains with PyTorch, which is not installed: pip install torch")


def example_path(name: str) -> Path:
    """Returns the path of an example.

    Raises:
        ConfigError: The installation does not have it.
    """
    for folder in EXAMPLE_FOLDERS:
        if (folder / name).exists():
            return folder / name
    raise ConfigError(
        f"the demo needs {name}, which is in none of {', '.join(map(str, EXAMPLE_FOLDERS))}; install pfo-fs again"
    )


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Makes a folder, and removes it in the end, though processes beside training may write into it a little longer."""
    folder = Path(tempfile.mkdtemp(prefix="pfo-fs-demo-"))
    try:
        yield folder
    finally:
        until_s = time.monotonic() + _REMOVED_WITHIN_S
        while folder.exists() and time.monotonic() < until_s:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)


@contextmanager
def run_training(
    kind: type[T], example: str, *arguments: str, ranks: int, environment: Mapping[str, str], folder: Path
) -> Iterator[T]:
    """Runs an example, and ends it at the end of the block.

    Args:
        kind: What takes the output.
        example: The name of its file.
        arguments: What it is given.
        ranks: Number of its processes.
        environment: Variables to set, besides those that simulated GPUs need.
        folder: What processes write into while they run; the caller removes it.
    """
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
    given = {
        **os.environ,
        "PFO_FS_GPU": "simulated",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **{name: str(folder) for name in ("TMPDIR", "PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR")},
        **environment,
    }
    process = subprocess.Popen(
        [*command, str(example_path(example)), *arguments],
        env=given,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    followed = kind(process)
    assert process.stdout is not None
    reader = threading.Thread(target=followed.follow, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield followed
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(5)
        process.stdout.close()


def progress_on(console: Console) -> Progress:
    """Returns a display of what happens, line by line."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<35}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status_text]}"),
        console=console,
    )


def new_job(shared: SharedDirectory, known: set[str], training: Training, progress: Progress, ranks: int) -> JobFolder:
    """Waits for the job that is not among the `known` ones, and for all of its ranks.

    Raises:
        CoordinationError: Training has ended, or has not begun in time.
    """
    task = progress.add_task(f"starting {ranks} training processes", total=ranks, status_text="")
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline:
        fresh = [job_id for job_id in shared.job_ids() if job_id not in known]
        if fresh:
            folder = shared.job(fresh[0])
            registered = len(folder.registered_ranks())
            progress.update(task, completed=registered)
            if registered == ranks and folder.read_job() is not None:
                return folder
        training.check_alive()
        time.sleep(0.1)
    raise CoordinationError(
        f"the {ranks} training processes have not started within {_START_WITHIN_S:.0f} s; is this machine busy?"
    )
