"""`pfo-fs demo`: a small GPT over eight simulated GPUs that pfo-fs profiles, plans for and watches by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pfo_fs.errors import ConfigError, CoordinationError
from pfo_fs.store import Files, JobFolder, SharedDirectory

STAGES, MICROBATCHES = 8, 12
TIME_SCALE = 1.5
"""The simulated GPUs run this many times faster than the A100s that they follow, so that the demo is short."""
EXAMPLE_FOLDERS = (Path(__file__).parents[1] / "examples", Path(__file__).parents[2] / "examples")
"""Where the examples are: inside the package if it was installed from a wheel, beside it in a checkout."""
_MAX_WINDOWS = 10
_START_WITHIN_S = 120.0
_LINE = re.compile(r"iteration +(\d+) +loss ([\d.]+) +([\d.]+) s +schedule (-?\d+)")


@dataclass
class Outcome:
    """The results under one schedule, per stage: mean iteration time in s and energy in J."""

    time_s: list[float]
    energy_j: list[float]


@dataclass
class Training:
    """The training process and what it has printed."""

    process: subprocess.Popen[str]
    iteration: int = -1
    loss: float | None = None
    first_loss: float | None = None
    took_s: float | None = None
    tail: list[str] = field(default_factory=list)

    def follow(self, output: IO[str]) -> None:
        """Reads the output to its end."""
        for line in output:
            self.tail = [*self.tail[-60:], line.rstrip()]
            found = _LINE.search(line)
            if found:
                self.iteration, self.loss, self.took_s = int(found[1]), float(found[2]), float(found[3])
                self.first_loss = self.loss if self.first_loss is None else self.first_loss


def run_demo(*, slowdown: float, minutes: float, shared_dir: Path | None, as_json: bool) -> int:
    """Runs the demo.

    Args:
        slowdown: The target: the longest iteration time, as a multiple of that at the highest clocks.
        minutes: After this many minutes without a measured plan, the demo ends with an error.
        shared_dir: The shared directory, which is kept after the demo; None: a temporary one.
        as_json: Print the result as JSON instead of tables.

    Raises:
        ConfigError: torch is not installed.
        CoordinationError: The training ended too early, with its last output in the message; or no plan was in force
            and measured within `minutes`.
    """
    if find_spec("torch") is None:
        raise ConfigError("the demo trains with PyTorch, which is not installed: pip install torch")
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder_ = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pfo-fs-demo-")))
        keep = shared_dir is not None
        shared_dir = shared_dir or folder_ / "pfo"
        console.print(
            f"A small GPT over [bold]{STAGES} stages x {MICROBATCHES} micro-batches[/] (1F1B: alternating forwards and "
            f"backwards; gloo), one process per stage, each with a simulated A100 ({TIME_SCALE} times as fast).\n"
            "There is no profile of the model yet.\n"
            f"Shared directory: {shared_dir}",
            highlight=False,
        )
        shared = SharedDirectory(Files(shared_dir, create=True))
        shared.make_folders()
        known = set(shared.job_ids())
        stack.enter_context(_daemon(shared_dir, slowdown))
        training = stack.enter_context(_training(shared_dir, folder_ / "stop"))
        try:
            with Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<35}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[status_text]}"),
                console=console,
            ) as progress:
                folder = _new_job(shared, known, training, progress)
                _follow(folder, training, progress, minutes)
                (folder_ / "stop").touch()
                task = progress.add_task("training ends", total=1, status_text="")
                if training.process.wait(60) != 0:
                    raise _ended_early(training)
                progress.update(task, completed=1)
        except KeyboardInterrupt:
            console.print("stopped; the simulated GPUs are at default clocks again")
            return 130
        _report(console, folder, training, as_json=as_json)
        if keep and not as_json:
            console.print(f"The job as a page: pfo-fs report latest -d {shared_dir}", highlight=False, soft_wrap=True)
    return 0


def _report(console: Console, folder: JobFolder, training: Training, *, as_json: bool) -> None:
    # The first window warms up at default clocks, the second runs at the highest; the newest schedule is the plan.
    before, after = _outcome(folder, 1), _outcome(folder, folder.schedule_numbers()[-1])
    slowdown = max(after.time_s) / max(before.time_s) - 1
    saved = 1 - sum(after.energy_j) / sum(before.energy_j)
    if as_json:
        result = {
            "iter_time_s": {"without": max(before.time_s), "with": max(after.time_s)},
            "iter_energy_j": {"without": sum(before.energy_j), "with": sum(after.energy_j)},
            "energy_saved": saved,
            "slowdown": slowdown,
            "iterations": training.iteration + 1,
            "schedules": 1 + folder.schedule_numbers()[-1],
            "stages": [
                {"stage": stage, "energy_without_j": without, "energy_with_j": with_plan}
                for stage, (without, with_plan) in enumerate(zip(before.energy_j, after.energy_j, strict=True))
            ],
            "loss": {"first": training.first_loss, "last": training.loss},
        }
        print(json.dumps(result, indent=2))  # noqa: T201
        return
    table = Table(title="One iteration", title_justify="left", header_style="bold")
    for name in ("stage", "highest clocks", "with the plan", "saved"):
        table.add_column(name, justify="right")
    for stage, (without, with_plan) in enumerate(zip(before.energy_j, after.energy_j, strict=True)):
        table.add_row(str(stage), f"{without:.1f} J", f"{with_plan:.1f} J", f"{1 - with_plan / without:.1%}")
    table.add_section()
    table.add_row(
        "energy",
        f"{sum(before.energy_j):.1f} J",
        f"{sum(after.energy_j):.1f} J",
        f"[bold green]{saved:.1%}[/]",
    )
    table.add_row("time", f"{max(before.time_s):.3f} s", f"{max(after.time_s):.3f} s", f"{slowdown:+.1%} time")
    console.print(table)
    console.print(
        f"loss {training.first_loss:.3f} -> {training.loss:.3f} over {training.iteration + 1} iterations. "
        "The GPUs are simulated (coefficients fitted to a published A100 profile). The rest is real: the training, "
        "the profiling in it, the daemon, the shared directory, the planner, the switch of all ranks at one step.",
        highlight=False,
    )


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
def _daemon(shared_dir: Path, slowdown: float) -> Iterator[None]:
    command = [sys.executable, "-m", "pfo_fs", "daemon", str(shared_dir), "--scheduler", "ParetoScheduler"]
    command += ["--scheduler-args", json.dumps({"slowdown": slowdown, "max_windows": _MAX_WINDOWS})]
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait(10)


@contextmanager
def _training(shared_dir: Path, stop_file: Path) -> Iterator[Training]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={STAGES}", "--standalone"]
    command += [str(example_path("train_pipeline.py")), "--shared-dir", str(shared_dir), "--iterations", "100000"]
    command += ["--stop-file", str(stop_file), "--num-microbatches", str(MICROBATCHES)]
    environment = {
        **os.environ,
        "PFO_FS_GPU": "simulated",
        "PFO_FS_SIM_TIME_SCALE": str(TIME_SCALE),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
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


def _new_job(shared: SharedDirectory, known: set[str], training: Training, progress: Progress) -> JobFolder:
    task = progress.add_task("starting 8 training processes", total=STAGES, status_text="")
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline:
        fresh = [job_id for job_id in shared.job_ids() if job_id not in known]
        if fresh:
            folder = shared.job(fresh[0])
            registered = len(folder.registered_ranks())
            progress.update(task, completed=registered)
            if registered == STAGES and folder.read_job() is not None:
                return folder
        _check_alive(training)
        time.sleep(0.1)
    raise CoordinationError(
        f"the {STAGES} training processes have not started within {_START_WITHIN_S:.0f} s; is this machine busy?"
    )


def _follow(folder: JobFolder, training: Training, progress: Progress, minutes: float) -> None:
    """Shows what the scheduler does, until a plan has been measured and stays."""
    deadline = time.monotonic() + 60 * minutes
    task, shown = None, ""
    while time.monotonic() < deadline:
        current = folder.read_current()
        status_text = (current.message or current.status_text).partition(";")[0] if current is not None else ""
        if status_text and status_text != shown:
            if task is not None:
                progress.update(task, total=1, completed=1)
            shown = status_text
            if not progress.console.is_terminal:
                progress.console.print(escape(status_text), highlight=False)
            task = progress.add_task(escape(status_text[:35]), total=None, status_text="")
        if task is not None:
            progress.update(task, status_text=_status_text(training))
        if current is not None and current.converged and task is not None:
            progress.update(task, total=1, completed=1)
            return
        _check_alive(training)
        time.sleep(0.2)
    raise CoordinationError(
        f"no plan was in force and measured within {minutes:g} minutes; give more --minutes on a slow machine"
    )


def _outcome(folder: JobFolder, number: int) -> Outcome:
    results = []
    for rank in range(STAGES):
        body = folder.read_result(number, rank)
        assert body is not None
        results.append(body.result)
    return Outcome(
        time_s=[statistics.fmean(result.iter_time) for result in results],
        energy_j=[statistics.fmean(result.iter_energy) for result in results],
    )


def _status_text(training: Training) -> str:
    if training.loss is None:
        return ""
    return f"iteration {training.iteration}, {training.took_s:.2f} s, loss {training.loss:.2f}"


def _check_alive(training: Training) -> None:
    if training.process.poll() is not None:
        time.sleep(0.2)  # the thread that reads its output may still be behind
        raise _ended_early(training)


def _ended_early(training: Training) -> CoordinationError:
    output = "\n".join(training.tail[-25:])
    return CoordinationError(f"the training ended early, with exit code {training.process.returncode}:\n{output}")
