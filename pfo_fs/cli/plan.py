"""`pfo-fs plan`: plans the clock of each instruction from a profile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from pfo_fs.cli.terminal import JsonFlag, err, fail, out, plausible_slowdown

_MAX_ROWS = 24
"""At most about this many rows of a frontier are printed; `frontier.csv` has all."""


def plan(
    profile: Annotated[
        Path,
        typer.Argument(help="CSV with stage,instruction,frequency,time,energy (MHz, s, J); or a Zeus dump's folder."),
    ],
    num_microbatches: Annotated[int, typer.Option(help="Micro-batches of one iteration.", min=1)],
    schedule: Annotated[
        str, typer.Option(help="1f1b, gpipe, interleaved, zb-h1, zb-v or early-recomputation.")
    ] = "1f1b",
    num_ranks: Annotated[
        int | None, typer.Option(help="Ranks of the pipeline, if each holds several stages (interleaved).")
    ] = None,
    p2p_power: Annotated[float | None, typer.Option(help="Power in W of a GPU that waits for its neighbours.")] = None,
    gpu: Annotated[str | None, typer.Option(help="A100 or A40: use the published --p2p-power of that GPU.")] = None,
    slowdown: Annotated[
        float | None,
        typer.Option(
            callback=plausible_slowdown,
            help="How many times as long an iteration may take as in the fastest plan: 1.03.",
        ),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Longest iteration in s.")] = None,
    straggler: Annotated[
        float | None, typer.Option(help="Iteration time in s of another pipeline that this one has to wait for.")
    ] = None,
    energy: Annotated[
        float | None, typer.Option(help="Highest energy of an iteration in J, all GPUs together.")
    ] = None,
    power: Annotated[float | None, typer.Option(help="Highest average power in W, all GPUs together.")] = None,
    frontier: Annotated[
        int | None, typer.Option(help="Make this many plans, from the least energy (number 0) to the fastest.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for plan files, tables and pictures.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="Format of plan files: yaml, or lowtime for a Zeus server.")
    ] = "yaml",
    solver: Annotated[str, typer.Option(help="lp, lowtime, or both for a comparison.")] = "lp",
    unit_time: Annotated[float, typer.Option(help="Unit of time of lowtime, in s.")] = 0.001,
    gpus_per_rank: Annotated[
        int, typer.Option(help="GPUs of a rank (tensor parallel). The profile is of one GPU; results are for all.")
    ] = 1,
    switching: Annotated[
        Path | None, typer.Option(help="What clock changes cost: the file that `pfo-fs doctor --switching` writes.")
    ] = None,
    ranks_per_host: Annotated[
        int, typer.Option(help="Ranks of the pipeline that share a host and its driver.", min=1)
    ] = 1,
    max_changes: Annotated[
        int | None, typer.Option(help="Most clock changes of an iteration, all ranks together.", min=0)
    ] = None,
    delay: Annotated[float, typer.Option(help="Seconds that a message takes from one rank to the next.")] = 0.0,
    overhead: Annotated[float, typer.Option(help="Seconds of an iteration outside the pipeline.")] = 0.0,
    calibrate: Annotated[
        Path | None, typer.Option(help="JSON file of measured iterations, to which delay and overhead are fitted.")
    ] = None,
    derive: Annotated[
        bool, typer.Option(help="Estimate instructions that the profile lacks from forward and backward.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes for --frontier; default: one per core.", min=1)] = None,
    pictures: Annotated[bool, typer.Option(help="Also draw frontier.png and pipeline.png.")] = True,
    json_: JsonFlag = False,
) -> None:
    """Plan the clock of each instruction from a profile: least energy for a deadline, slowdown, straggler or power.

    Give one of --slowdown, --deadline, --straggler, --energy, --power and --frontier.
    Without any of them, the plan takes no more time than all instructions at the highest clock.
    The table compares the plan with simpler ones that get the same time.
    Its gap shows how far the plan's energy can be above the least possible.
    An interrupted --frontier continues when the same command is run again.
    """
    from pfo_fs.cli import plan_output, plan_request
    from pfo_fs.planner import all_maximum

    _check_choice("--format", format_, ("yaml", "lowtime"))
    _check_choice("--solver", solver, ("lp", "lowtime", "both"))
    given = {"slowdown": slowdown, "deadline": deadline, "straggler": straggler, "energy": energy, "power": power}
    asked = {name: value for name, value in given.items() if value is not None}
    if max_changes is not None and (frontier is not None or asked.keys() - {"slowdown", "deadline"}):
        fail("--max-changes works with --slowdown and --deadline only")
    if len(asked) + (frontier is not None) > 1:
        names = [*asked, *(["frontier"] if frontier is not None else [])]
        fail(f"give only one of {', '.join('--' + name for name in names)}")
    problem, calibration = plan_request.make_problem(
        plan_request.Request(
            profile,
            num_microbatches,
            schedule,
            num_ranks,
            p2p_power,
            gpu,
            gpus_per_rank,
            delay,
            overhead,
            calibrate,
            derive,
            switching,
            ranks_per_host,
        )
    )
    for warning in problem.warnings:
        err.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    if calibration is not None:
        err.print(
            f"calibrated on {calibration.iterations} measured iterations: {calibration.delay_s * 1e3:.3g} ms (error "
            f"{calibration.delay_error_s * 1e3:.2g}) between ranks, {calibration.overhead_s:.4g} s (error "
            f"{calibration.overhead_error_s:.2g}) per iteration; iterations left out of the fit are predicted within "
            f"{calibration.error:.2%} (the bare pipeline: {calibration.bare_error:.2%})",
            highlight=False,
            soft_wrap=True,
        )
        if not calibration.is_determined:
            err.print(
                "[yellow]warning:[/] the measured plans are too alike to tell the delay between ranks from the time "
                "per iteration, so the delay is taken to be short; measure plans that differ more if it is not",
                highlight=False,
                soft_wrap=True,
            )
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"{output}: the folder for --output cannot be made: {error.strerror}")
    if frontier is not None:
        if solver != "lp":
            fail("--frontier works with --solver lp only; leave --solver out, or give lowtime one plan at a time")
        if output is not None:
            plan_output.check_folder(output, frontier, format_)
        plans = _frontier(problem, frontier, output, workers or os.cpu_count() or 1, quiet=json_)
        rows: list[tuple[str, Any]] = [("all maximum", all_maximum(problem))]
        rows += [(f"plan {number:05d}", found) for number, found in enumerate(plans)]
        written = plan_output.write_frontier(plans, output, format_, pictures) if output else []
        step = -(-len(rows) // _MAX_ROWS)
        shown = [rows[0], *rows[-1:0:-step][::-1]]
    else:
        rows = plan_request.find_plans(problem, asked, solver, unit_time, max_changes)
        shown = rows
        best = rows[-1][1]
        if isinstance(best, str):
            fail(best)
        written = plan_output.write_one(best, output, format_, pictures) if output else []
    if json_:
        print(json.dumps({"plans": plan_output.as_json(rows), "files": [str(path) for path in written]}))  # noqa: T201
        return
    out.print(plan_output.plans_table(shown))
    for name, found in rows:
        if isinstance(found, str):
            out.print(escape(f"{name}: {found}"), highlight=False, soft_wrap=True)
    if power is not None and rows[-1][1].average_power_w < 0.97 * power:
        err.print(f"even the fastest plan draws less than {power:g} W (all GPUs of the pipeline together)")
    if written:
        others = f" and {len(written) - 1} more in that folder" if len(written) > 1 else ""
        out.print(f"written: {written[0]}{others}", soft_wrap=True)


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        fail(f"{option} must be one of {', '.join(choices)}, not {value!r}")


def _frontier(problem: Any, points: int, output: Path | None, workers: int, quiet: bool) -> list[Any]:
    """Computes a frontier with a progress bar; returns plans from the longest deadline to the shortest."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from pfo_fs.cli import plan_request

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as progress:
        task = progress.add_task("least energy for the longest iteration", total=None)
        count, coming = plan_request.frontier_points(problem, points, output, workers)
        progress.update(task, total=count, description="frontier")
        plans = []
        try:
            for found in coming:
                plans.append(found)
                progress.advance(task)
        except KeyboardInterrupt:
            coming.close()
            kept = (
                f"; {len(plans)} of {count} plans are kept, and the same command continues from there" if output else ""
            )
            err.print(f"interrupted{kept}", highlight=False, soft_wrap=True)
            raise
    return sorted(plans, key=lambda found: -found.deadline_s)
