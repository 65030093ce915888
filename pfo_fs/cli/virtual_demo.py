"""`pfo-fs demo`: a whole job in virtual time, so that its result does not depend on how busy the machine is."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pfo_fs.cli.terminal import fail, out, show
from pfo_fs.errors import PlanError
from pfo_fs.reports.wording import difference_text, duration_text, energy_text, signed_percent

STAGES, MICROBATCHES = 8, 12
_MOST_ITERATIONS = 400


def run_virtual_demo(*, slowdown: float, shared_dir: Path | None, output: Path, as_json: bool) -> None:
    """Plays a job until its plan is measured and stays, prints the verdict, and writes the page about the job.

    Args:
        slowdown: The target: the longest iteration time, as a multiple of that at the highest clocks.
        shared_dir: The shared directory, which is kept after the demo; None: a temporary one.
        output: The page.
        as_json: Print the result as JSON instead of a table.

    Raises:
        PlanError: No plan was in force and measured within 400 iterations.
    """
    from pfo_fs.device.simulated.physics import A100
    from pfo_fs.planner import make_pipeline
    from pfo_fs.reports import collect_job, render_page
    from pfo_fs.reports.atomic_output import output_file
    from pfo_fs.settings import PFOSettings
    from pfo_fs.simulator import Cluster, Iteration, ModelTruth, Play, Summary, summarize

    console = Console(stderr=as_json)
    with ExitStack() as stack:
        root = shared_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pfo-fs-demo-"))) / "pfo"
        cluster = Cluster(make_pipeline("1f1b", STAGES, MICROBATCHES), ModelTruth(A100, STAGES), seed=0)
        settings = PFOSettings(scheduler="ParetoScheduler", scheduler_args={"slowdown": slowdown})
        console.print(
            f"A job over [bold]{STAGES} stages x {MICROBATCHES} micro-batches[/] (1F1B) in virtual time, one simulated "
            "A100 per stage. There is no profile of the model yet.",
            highlight=False,
            soft_wrap=True,
        )
        play = Play(cluster, root, settings, metadata="demo")
        played: list[Iteration] = []
        told = ""
        for iteration in play.run(_MOST_ITERATIONS):
            played.append(iteration)
            text = iteration.status_text.rpartition("; ")[2]
            if text != told:
                told = text
                console.print(f"iteration {iteration.step:3d}: {escape(text)}", highlight=False, soft_wrap=True)
            current = play.folder.read_current()
            if current is not None and current.converged and current.number == iteration.number:
                break
        else:
            raise PlanError(f"no plan was in force and measured within {_MOST_ITERATIONS} iterations")
        summary: Summary = summarize(play, played)
        play.end()
        page = render_page(collect_job(play.folder))
        job_id = play.folder.job_id
    try:
        with output_file(output) as file:
            file.write(page)
    except OSError as error:
        fail(f"{output}: the page cannot be written: {error.strerror}")
    if as_json:
        print(json.dumps({"job_id": job_id, "page": str(output.absolute()), **summary.as_json()}))  # noqa: T201
        return
    table = Table(title="One iteration", title_justify="left", box=SIMPLE_HEAD)
    for name in ("", "time s", "energy J"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    table.add_row("highest clocks", f"{summary.full_time_s:.4f}", f"{summary.full_energy_j:,.0f}")
    table.add_row("with the plan", f"{summary.plan_time_s:.4f}", f"{summary.plan_energy_j:,.0f}")
    energy, time = signed_percent(-summary.energy_saved), signed_percent(summary.slowdown, 2)
    table.add_row("[bold]difference[/]", f"[bold]{time}[/]", f"[bold green]{energy}[/]")
    show(table)
    out.print(
        f"Finding this plan took {summary.profiling_steps} iterations of profiling, which took "
        f"{difference_text(summary.overhead_s, duration_text)} and "
        f"{difference_text(summary.overhead_j, energy_text)} than at the highest clocks.\n"
        "GPUs and training are simulated (coefficients fitted to a published A100 profile); shared directory, "
        "coordinator, scheduler and planner are those of real jobs. With real training processes: pfo-fs demo --real",
        highlight=False,
        soft_wrap=True,
    )
    out.print(f"The job as a page, to open in a browser: {output.absolute()}", highlight=False, soft_wrap=True)
    if shared_dir is not None:
        out.print(f"The job is kept in {root}: pfo-fs status {root}", highlight=False, soft_wrap=True)
