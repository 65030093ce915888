"""Real training for `pfo-fs demo`: an example in processes of its own, on simulated GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pfo_fs.errors import ConfigError, CoordinationError
from pfo_fs.reports.collect import JobData, collect_job
from pfo_fs.reports.wording import signed_percent
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

EXAMPLE_FOLDERS = (Path(__file__).parents[1] / "examples", Path(__file__).parents[2] / "examples")
"""Where the examples are: inside the package if it was installed from a wheel, beside it in a checkout."""
_REMOVED_WITHIN_S = 5.0
"""Processes of the demo that end may still write files while its folder is removed."""
_TOLD_WITHIN_S = 5.0
"""The daemon writes its last state within this time after training has ended."""
_LINES_OF_ERROR = 25
"""The last lines of a failed training, as many as a traceback has, are shown."""


@dataclass(frozen=True)
class Demo:
    """A demo with real training processes.

    Attributes:
        example: The script that trains.
        arguments: What it is given, besides the shared directory.
        ranks: Number of its processes.
        time_scale: How many times as fast as the A100s that they follow the simulated GPUs run.
        about: What is trained, for people.
        status: Returns what is known now of the job: a text that is worth a line of its own when it changes.
        has_daemon: Whether a daemon schedules the job.
    """

    example: str
    arguments: tuple[str, ...]
    ranks: int
    time_scale: float
    about: str
    status: Callable[[JobFolder], str]
    has_daemon: bool = False


def _verdict(job: JobFolder) -> str:
    current = job.read(bodies.CurrentBody)
    return (current.message or current.status_text).partition(";")[0] if current is not None else ""


def _loads_learned(job: JobFolder) -> str:
    body = job.read(bodies.ProgressBody, name=0)
    loads = next((rank.loads for rank in body.ranks if rank.rank == 0), None) if body is not None else None
    if loads is None or loads.explained is None:
        return "learning, max clocks"
    return "energy not known yet" if loads.saved is None else f"{signed_percent(-loads.saved)} energy"


PIPELINE = Demo(
    example="train_pipeline.py",
    arguments=("--num-microbatches", "12"),
    ranks=8,
    time_scale=1.5,  # so that the demo is short
    about="A small GPT over [bold]8 stages x 12 micro-batches[/] (1F1B: alternating forwards and backwards; gloo), one "
    "process per stage, each with a simulated A100 (1.5 times as fast).\nThere is no profile of the model yet.",
    status=_verdict,
    has_daemon=True,
)
"""A pipeline whose stages pfo-fs profiles and plans for; training ends when a plan has been measured and stays."""

LOADS = Demo(
    example="train_packed.py",
    arguments=("--steps", "50"),
    ranks=4,
    # Steps of so small a model then take half a second, and what this machine's processors do is little beside that.
    time_scale=0.4,
    about="A small model over [bold]4 data-parallel ranks[/] (DistributedDataParallel; gloo), each with a simulated "
    "A100. Each packs documents of its own: unequal work in each step.",
    status=_loads_learned,
)
"""A data-parallel job whose ranks get unequal work in each step, with clocks from loads."""


def train(
    demo: Demo, root: Path, folder: Path, console: Console, minutes: float, **scheduler_args: Any
) -> tuple[JobData, list[str]]:
    """Trains, shows what happens meanwhile, and returns the job and what training has printed.

    Args:
        folder: What processes write into while they run; the caller removes it.

    Raises:
        ConfigError: torch is not installed.
        CoordinationError: The training failed, with its last output in the message, or takes too long.
    """
    if find_spec("torch") is None:
        raise ConfigError("the demo trains with PyTorch, which is not installed: pip install torch")
    console.print(f"{demo.about}\nShared directory: {root}", highlight=False)
    shared = SharedDirectory(Files(root, create=True))
    shared.make_folders()
    known, output = set(shared.job_ids()), folder / "training.txt"
    with ExitStack() as stack:
        if demo.has_daemon:
            stack.enter_context(_daemon(root, scheduler_args))
        training = stack.enter_context(_training(demo, root, folder, output))
        line = stack.enter_context(console.status(f"starting {demo.ranks} training processes ..."))
        job: JobFolder | None = None
        until_s, shown = time.monotonic() + 60 * minutes, ""
        try:
            while training.poll() is None:
                if time.monotonic() > until_s:
                    raise CoordinationError(
                        f"the training has not ended within {minutes:g} minutes; give more --minutes on a slow machine"
                    )
                job = job or next((shared.job(job_id) for job_id in shared.job_ids() if job_id not in known), None)
                if job is not None:
                    text = demo.status(job)
                    if text and text != shown:
                        shown = text
                        console.print(escape(text), highlight=False, soft_wrap=True)
                    line.update(f"training: {escape(''.join(_lines(output)[-1:]))}")
                time.sleep(0.2)
        except KeyboardInterrupt:
            console.print("stopped; the simulated GPUs are at default clocks again")
            raise
    printed = _lines(output)
    if training.returncode != 0 or job is None:
        last = "\n".join(printed[-_LINES_OF_ERROR:])
        raise CoordinationError(f"the training ended early, with exit code {training.returncode}:\n{last}")
    until_s = time.monotonic() + _TOLD_WITHIN_S
    while job.read(bodies.EndBody) is None and time.monotonic() < until_s:
        time.sleep(0.05)
    return collect_job(job), printed


def _lines(output: Path) -> list[str]:
    return output.read_text(errors="replace").splitlines()


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
def _daemon(root: Path, scheduler_args: Mapping[str, Any]) -> Iterator[None]:
    command = [sys.executable, "-m", "pfo_fs", "daemon", str(root), "--scheduler", "ParetoScheduler"]
    command += ["--scheduler-args", json.dumps(scheduler_args)]
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait(10)


@contextmanager
def _training(demo: Demo, root: Path, folder: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
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
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=given, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
