"""`pfo-fs demo --loads`: a small data-parallel job on simulated GPUs, whose ranks get unequal work in each step."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
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
from pfo_fs.cli.terminal import fail, out, show
from pfo_fs.errors import CoordinationError
from pfo_fs.loads.state import LEAST_BALANCED
from pfo_fs.reports.wording import signed_percent
from pfo_fs.store import Files, JobFolder, SharedDirectory

if TYPE_CHECKING:
    from pfo_fs.store.loads_known import LoadsKnown

RANKS, STEPS = 4, 50
TIME_SCALE = 0.4
"""The simulated GPUs take longer than the A100s that they follow, so that steps of so small a model take half a second,
and what the processors of this machine do in them is little beside that."""
_TOLD_WITHIN_S = 5.0


def run_loads_demo(*, minutes: float, shared_dir: Path | None, output: Path, as_json: bool) -> int:
    """Trains for half a minute, prints what clocks from loads have saved, and writes the page about the job.

    Args:
        minutes: After this many minutes, the demo ends with an error.
        shared_dir: The shared directory, which is kept after the demo; None: a temporary one.
        output: The page.
        as_json: Print the result as JSON instead of a table.

    Raises:
        ConfigError: torch is not installed.
        CoordinationError: The training has ended too early, with its last output in the message; it has taken more than
            `minutes`; or what was saved is not known at its end.
    """
    from pfo_fs.reports import collect_job, render_page
    from pfo_fs.reports.atomic_output import output_file

    check_torch()
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        root = shared_dir or folder / "pfo"
        console.print(
            f"A small model over [bold]{RANKS} data-parallel ranks[/] (DistributedDataParallel; gloo), each with a "
            "simulated A100. Each packs documents of its own: unequal work in each step.",
            highlight=False,
        )
        shared = SharedDirectory(Files(root, create=True))
        shared.make_folders()
        known = set(shared.job_ids())
        training = stack.enter_context(
            run_training(
                Training,
                "train_packed.py",
                *("--shared-dir", str(root), "--steps", str(STEPS)),
                ranks=RANKS,
                environment={"PFO_FS_SIM_TIME_SCALE": str(TIME_SCALE)},
                folder=folder,
            )
        )
        try:
            with progress_on(console) as progress:
                job = new_job(shared, known, training, progress, RANKS)
                _follow(job, training, progress, minutes)
        except KeyboardInterrupt:
            console.print("stopped; the simulated GPUs are at default clocks again")
            return 130
        data = collect_job(job)
        loads = data.loads
        if loads is None or loads.saved is None:
            told = loads.text if loads is not None else "nothing is known of the loads"
            raise CoordinationError(f"after {STEPS} steps: {told}; is this machine busy?")
        page = render_page(data)
    try:
        with output_file(output) as file:
            file.write(page)
    except OSError as error:
        fail(f"{output}: the page cannot be written: {error.strerror}")
    if as_json:
        result = {"job_id": job.job_id, "page": str(output.absolute()), **loads.model_dump()}
        print(json.dumps(result))  # noqa: T201
        return 0
    _show(loads)
    out.print(f"The job as a page, to open in a browser: {output.absolute()}", highlight=False, soft_wrap=True)
    if shared_dir is not None:
        out.print(f"The job is kept in {root}: pfo-fs status {root}", highlight=False, soft_wrap=True)
    return 0


def _follow(job: JobFolder, training: Training, progress: Progress, minutes: float) -> None:
    """Shows the steps and what is known of loads, until training has ended and rank 0's helper has written its end."""
    deadline = time.monotonic() + 60 * minutes
    task = progress.add_task(f"training for {STEPS} steps", total=STEPS, status_text="")
    shown = ""
    while training.process.poll() is None:
        body = job.read_progress(0)
        for rank in body.ranks if body is not None else ():
            if rank.rank == 0:
                text = escape(_short(rank.loads))
                progress.update(task, completed=rank.step, status_text=text)
                if text != shown and not progress.console.is_terminal:
                    progress.console.print(f"step {rank.step}: {text}", highlight=False, soft_wrap=True)
                shown = text
        if time.monotonic() > deadline:
            raise CoordinationError(
                f"the training has not ended within {minutes:g} minutes; give more --minutes on a slow machine"
            )
        time.sleep(0.2)
    if training.process.returncode != 0:
        training.check_alive()
    progress.update(task, completed=STEPS)
    until_s = time.monotonic() + _TOLD_WITHIN_S
    while job.read_end() is None and time.monotonic() < until_s:
        time.sleep(0.05)


def _short(loads: LoadsKnown | None) -> str:
    """What is known while the job runs, so short that a line of a terminal holds it."""
    if loads is None or loads.explained is None:
        return "learning, clocks high"
    return "energy not known yet" if loads.saved is None else f"{signed_percent(-loads.saved)} energy"


def _show(loads: LoadsKnown) -> None:
    assert loads.saved is not None
    explained = "too little" if loads.explained is None else f"{math.floor(100 * loads.explained)} %"
    table = Table(title=f"Clocks from loads, {loads.steps} steps", title_justify="left", box=SIMPLE_HEAD)
    for name in ("against the highest clocks", "", "± error"):
        table.add_column(name, justify="left" if name[:1] == "a" else "right", no_wrap=True)
    saved_error = f"{100 * (loads.saved_error or 0):.1f} %"
    table.add_row("energy", f"[bold green]{signed_percent(-loads.saved)}[/]", saved_error)
    table.add_row(
        "time", f"[bold]{signed_percent(loads.late, 2)}[/]", f"{100 * loads.late_error:.2f} %", end_section=True
    )
    table.add_row("loads explain, of what varies between ranks", explained)
    table.add_row("time, with batches of equal work", signed_percent(-loads.balanced, 0))
    show(table)
    first = "Balance batches first, if you can: that saves time. " if loads.balanced >= LEAST_BALANCED else ""
    out.print(
        f"{first}Clocks from loads save energy where they stay unequal.\n"
        "GPUs are simulated (coefficients fitted to a published A100 profile); training processes, exchange of loads "
        "and choice of clocks are real. With your own lengths: pfo-fs loads FILE",
        highlight=False,
    )
