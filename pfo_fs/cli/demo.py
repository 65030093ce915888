"""`pfo-fs demo`: a small GPT over eight simulated GPUs that pfo-fs profiles, plans for and watches by itself."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from pfo_fs.cli.demo_training import (
    Training,
    check_torch,
    new_job,
    progress_on,
    run_training,
    temporary_folder,
)
from pfo_fs.errors import CoordinationError
from pfo_fs.store import Files, JobFolder, SharedDirectory

STAGES, MICROBATCHES = 8, 12
TIME_SCALE = 1.5
"""The simulated GPUs run this many times faster than the A100s that they follow, so that the demo is short."""
_MAX_WINDOWS = 10
_LINE = re.compile(r"iteration +(\d+) +loss ([\d.]+) +([\d.]+) s +schedule (-?\d+)")


@dataclass
class Outcome:
    """The results under one schedule, per stage: mean iteration time in s and energy in J."""

    time_s: list[float]
    energy_j: list[float]


@dataclass
class GptTraining(Training):
    """What the example with a pipeline has printed."""

    iteration: int = -1
    loss: float | None = None
    first_loss: float | None = None
    took_s: float | None = None

    def hear(self, line: str) -> None:
        """Takes the figures of an iteration."""
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
    check_torch()
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder_ = stack.enter_context(temporary_folder())
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
        gpt = stack.enter_context(
            run_training(
                GptTraining,
                "train_pipeline.py",
                *("--shared-dir", str(shared_dir), "--iterations", "100000"),
                *("--stop-file", str(folder_ / "stop"), "--num-microbatches", str(MICROBATCHES)),
                ranks=STAGES,
                environment={"PFO_FS_SIM_TIME_SCALE": str(TIME_SCALE)},
                folder=folder_,
            )
        )
        try:
            with progress_on(console) as progress:
                folder = new_job(shared, known, gpt, progress, STAGES)
                _follow(folder, gpt, progress, minutes)
                (folder_ / "stop").touch()
                task = progress.add_task("training ends", total=1, status_text="")
                if gpt.process.wait(60) != 0:
                    raise gpt.ended_early()
                progress.update(task, completed=1)
        except KeyboardInterrupt:
            console.print("stopped; the simulated GPUs are at default clocks again")
            return 130
        _report(console, folder, gpt, as_json=as_json)
        if keep and not as_json:
            console.print(f"The job as a page: pfo-fs report latest -d {shared_dir}", highlight=False, soft_wrap=True)
    return 0


def _report(console: Console, folder: JobFolder, training: GptTraining, *, as_json: bool) -> None:
    # The first window warms up at default clocks, the second runs at the highest; the newest one that was measured is
    # the plan.
    windows = [_outcome(folder, number) for number in folder.schedule_numbers() if number > 0]
    measured = [window for window in windows if window is not None]
    before, after = measured[0], measured[-1]
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


def _follow(folder: JobFolder, training: GptTraining, progress: Progress, minutes: float) -> None:
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
        training.check_alive()
        time.sleep(0.2)
    raise CoordinationError(
        f"no plan was in force and measured within {minutes:g} minutes; give more --minutes on a slow machine"
    )


def _outcome(folder: JobFolder, number: int) -> Outcome | None:
    """What was measured of a schedule; None unless all ranks have."""
    results = []
    for rank in range(STAGES):
        body = folder.read_result(number, rank)
        if body is None:
            return None
        results.append(body.result)
    return Outcome(
        time_s=[statistics.fmean(result.iter_time) for result in results],
        energy_j=[statistics.fmean(result.iter_energy) for result in results],
    )


def _status_text(training: GptTraining) -> str:
    if training.loss is None:
        return ""
    return f"iteration {training.iteration}, {training.took_s:.2f} s, loss {training.loss:.2f}"
