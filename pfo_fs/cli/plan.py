"""`pfo-fs plan`: plans the clock of each instruction from a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pfo_fs.cli.terminal import JsonFlag, err, fail, out, plausible_slowdown, print_json, say

if TYPE_CHECKING:
    from pfo_fs.planner import Problem

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
    p2p_power: Annotated[
        float | None, typer.Option(help="Power in W of a GPU that waits for its neighbours.", min=0.0)
    ] = None,
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
        int | None,
        typer.Option(help="Make this many plans, from the least energy (number 0) to the fastest.", max=100_000),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for plan files, their table and a picture.")
    ] = None,
    format_: Annotated[
        Literal["yaml", "lowtime"],
        typer.Option("--format", help="Format of plan files: yaml, or lowtime for a Zeus server."),
    ] = "yaml",
    solver: Annotated[
        Literal["lp", "lowtime", "both"], typer.Option(help="How to plan; both for a comparison.")
    ] = "lp",
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
    delay: Annotated[
        float, typer.Option(help="Seconds that a message takes from one rank to the next.", min=0.0)
    ] = 0.0,
    overhead: Annotated[float, typer.Option(help="Seconds of an iteration outside the pipeline.", min=0.0)] = 0.0,
    calibrate: Annotated[
        Path | None, typer.Option(help="JSON file of measured iterations, to which delay and overhead are fitted.")
    ] = None,
    derive: Annotated[
        bool, typer.Option(help="Estimate instructions that the profile lacks from forward and backward.")
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """Plan the clock of each instruction from a profile: least energy for a deadline, slowdown, straggler or power.

    Give one of --slowdown, --deadline, --straggler, --energy, --power and --frontier.
    Without any of them, the plan takes no more time than at max clocks.
    The table compares the plan with simpler ones that get the same time.
    Its gap shows how far the plan's energy can be above the least possible.
    """
    from pfo_fs.cli import plan_output, plan_request
    from pfo_fs.planner import (
        Planner,
        Problem,
        SwitchCosts,
        all_maximum,
        costs_of,
        even_deadlines,
        even_hosts,
        make_pipeline,
        solve_frontier,
    )
    from pfo_fs.switching_file import read_switching

    given = {"slowdown": slowdown, "deadline": deadline, "straggler": straggler, "energy": energy, "power": power}
    asked = {name: value for name, value in given.items() if value is not None}
    if max_changes is not None and (frontier is not None or asked.keys() - {"slowdown", "deadline"}):
        fail("--max-changes works with --slowdown and --deadline only")
    if len(asked) + (frontier is not None) > 1:
        names = [*asked, *(["frontier"] if frontier is not None else [])]
        fail(f"give only one of {', '.join('--' + name for name in names)}")
    if frontier is not None and solver != "lp":
        fail("--frontier works with --solver lp only; leave --solver out, or give lowtime one plan at a time")
    waiting_w = plan_request.blocking_power_asked_w(p2p_power, gpu)
    pipeline, complete = plan_request.profile_for(
        lambda stages: make_pipeline(schedule, stages, num_microbatches, num_ranks=num_ranks, delay_s=delay),
        profile,
        derive=derive,
    )
    problem = Problem(pipeline, complete, waiting_w, overhead, SwitchCosts(), gpus_per_rank)
    if switching is not None:
        hosts = even_hosts(len(problem.pipeline.orders), ranks_per_host)
        problem = replace(problem, switch_costs=costs_of(read_switching(switching), gpus_per_rank, hosts))
    if calibrate is not None:
        if delay or overhead:
            fail("--calibrate finds delay and overhead; leave --delay and --overhead out")
        problem = _calibrated(problem, calibrate)
    for warning in problem.warnings:
        say(("warning: ", "yellow"), warning, to=err)
    if output is not None:
        plan_output.make_folder(output, frontier or 0, format_)
    if frontier is not None:
        with err.status("planning ..."):
            plans = list(solve_frontier(problem, even_deadlines(Planner(problem), frontier)))[::-1]
        rows: list[tuple[str, Any]] = [("max clocks", all_maximum(problem))]
        rows += [(f"plan {number:05d}", found) for number, found in enumerate(plans)]
        written = plan_output.write_frontier(plans, output, format_) if output else []
        step = -(-len(rows) // _MAX_ROWS)
        shown = [rows[0], *rows[-1:0:-step][::-1]]
    else:
        rows = shown = plan_request.find_plans(problem, asked, solver, unit_time, max_changes)
        best = rows[-1][1]
        if isinstance(best, str):
            fail(best)
        written = plan_output.write_one(best, output, format_) if output else []
    if json_:
        print_json({"plans": plan_output.as_json(rows), "files": [str(path) for path in written]})
        return
    out.print(plan_output.plans_table(shown))
    for name, found in rows:
        if isinstance(found, str):
            say(f"{name}: {found}")
    if power is not None and rows[-1][1].average_power_w < 0.97 * power:
        say(f"even the fastest plan draws less than {power:g} W (all GPUs of the pipeline together)", to=err)
    if written:
        others = f" and {len(written) - 1} more in that folder" if len(written) > 1 else ""
        say(f"written: {written[0]}{others}")


def _calibrated(problem: Problem, path: Path) -> Problem:
    """Returns the problem with the delay and overhead that fit measured iterations, and says how well they do."""
    from pfo_fs.planner import calibrate, read_iterations

    found = calibrate(problem.pipeline, read_iterations(path, problem.pipeline))
    say(
        f"calibrated on {found.iterations} measured iterations: {found.delay_s * 1e3:.3g} ms between ranks, "
        f"{found.overhead_s:.4g} s per iteration; iterations left out of the fit are predicted within "
        f"{found.error:.2%} (the bare pipeline: {found.bare_error:.2%})",
        to=err,
    )
    return found.problem(problem)
