"""`pfo-fs plan`: plans the clock of each instruction from a profile."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from pfo_fs.cli.terminal import (
    DeadlineOption,
    JsonFlag,
    NumRanksOption,
    PowerOption,
    SlowdownOption,
    err,
    fail,
    out,
    print_json,
    say,
    wrong_usage,
)

_MAX_ROWS = 24
"""At most about this many rows of a frontier are printed; `frontier.csv` has all."""


_PROFILE = "CSV with stage,instruction,frequency,time,energy (MHz, s, J); or a Zeus dump's folder."
_LATENCY = "Seconds from a call until its clock acts, such as 0.02; then the plan counts what changes cost."
_FRONTIER = "Make this many plans, from the least energy (number 0) to the fastest."


def plan(
    profile: Annotated[Path, Argument(help=_PROFILE)],
    num_microbatches: Annotated[int, Option(help="Micro-batches of one iteration.", min=1)],
    schedule: Annotated[str, Option(help="1f1b, gpipe, interleaved, zb-h1, zb-v or early-recomputation.")] = "1f1b",
    num_ranks: NumRanksOption = None,
    p2p_power: Annotated[float | None, Option(help="W of a GPU that waits for its neighbours.", min=0.0)] = None,
    gpu: Annotated[str | None, Option(help="A100 or A40: use the published --p2p-power of that GPU.")] = None,
    slowdown: SlowdownOption = None,
    deadline: DeadlineOption = None,
    straggler: Annotated[float | None, Option(help="Iteration in s of a pipeline that this one waits for.")] = None,
    power: PowerOption = None,
    frontier: Annotated[int | None, Option(help=_FRONTIER, max=100_000)] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder for plans, table and picture.")] = None,
    format_: Annotated[Literal["yaml", "lowtime"], Option("--format", help="lowtime: for a Zeus server.")] = "yaml",
    solver: Annotated[Literal["lp", "lowtime", "both"], Option(help="How to plan; both for a comparison.")] = "lp",
    gpus_per_rank: Annotated[int, Option(help="GPUs per rank; the profile is of one GPU, results of all.")] = 1,
    clock_latency: Annotated[float | None, Option(help=_LATENCY, min=0.0, max=1.0)] = None,
    ranks_per_host: Annotated[int, Option(help="Ranks that share a host and its driver.", min=1)] = 1,
    json_: JsonFlag = False,
) -> None:
    """Plan the clock of each instruction from a profile: least energy for a deadline, slowdown, straggler or power.

    Give at most one of --slowdown, --deadline, --straggler, --power and --frontier.
    Without any of them, the plan takes no more time than at max clocks.
    The table compares the plan with simpler ones that get the same time.
    Its gap shows how far the plan's energy can be above the least possible.
    """
    from pfo_fs.cli import plan_parts
    from pfo_fs.planner import (
        Plan,
        Planner,
        Problem,
        SwitchCosts,
        all_maximum,
        assumed_costs,
        even_deadlines,
        even_hosts,
        make_pipeline,
        read_profile,
        solve_frontier,
    )

    given = {"slowdown": slowdown, "deadline": deadline, "straggler": straggler, "power": power, "frontier": frontier}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) > 1:
        wrong_usage(f"give only one of {', '.join('--' + name for name in asked)}")
    if frontier is not None and solver != "lp":
        wrong_usage("--frontier works with --solver lp only; leave --solver out, or give lowtime one plan at a time")
    waiting_w = plan_parts.blocking_power_asked_w(p2p_power, gpu)
    measured = plan_parts.read_dump(profile) if profile.is_dir() else read_profile(profile)
    pipeline = make_pipeline(schedule, measured.num_stages, num_microbatches, num_ranks=num_ranks)
    problem = Problem(pipeline, measured, waiting_w, 0.0, SwitchCosts(), gpus_per_rank)
    if clock_latency is not None:
        hosts = even_hosts(len(problem.pipeline.orders), ranks_per_host)
        problem = replace(problem, switch_costs=assumed_costs(clock_latency, gpus_per_rank, hosts))
    for warning in problem.warnings:
        say(("warning: ", "yellow"), warning, to=err)
    if output is not None:
        plan_parts.make_folder(output, frontier or 0, format_)
    if frontier is not None:
        with err.status("planning ..."):
            plans = list(solve_frontier(problem, even_deadlines(Planner(problem), frontier)))[::-1]
        rows: list[tuple[str, Plan | str]] = [("max clocks", all_maximum(problem))]
        rows += [(f"plan {number:05d}", found) for number, found in enumerate(plans)]
        written = plan_parts.write_plans(plans, output, format_, frontier=True) if output else []
        step = -(-len(rows) // _MAX_ROWS)
        shown = [rows[0], *rows[-1:0:-step][::-1]]
    else:
        rows = shown = plan_parts.find_plans(problem, asked, solver)
        best = rows[-1][1]
        if isinstance(best, str):
            fail(best)
        written = plan_parts.write_plans([best], output, format_, frontier=False) if output else []
    if json_:
        print_json({"plans": plan_parts.as_json(rows), "files": [str(path) for path in written]})
        return
    out.print(plan_parts.plans_table(shown))
    for name, found in rows:
        if isinstance(found, str):
            say(f"{name}: {found}")
    if power is not None and isinstance(last := rows[-1][1], Plan) and last.average_power_w < 0.97 * power:
        say(f"even the fastest plan draws less than {power:g} W (all GPUs of the pipeline together)", to=err)
    if written:
        others = f" and {len(written) - 1} more in that folder" if len(written) > 1 else ""
        say(f"written: {written[0]}{others}")
