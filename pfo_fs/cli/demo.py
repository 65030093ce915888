"""`pfo-fs demo`: a job on simulated GPUs, what it has saved, and the page about it.

In virtual time, so that the result does not depend on how busy the machine is, or with real training processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Option

from pfo_fs.cli.terminal import SLOWDOWN, JsonFlag, plausible_slowdown, print_json, say, show, table, wrong_usage
from pfo_fs.errors import CoordinationError, PlanError
from pfo_fs.reports.wording import difference_text, duration_text, energy_text, signed_percent

if TYPE_CHECKING:
    from pfo_fs.loads_known import LoadsKnown
    from pfo_fs.reports.collect import JobData
    from pfo_fs.simulator import Iteration

STAGES, MICROBATCHES = 8, 12
_MOST_ITERATIONS = 400
Shown = tuple[dict[str, object], Callable[[], None]]
"""A demo's result for programs, and a function that prints it for people."""

_LOADS = "Train without a pipeline, with unequal work, by clocks from loads (needs torch; half a minute)."
_PAGE = Path("pfo-fs-demo.html")


def demo(
    slowdown: Annotated[float, Option(help=SLOWDOWN, min=1.0, callback=plausible_slowdown)] = 1.0,
    real: Annotated[bool, Option("--real", help="Train a small GPT in real processes: four minutes; torch.")] = False,
    loads: Annotated[bool, Option("--loads", help=_LOADS)] = False,
    minutes: Annotated[float, Option(help="Minutes after which real training gives up.", min=1.0, max=1440.0)] = 10.0,
    shared_dir: Annotated[Path | None, Option("--shared-dir", "-d", help="Keep the job in this directory.")] = None,
    output: Annotated[Path, Option("--output", "-o", help="The page about the job to write.")] = _PAGE,
    json_: JsonFlag = False,
) -> None:
    """Try pfo-fs without a GPU: a job of 8 stages in virtual time, from its first profile to its verdict."""
    from pfo_fs.cli.demo_training import LOADS, PIPELINE, temporary_folder, train
    from pfo_fs.reports.atomic_output import output_file
    from pfo_fs.reports.page import render_page

    if loads and (real or slowdown != 1.0):
        wrong_usage("--loads trains in real processes, and never slower: leave out --real and --slowdown")
    console = Console(stderr=json_)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        root = shared_dir or folder / "pfo"
        if loads:
            data, _ = train(LOADS, root, folder, console, minutes)
            result, tell = _of_loads(data)
        elif real:
            data, printed = train(PIPELINE, root, folder, console, minutes, slowdown=slowdown)
            result, tell = _of_pipeline(data, printed)
        else:
            data, result, tell = _in_virtual_time(slowdown, root, console)
        page = render_page(data)
    with output_file(output) as file:
        file.write(page)
    if json_:
        print_json({"job_id": data.folder.job_id, "page": str(output.absolute()), **result})
        return
    tell()
    say(f"The job as a page, to open in a browser: {output.absolute()}")
    if shared_dir is not None:
        say(f"The job is kept in {root}: pfo-fs status {root}")


def _in_virtual_time(slowdown: float, root: Path, console: Console) -> tuple[JobData, dict[str, object], Any]:
    """Plays a job until its plan is measured and stays.

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

    def tell() -> None:
        _show_iteration((summary.full_time_s, summary.plan_time_s), (summary.full_energy_j, summary.plan_energy_j))
        say(
            f"Finding this plan took {summary.profiling_steps} iterations of profiling, which took "
            f"{difference_text(summary.overhead_s, duration_text)} and "
            f"{difference_text(summary.overhead_j, energy_text)} than at max clocks.\n"
            "GPUs and training are simulated (coefficients fitted to a published A100 profile); shared directory, "
            "coordinator, scheduler and planner are those of real jobs. With real training: pfo-fs demo --real"
        )

    return collect_job(play.folder), summary.as_json(), tell


def _show_iteration(times_s: tuple[float, float], energies_j: tuple[float, float]) -> None:
    """Shows time and energy of an iteration at max clocks and with the plan."""
    shown = table("", "time s", "energy J", title="One iteration")
    for name, time_s, energy_j in zip(("max clocks", "with the plan"), times_s, energies_j, strict=True):
        shown.add_row(name, f"{time_s:.4f}", f"{energy_j:,.0f}")
    time, energy = signed_percent(times_s[1] / times_s[0] - 1, 2), signed_percent(energies_j[1] / energies_j[0] - 1)
    shown.add_row("[bold]difference[/]", f"[bold]{time}[/]", f"[bold green]{energy}[/]")
    show(shown)


def _of_pipeline(data: JobData, printed: list[str]) -> Shown:
    """What a plan has saved in real training processes: the same figures as on the page.

    Raises:
        CoordinationError: That is not known at the end.
    """
    from pfo_fs.reports.savings import savings_of

    savings = savings_of(data)
    best, against = savings.measured, savings.baseline
    if best is None or against is None:
        raise CoordinationError("at the end of training, no plan was compared with max clocks; is this machine busy?")
    losses = [float(line.split()[3]) for line in printed if line.startswith("iteration ")]
    result = {
        "iter_time_s": {"without": against.span_s, "with": best.span_s},
        "iter_energy_j": {"without": against.energy_j, "with": best.energy_j},
        "energy_saved": 1 - best.energy_j / against.energy_j,
        "slowdown": best.span_s / against.span_s - 1,
        "iterations": len(losses),
        "schedules": 1 + data.windows[-1].number,
        "loss": {"first": losses[0], "last": losses[-1]},
    }

    def tell() -> None:
        _show_iteration((against.span_s, best.span_s), (against.energy_j, best.energy_j))
        say(
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f} over {len(losses)} iterations. "
            "The GPUs are simulated (coefficients fitted to a published A100 profile). The rest is real: the training, "
            "the profiling in it, the daemon, the shared directory, the planner, the switch of all ranks at one step."
        )

    return result, tell


def _of_loads(data: JobData) -> Shown:
    """What clocks from loads have saved.

    Raises:
        CoordinationError: That is not known at the end.
    """
    loads = data.loads
    if loads is None or loads.saved is None:
        told = loads.text if loads is not None else "nothing is known of the loads"
        raise CoordinationError(f"at the end of training: {told}; is this machine busy?")
    return loads.model_dump(), lambda: _show_loads(loads)


def _show_loads(loads: LoadsKnown) -> None:
    from pfo_fs.loads_known import LEAST_BALANCED

    saved, saved_error = signed_percent(-(loads.saved or 0.0)), f"{100 * (loads.saved_error or 0):.1f} %"
    explained = "too little" if loads.explained is None else f"{math.floor(100 * loads.explained)} %"
    against = f"against {loads.controls} steps at max clocks"
    shown = table(against, "", "± error", title=f"Clocks from loads, {loads.steps} steps")
    shown.add_row("energy", f"[bold green]{saved}[/]", saved_error)
    if loads.late is not None:
        shown.add_row("time", f"[bold]{signed_percent(loads.late, 2)}[/]", f"{100 * (loads.late_error or 0):.2f} %")
    shown.add_section()
    shown.add_row("loads explain, of what varies between ranks", explained)
    shown.add_row("time, with batches of equal work", signed_percent(-loads.balanced, 0))
    show(shown)
    first = "Balance batches first, if you can: that saves time. " if loads.balanced >= LEAST_BALANCED else ""
    say(
        f"{first}Clocks from loads save energy where they stay unequal.\n"
        "GPUs are simulated (coefficients fitted to a published A100 profile); training processes, exchange of loads "
        "and choice of clocks are real. With your own lengths: pfo-fs loads FILE"
    )
