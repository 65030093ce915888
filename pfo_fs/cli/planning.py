"""What `pfo-fs plan` does: from the command line to a planner, and from plans to tables, files and pictures."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pfo_fs.errors import ConfigError, Impossible, PfoError
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.planner import (
    Calibration,
    Plan,
    Planner,
    Problem,
    Profile,
    all_maximum,
    blocking_power_w,
    calibrate,
    even_deadlines,
    lowtime_plan,
    make_pipeline,
    one_frequency,
    one_per_stage,
    read_iterations,
    read_profile,
    solve_frontier,
)
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.frontier_picture import draw_frontier
from pfo_fs.reports.pipeline_picture import draw_pipeline
from pfo_fs.schedule_yaml import format_schedule_yaml
from pfo_fs.scheduler import format_lowtime_plan

FRONTIER_FILE = "frontier.jsonl"
FRONTIER_COLUMNS = (
    "index deadline_s iteration_time_s energy_j average_power_w lower_bound_j gap clock_changes seconds".split()
)

_SIMPLE_POINTS = 20
"""Points of the curves of simpler plans in the picture of a frontier."""


@dataclass(frozen=True)
class Request:
    """What is asked for; the fields are the options of `pfo-fs plan`."""

    profile: Path
    num_microbatches: int
    schedule: str = "1f1b"
    num_ranks: int | None = None
    p2p_power: float | None = None
    gpu: str | None = None
    gpus_per_rank: int = 1
    switch_time: float = 0.0
    delay: float = 0.0
    overhead: float = 0.0
    calibrate: Path | None = None
    derive: bool = False


def make_problem(request: Request) -> tuple[Problem, Calibration | None]:
    """Returns the problem, and its calibration if --calibrate was given.

    Raises:
        ConfigError: Neither or both of p2p_power and gpu are given, or a number is not valid.
        PlanError: The profile or the file of measured iterations is not valid.
    """
    for option in ("p2p_power", "switch_time", "delay", "overhead"):
        if (getattr(request, option) or 0.0) < 0:
            raise ConfigError(f"--{option.replace('_', '-')} is {getattr(request, option)}; it cannot be negative")
    if request.p2p_power is not None and request.gpu is not None:
        raise ConfigError("give --p2p-power or --gpu, not both")
    if request.p2p_power is None and request.gpu is None:
        raise ConfigError(
            "the power of a GPU that waits for its neighbours is missing: give --p2p-power WATTS (`pfo-fs profile-p2p` "
            "measures it), or --gpu A100 or --gpu A40 for the published figures"
        )
    power_w = request.p2p_power if request.p2p_power is not None else blocking_power_w(request.gpu or "")
    profile = read_profile(request.profile)
    pipeline = make_pipeline(
        request.schedule,
        profile.num_stages,
        request.num_microbatches,
        num_ranks=request.num_ranks,
        delay_s=request.delay,
    )
    names = sorted({instruction.name for instruction in pipeline.instructions})
    profile = _derived(profile, names, request)
    problem = Problem(
        pipeline, profile, power_w, request.overhead, request.switch_time, gpus_per_rank=request.gpus_per_rank
    )
    if request.calibrate is None:
        return problem, None
    if request.delay or request.overhead:
        raise ConfigError("--calibrate finds delay and overhead; leave --delay and --overhead out")
    calibration = calibrate(pipeline, read_iterations(request.calibrate, pipeline))
    return calibration.problem(problem), calibration


def _derived(profile: Profile, names: Sequence[str], request: Request) -> Profile:
    if request.derive:
        return profile.derived(names)
    lacking = [(s, n) for s in range(profile.num_stages) for n in names if n not in profile.instructions(s)]
    if lacking and {"forward", "backward"} <= set(profile.instructions(lacking[0][0])):
        raise ConfigError(
            f"{profile.source}: {request.schedule} runs {lacking[0][1]}, which is not in the profile; add its rows, or "
            "give --derive to estimate it from forward and backward"
        )
    return profile


def find_plans(
    problem: Problem, asked: dict[str, float], solver: str, unit_time_s: float = 0.001
) -> list[tuple[str, Plan | str]]:
    """Returns name and plan of each row of the table, simpler plans first, or the reason why a plan cannot be made.

    Without a request, plans may take as long as all instructions at the highest clock. The simpler plans get the
    deadline of the planned one, whatever was asked.

    Args:
        problem: The problem.
        asked: One argument of `Planner.at`, or none for no slowdown.
        solver: `lp`, `lowtime` or `both`.
        unit_time_s: Unit of time of lowtime, in s.

    Raises:
        Impossible: The planner itself cannot fulfil the request.
        ConfigError: Only lowtime is to be used, but it cannot plan for this request.
    """
    if solver == "lowtime" and asked.keys() & {"energy", "power"}:
        raise ConfigError("lowtime plans for deadlines only; leave --solver out with --energy and --power")
    planner = Planner(problem)
    plan = planner.at(**(asked or {"deadline": max(planner.fastest_s, all_maximum(problem).iteration_time_s)}))
    deadline_s = plan.deadline_s
    simple: list[tuple[str, Callable[[], Plan]]] = [
        ("all maximum", lambda: all_maximum(problem)),
        ("one frequency", lambda: one_frequency(problem, deadline_s, plan.straggler_s)),
        ("one per stage", lambda: one_per_stage(problem, deadline_s, plan.straggler_s)),
    ]
    if solver in ("lowtime", "both"):
        simple.append(("lowtime", lambda: lowtime_plan(problem, deadline_s, unit_time_s)))
    found: list[tuple[str, Plan | str]] = []
    for name, make in simple:
        try:
            found.append((name, make().replace(straggler_s=plan.straggler_s)))
        except Impossible as error:
            found.append((name, str(error).removeprefix(f"{name.replace(' ', '-')}: ")))
        except PfoError as error:
            if name != "lowtime" or solver == "both":
                found.append((name, str(error)))
            else:
                raise
    if solver != "lowtime":
        found.append(("planned", plan))
    return found


def frontier_points(problem: Problem, points: int, directory: Path | None, workers: int) -> tuple[int, Iterator[Plan]]:
    """Returns the number of plans, and an iterator that computes them; with a directory, they are kept there."""
    planner = Planner(problem)
    deadlines = even_deadlines(planner, points)
    file = directory / FRONTIER_FILE if directory is not None else None
    return len(set(deadlines)), solve_frontier(problem, deadlines, file, workers)


def write_plan(plan: Plan, directory: Path, format_: str, stem: str, comment: str) -> Path:
    """Writes a plan as YAML, or as the file that lowtime writes and a Zeus server reads; returns its path."""
    schedules = plan.schedules()
    if format_ == "lowtime":
        path = directory / f"{stem.replace('plan', 'freqs_pipeline')}.py"
        content = format_lowtime_plan(schedules, comment.splitlines())
    else:
        path = directory / f"{stem}.yaml"
        ranks = len(schedules)
        job = JobInfo(pp_degree=ranks, dp_degree=1, tp_degree=1, world_size=ranks)
        infos = [
            RankInfo(rank=rank, dp_rank=0, pp_rank=rank, tp_rank=0, available_frequencies=[]) for rank in range(ranks)
        ]
        content = format_schedule_yaml(schedules, infos, job, comment=comment)
    with output_file(path) as file:
        file.write(content)
    return path


def write_frontier_csv(plans: Sequence[Plan], path: Path) -> None:
    """Writes one row per plan, from the longest deadline to the shortest: in the order of their files' numbers."""
    with output_file(path) as file:
        writer = csv.writer(file)
        writer.writerow(FRONTIER_COLUMNS)
        for index, plan in enumerate(sorted(plans, key=lambda plan: -plan.deadline_s)):
            row = {"index": index, **plan.summary()}
            writer.writerow(["" if row[column] is None else row[column] for column in FRONTIER_COLUMNS])


def write_frontier(plans: Sequence[Plan], directory: Path, format_: str, pictures: bool) -> list[Path]:
    """Writes `frontier.csv`, a file per plan, and pictures; returns their paths, the table first."""
    ordered = sorted(plans, key=lambda plan: -plan.deadline_s)
    table = directory / "frontier.csv"
    write_frontier_csv(ordered, table)
    written = [table]
    for index, plan in enumerate(ordered):
        written.append(write_plan(plan, directory, format_, f"plan_{index:05d}", describe(plan)))
    if pictures:
        problem = ordered[0].problem
        maximum = all_maximum(problem)
        some = ordered[:: -(-len(ordered) // _SIMPLE_POINTS)]
        deadlines = [max(plan.deadline_s, maximum.iteration_time_s) for plan in some]
        curves = [[maximum]]
        for simple in (one_frequency, one_per_stage):
            try:
                curves.append([simple(problem, deadline_s) for deadline_s in deadlines])
            except Impossible:
                continue
        written.append(directory / "frontier.png")
        draw_frontier(ordered, written[-1], curves, _title(problem))
        written.append(directory / "pipeline.png")
        draw_pipeline(ordered[-1], written[-1])
    return written


def check_folder(directory: Path, points: int, format_: str) -> None:
    """Refuses a folder with plans that a frontier of `points` plans would not replace: they would look like part of it.

    Raises:
        ConfigError: There are such plans.
    """
    stem, suffix = ("freqs_pipeline", ".py") if format_ == "lowtime" else ("plan", ".yaml")
    names = {f"{stem}_{index:05d}{suffix}" for index in range(points)}
    if others := sorted({path.name for path in directory.glob(f"{stem}_[0-9]*{suffix}")} - names):
        raise ConfigError(
            f"{directory} holds plans of another run ({others[0]} and {len(others) - 1} more) that would stay among "
            "the new ones; give another folder, or remove them"
        )


def write_one(plan: Plan, directory: Path, format_: str, pictures: bool) -> list[Path]:
    """Writes one plan and its picture; returns their paths."""
    written = [write_plan(plan, directory, format_, "plan_00000" if format_ == "lowtime" else "plan", describe(plan))]
    if pictures:
        written.append(directory / "pipeline.png")
        draw_pipeline(plan, written[-1])
    return written


def describe(plan: Plan) -> str:
    """Returns one line about a plan, for the top of its file."""
    gap = "" if plan.gap is None else f", at most {plan.gap:.2%} above the least possible"
    waiting = "" if plan.straggler_s is None else f" over the {plan.straggler_s:.6g} s of a straggler"
    return (
        f"{_title(plan.problem)}: {plan.iteration_time_s:.6g} s per iteration, {plan.energy_j:.6g} J and "
        f"{plan.average_power_w:.5g} W{waiting}{gap}; pfo-fs plan, solver {plan.solver}"
    )


def _title(problem: Problem) -> str:
    pipeline = problem.pipeline
    ranks = f" on {len(pipeline.orders)} ranks" if len(pipeline.orders) != pipeline.num_stages else ""
    return (
        f"{Path(problem.profile.source).stem}, {pipeline.name}, {pipeline.num_stages} stages{ranks} x "
        f"{pipeline.num_microbatches} micro-batches"
    )


def plans_table(rows: Sequence[tuple[str, Plan | str]]) -> Table:
    """Returns plans as a table for people; savings are against the first plan."""
    plans = [plan for _, plan in rows if isinstance(plan, Plan)]
    table = Table(title=_title(plans[0].problem) if plans else None, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", "time s", "slower", "energy J", "saved", "power W", "gap", "changes"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, plan in rows:
        if isinstance(plan, str):
            continue
        slower = plan.iteration_time_s / plans[0].iteration_time_s - 1
        table.add_row(
            f"[bold]{name}[/]" if name == "planned" else name,
            f"{plan.iteration_time_s:.4f}",
            f"{slower + 0.0 if abs(slower) >= 5e-5 else 0.0:.2%}",
            f"{plan.energy_j:,.0f}",
            f"{1 - plan.energy_j / plans[0].energy_j:.2%}",
            f"{plan.average_power_w:,.0f}",
            "" if plan.gap is None else f"{plan.gap:.3%}",
            f"{len(plan.changes)}",
        )
    lines = ["gap: how far the energy can be above the least possible; changes: of clocks"]
    if plans and plans[-1].straggler_s is not None:
        lines.append(f"energy and power over the {plans[-1].straggler_s:.6g} s of the straggler, waiting included")
    table.caption = "\n".join(lines)
    return table


def as_json(rows: Sequence[tuple[str, Plan | str]]) -> list[dict[str, Any]]:
    """Returns plans as JSON objects for programs; the last one with its clocks."""
    found: list[dict[str, Any]] = []
    for name, plan in rows:
        found.append({"name": name, "error": plan} if isinstance(plan, str) else {"name": name, **plan.summary()})
    last = rows[-1][1]
    if isinstance(last, Plan):
        found[-1]["ranks"] = [
            [{"stage": i.stage, "instruction": i.name, "microbatch": i.microbatch, "mhz": mhz} for i, mhz in order]
            for order in last.orders()
        ]
    return found
