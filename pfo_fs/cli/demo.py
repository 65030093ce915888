"""`pfo-fs demo`: a job in virtual time on simulated GPUs, what it has saved, and the page about it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from typer import Option

from pfo_fs.cli.terminal import SLOWDOWN, JsonFlag, err, fail, out, plausible_slowdown, print_json, say, show, table
from pfo_fs.errors import PlanError
from pfo_fs.reports.wording import difference_text, duration_text, energy_text, signed_percent

if TYPE_CHECKING:
    from rich.console import Console

    from pfo_fs.reports.collect import JobData
    from pfo_fs.simulator import Iteration, Summary

STAGES, MICROBATCHES = 4, 8
_MOST_ITERATIONS = 400
_PAGE = Path("pfo-fs-demo.html")


def demo(
    slowdown: Annotated[float, Option(help=SLOWDOWN, min=1.0, callback=plausible_slowdown)] = 1.0,
    shared_dir: Annotated[Path | None, Option("--shared-dir", "-d", help="Keep the job in this directory.")] = None,
    output: Annotated[Path, Option("--output", "-o", help="The page to write about the job.")] = _PAGE,
    json_: JsonFlag = False,
) -> None:
    """Try pfo-fs without a GPU: a job of 4 stages in virtual time, from its first profile to its verdict."""
    from pfo_fs.reports.atomic_output import output_file
    from pfo_fs.reports.page import PAGE_HAS, render_page

    if not output.parent.is_dir():
        fail(f"{output}: cannot be written: the folder {output.parent} is not there")
    with ExitStack() as stack:
        root = shared_dir or Path(stack.enter_context(TemporaryDirectory(prefix="pfo-fs-demo-"))) / "pfo"
        data, summary = _play(slowdown, root, err if json_ else out)
        page = render_page(data)
    with output_file(output, PAGE_HAS) as file:
        file.write(page)
    if json_:
        print_json({"job_id": data.folder.job_id, "page": str(output.absolute()), **summary.as_json()})
        return
    _show(summary)
    say(f"The job as a page, to open in a browser: {output.absolute()}")
    if shared_dir is not None:
        say(f"The job is kept in {root}: pfo-fs status {root}")


def _play(slowdown: float, root: Path, console: Console) -> tuple[JobData, Summary]:
    """Plays a job until its plan is measured and stays; tells on the console what happens meanwhile.

    Raises:
        PlanError: No plan was in force and measured within 400 iterations.
    """
    from pfo_fs.device.simulated.physics import A100, node_physics
    from pfo_fs.planner import make_pipeline
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.settings import load_settings
    from pfo_fs.simulator import Cluster, ModelTruth, Play, summarize
    from pfo_fs.simulator.nodes import NodeSettings
    from pfo_fs.store import bodies

    nodes = NodeSettings(node_physics("kind"))
    cluster = Cluster(make_pipeline("1f1b", STAGES, MICROBATCHES), ModelTruth(A100, STAGES), seed=0, nodes=nodes)
    settings = load_settings(of_job=True, scheduler="ParetoScheduler", scheduler_args={"slowdown": slowdown})
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
            say(f"iteration {iteration.step:3d}: {text}", to=console)
        current = play.folder.read(bodies.CurrentBody)
        if current is not None and current.converged and current.number == iteration.number:
            break
    else:
        raise PlanError(f"no plan was in force and measured within {_MOST_ITERATIONS} iterations")
    summary = summarize(play, played)
    play.end()
    return collect_job(play.folder), summary


def _show(summary: Summary) -> None:
    shown = table("", "time s", "energy J", title="One iteration")
    shown.add_row("max clocks", f"{summary.full_time_s:.4f}", f"{summary.full_energy_j:,.0f}")
    shown.add_row("with the plan", f"{summary.plan_time_s:.4f}", f"{summary.plan_energy_j:,.0f}")
    time, energy = signed_percent(summary.slowdown, 2), signed_percent(-summary.energy_saved)
    shown.add_row("[bold]difference[/]", f"[bold]{time}[/]", f"[bold green]{energy}[/]")
    show(shown)
    say(
        f"Finding this plan took {summary.profiling_steps} iterations of profiling; against max clocks: "
        f"{difference_text(summary.overhead_s, duration_text)} and "
        f"{difference_text(summary.overhead_j, energy_text)}.\n"
        "These figures are exact; the page's figures were measured in the job, until the last instruction's end.\n"
        "GPUs and training are simulated (coefficients fitted to a published A100 profile); shared directory, "
        "coordinator, scheduler and planner are those of real jobs."
    )
