"""Real training for `pfo-fs demo`: an example in processes of its own, on simulated GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, ClassVar

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pfo_fs.errors import ConfigError, CoordinationError
from pfo_fs.reports.collect import JobData, collect_job
from pfo_fs.reports.wording import signed_percent
from pfo_fs.store import Files, JobFolder, SharedDirectory

EXAMPLE_FOLDERS = (Path(__file__).parents[1] / "examples", Path(__file__).parents[2] / "examples")
"""Where the examples are: inside the package if it was installed from a wheel, beside it in a checkout."""
_START_WITHIN_S = 120.0
_REMOVED_WITHIN_S = 5.0
_TOLD_WITHIN_S = 5.0
_MAX_WINDOWS = 10


@dataclass
class Training:
    """The training processes and the last lines that they have printed."""

    process: subprocess.Popen[str]
    tail: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    """The lines about iterations."""

    def follow(self, output: IO[str]) -> None:
        """Reads the output to its end."""
        for line in output:
            self.tail = [*self.tail[-60:], line.rstrip()]
            if line.startswith("iteration "):
                self.printed.append(line.rstrip())

    def check_alive(self) -> None:
        """Raises CoordinationError if training has ended, with its last output."""
        if self.process.poll() is not None:
            time.sleep(0.2)  # the thread that reads its output may still be behind
            raise self.ended_early()

    def ended_early(self) -> CoordinationError:
        """Returns the error that shows the last output."""
        output = "\n".join(self.tail[-25:])
        return CoordinationError(f"the training ended early, with exit code {self.process.returncode}:\n{output}")


class Demo(ABC):
    """A demo with real training processes.

    Attributes:
        example: The script that trains.
        arguments: What it is given, besides the shared directory.
        ranks: Number of its processes.
        time_scale: How many times as fast as the A100s that they follow the simulated GPUs run.
        about: What is trained, for people.
    """

    example: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    ranks: ClassVar[int]
    time_scale: ClassVar[float]
    about: ClassVar[str]

    def daemon(self, root: Path) -> AbstractContextManager[Any]:
        """Runs a daemon, if one is to schedule the job."""
        return nullcontext()

    @abstractmethod
    def told(self, job: JobFolder, training: Training) -> tuple[str, str]:
        """Returns what is known now: a text that is worth a line of its own when it changes, and one that is not."""

    def run(self, root: Path, folder: Path, console: Console, minutes: float) -> tuple[JobData, Training]:
        """Trains, shows what happens meanwhile, and returns the job.

        Args:
            root: The shared directory.
            folder: What processes write into while they run; the caller removes it.
            console: Where people look.
            minutes: After this many minutes, the demo ends with an error.

        Raises:
            ConfigError: torch is not installed.
            CoordinationError: The training failed, with its last output in the message, or takes too long.
        """
        if find_spec("torch") is None:
            raise ConfigError("the demo trains with PyTorch, which is not installed: pip install torch")
        console.print(f"{self.about}\nShared directory: {root}", highlight=False)
        shared = SharedDirectory(Files(root, create=True))
        shared.make_folders()
        known = set(shared.job_ids())
        with ExitStack() as stack:
            stack.enter_context(self.daemon(root))
            training = stack.enter_context(_training(self, root, folder))
            try:
                with console.status(f"starting {self.ranks} training processes ...") as line:
                    job = _new_job(shared, known, training, self.ranks)
                    self._follow(job, training, console, line, minutes)
            except KeyboardInterrupt:
                console.print("stopped; the simulated GPUs are at default clocks again")
                raise
            if training.process.returncode != 0:
                raise training.ended_early()
        until_s = time.monotonic() + _TOLD_WITHIN_S
        while job.read_end() is None and time.monotonic() < until_s:
            time.sleep(0.05)
        return collect_job(job), training

    def _follow(self, job: JobFolder, training: Training, console: Console, line: Status, minutes: float) -> None:
        until_s, shown = time.monotonic() + 60 * minutes, ""
        while training.process.poll() is None:
            if time.monotonic() > until_s:
                raise CoordinationError(
                    f"the training has not ended within {minutes:g} minutes; give more --minutes on a slow machine"
                )
            text, more = self.told(job, training)
            if text and text != shown:
                shown = text
                console.print(escape(text), highlight=False, soft_wrap=True)
            line.update(f"training: {escape(more)}")
            time.sleep(0.2)


class PipelineDemo(Demo):
    """A pipeline whose stages pfo-fs profiles and plans for; training ends when a plan has been measured and stays.

    Args:
        slowdown: The target: the longest iteration time, as a multiple of that at max clocks.
    """

    example = "train_pipeline.py"
    arguments = ("--num-microbatches", "12")
    ranks = 8
    time_scale = 1.5  # so that the demo is short
    about = (
        "A small GPT over [bold]8 stages x 12 micro-batches[/] (1F1B: alternating forwards and backwards; gloo), one "
        "process per stage, each with a simulated A100 (1.5 times as fast).\nThere is no profile of the model yet."
    )

    def __init__(self, slowdown: float) -> None:
        self._scheduler_args = {"slowdown": slowdown, "max_windows": _MAX_WINDOWS}

    @contextmanager
    def daemon(self, root: Path) -> Iterator[None]:
        """See `Demo.daemon`."""
        command = [sys.executable, "-m", "pfo_fs", "daemon", str(root), "--scheduler", "ParetoScheduler"]
        command += ["--scheduler-args", json.dumps(self._scheduler_args)]
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            daemon.terminate()
            daemon.wait(10)

    def told(self, job: JobFolder, training: Training) -> tuple[str, str]:
        """See `Demo.told`."""
        current = job.read_current()
        text = (current.message or current.status_text).partition(";")[0] if current is not None else ""
        return text, training.printed[-1] if training.printed else ""


class LoadsDemo(Demo):
    """A data-parallel job whose ranks get unequal work in each step, with clocks from loads."""

    example = "train_packed.py"
    arguments = ("--steps", "50")
    ranks = 4
    # Steps of so small a model then take half a second, and what this machine's processors do is little beside that.
    time_scale = 0.4
    about = (
        "A small model over [bold]4 data-parallel ranks[/] (DistributedDataParallel; gloo), each with a simulated "
        "A100. Each packs documents of its own: unequal work in each step."
    )

    def told(self, job: JobFolder, training: Training) -> tuple[str, str]:
        """See `Demo.told`."""
        body = job.read_progress(0)
        rank = next((rank for rank in body.ranks if rank.rank == 0), None) if body is not None else None
        if rank is None:
            return "", ""
        text, loads = "learning, max clocks", rank.loads
        if loads is not None and loads.explained is not None:
            text = "energy not known yet" if loads.saved is None else f"{signed_percent(-loads.saved)} energy"
        return text, f"step {rank.step}"


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
def _training(demo: Demo, root: Path, folder: Path) -> Iterator[Training]:
    """Runs a demo's example, and ends it at the end of the block."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={demo.ranks}", "--standalone"]
    command += [str(example_path(demo.example)), "--shared-dir", str(root), *demo.arguments]
    given = {
        **os.environ,
        "PFO_FS_GPU": "simulated",
        "PFO_FS_SIM_TIME_SCALE": str(demo.time_scale),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **{name: str(folder) for name in ("TMPDIR", "PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR")},
    }
    process = subprocess.Popen(
        command,
        env=given,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    training = Training(process)
    assert process.stdout is not None
    reader = threading.Thread(target=training.follow, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield training
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


def _new_job(shared: SharedDirectory, known: set[str], training: Training, ranks: int) -> JobFolder:
    """Waits for the job that is not among the `known` ones, and for all of its ranks.

    Raises:
        CoordinationError: Training has ended, or has not begun in time.
    """
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline:
        fresh = [job_id for job_id in shared.job_ids() if job_id not in known]
        if fresh:
            folder = shared.job(fresh[0])
            if len(folder.registered_ranks()) == ranks and folder.read_job() is not None:
                return folder
        training.check_alive()
        time.sleep(0.1)
    raise CoordinationError(
        f"the {ranks} training processes have not started within {_START_WITHIN_S:.0f} s; is this machine busy?"
    )
