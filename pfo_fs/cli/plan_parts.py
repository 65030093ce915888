"""The parts of `pfo-fs plan`: reads profiles and Zeus's dumps, makes plans, and shows and writes them."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

from rich.table import Table

from pfo_fs.cli.terminal import table
from pfo_fs.errors import ConfigError, PfoError, PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.planner import (
    Plan,
    Planner,
    Problem,
    Profile,
    all_maximum,
    blocking_power_w,
    lowtime_plan,
    one_frequency,
    one_per_stage,
    read_profile,
)
from pfo_fs.planner.profile_csv import COLUMNS, table_text
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.pictures import plan_svg
from pfo_fs.reports.wording import percent
from pfo_fs.schedule_yaml import format_schedule_yaml
from pfo_fs.scheduler import format_lowtime_plan
from pfo_fs.store import load_dump

_PROF = re.compile(r"(\d{1,9})\.prof\.json")


def read_dump(folder: Path) -> Profile:
    """Returns a job's profile from the dump that a Zeus server, or pfo-fs with `PFO_FS_DUMP_DATA`, made of its results.

    Raises:
        PlanError: A file is missing or malformed, or the results do not fit to the schedules.
    """
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := _PROF.fullmatch(path.name)))
    if not numbers:
        raise PlanError(f"{folder}: is not the dump of a job: there is no <n>.prof.json in it")
    stages = {info.rank: info.pp_rank for info in load_dump(RankInfo, folder)}
    took: dict[tuple[int, str, int], list[tuple[float, float]]] = defaultdict(list)
    for number in numbers:
        clocks = {schedule.rank: schedule.frequencies for schedule in load_dump(FrequencySchedule, folder, number)}
        for result in load_dump(ProfilingResult, folder, number):
            for name in ("forward", "backward"):
                mhz = [clock for instruction, clock in clocks.get(result.rank, ()) if instruction == name]
                times_s, energies_j = result.time_breakdown.get(name, []), result.energy_breakdown.get(name, [])
                lengths = {*map(len, times_s), *map(len, energies_j)}
                if result.rank not in stages or len(times_s) != len(energies_j) or lengths - {len(mhz)}:
                    raise PlanError(
                        f"{folder}: the result of rank {result.rank} in {number}.prof.json does not have {len(mhz)} "
                        f"times and energies of {name} in each iteration, as its schedule has"
                    )
                for clock, *each in zip(len(times_s) * mhz, chain(*times_s), chain(*energies_j), strict=True):
                    took[stages[result.rank], name, clock].append((each[0], each[1]))
    rows = [(*key, *map(fmean, zip(*each, strict=True))) for key, each in took.items()]
    return read_profile(folder, table_text(rows, COLUMNS))


def blocking_power_asked_w(p2p_power: float | None, gpu: str | None) -> float:
    """Returns the power of a waiting GPU by one of two options.

    Raises:
        ConfigError: Neither or both are given.
    """
    if p2p_power is not None and gpu is not None:
        raise ConfigError("give --p2p-power or --gpu, not both")
    if p2p_power is None and gpu is None:
        raise ConfigError(
            "the power of a GPU that waits for its neighbours is missing: give --p2p-power WATTS (`pfo-fs profile-p2p` "
            "measures it), or --gpu A100 or --gpu A40 for the published figures"
        )
    return p2p_power if p2p_power is not None else blocking_power_w(gpu or "")


def find_plans(problem: Problem, asked: dict[str, float], solver: str) -> list[tuple[str, Plan | str]]:
    """Returns the rows of the table, simpler plans first: name, and plan or the reason why there is none.

    Without a request, plans may take as long as at max clocks. The simpler plans always get the deadline of the
    planner's plan.

    Args:
        asked: One argument of `Planner.at`, or none for no slowdown.

    Raises:
        Impossible: The planner itself cannot fulfil the request.
        ConfigError: Only lowtime is to be used, but it cannot plan for this request.
    """
    if solver == "lowtime" and "power" in asked:
        raise ConfigError("lowtime plans for deadlines only; leave --solver out with --power")
    planner = Planner(problem)
    asked = asked or {"deadline": max(planner.fastest_s, all_maximum(problem).iteration_time_s)}
    plan = planner.at(**asked)
    deadline_s = plan.deadline_s
    simple: list[tuple[str, Callable[[], Plan]]] = [
        ("max clocks", lambda: all_maximum(problem)),
        ("one frequency", lambda: one_frequency(problem, deadline_s, plan.straggler_s)),
        ("one per stage", lambda: one_per_stage(problem, deadline_s, plan.straggler_s)),
    ]
    if solver in ("lowtime", "both"):
        simple.append(("lowtime", lambda: lowtime_plan(problem, deadline_s)))
    rows: list[tuple[str, Plan | str]] = []
    for name, make in simple:
        try:
            rows.append((name, make().replace(straggler_s=plan.straggler_s)))
        except PfoError as error:
            if name == solver:
                raise
            rows.append((name, str(error).removeprefix(f"{name.replace(' ', '-')}: ")))
    if solver != "lowtime":
        rows.append(("planned", plan))
    return rows


FRONTIER_COLUMNS = (
    "index deadline_s iteration_time_s energy_j average_power_w lower_bound_j gap clock_changes seconds".split()
)

_EXPLAINED = 8
"""A table with at most this many rows says why its last plan changes clocks as often as it does."""


def write_plans(plans: Sequence[Plan], directory: Path, format_: str, *, frontier: bool) -> list[Path]:
    """Writes plans as YAML, or as the files that lowtime writes and a Zeus server reads, and a picture of the fastest.

    Plans of a frontier are numbered from the longest deadline to the shortest, and are also in `frontier.csv`.

    Returns:
        The paths, first that of `frontier.csv` or of the plan.
    """
    plans = sorted(plans, key=lambda plan: -plan.deadline_s)
    written: dict[Path, str] = {}
    if frontier:
        table = io.StringIO()
        writer = csv.DictWriter(table, FRONTIER_COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({"index": index, **plan.summary()} for index, plan in enumerate(plans))
        written[directory / "frontier.csv"] = table.getvalue()
    for index, plan in enumerate(plans):
        schedules, comment = plan.schedules(), describe(plan)
        if format_ == "lowtime":
            written[directory / f"freqs_pipeline_{index:05d}.py"] = format_lowtime_plan(schedules, [comment])
            continue
        ranks = len(schedules)
        job = JobInfo(pp_degree=ranks, dp_degree=1, tp_degree=1, world_size=ranks)
        infos = [RankInfo(rank=r, dp_rank=0, pp_rank=r, tp_rank=0, available_frequencies=[]) for r in range(ranks)]
        text = format_schedule_yaml(schedules, infos, job, comment=comment)
        written[directory / (f"plan_{index:05d}.yaml" if frontier else "plan.yaml")] = text
    written[directory / "pipeline.svg"] = plan_svg(plans[-1])
    for path, text in written.items():
        with output_file(path) as file:
            file.write(text)
    return list(written)


def make_folder(directory: Path, points: int, format_: str) -> None:
    """Makes the folder for a frontier of `points` plans, or for one plan (0).

    Raises:
        ConfigError: The folder cannot be made, or holds plans that would stay and seem to belong to this frontier.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: the folder for --output cannot be made: {error.strerror}") from error
    if not points:
        return
    stem, suffix = ("freqs_pipeline", ".py") if format_ == "lowtime" else ("plan", ".yaml")
    names = {f"{stem}_{index:05d}{suffix}" for index in range(points)}
    if others := sorted({path.name for path in directory.glob(f"{stem}_[0-9]*{suffix}")} - names):
        raise ConfigError(
            f"{directory} holds plans of another run ({others[0]} and {len(others) - 1} more) that would stay among "
            "the new ones; give another folder, or remove them"
        )


def describe(plan: Plan) -> str:
    """Returns one line about a plan, for the top of its file."""
    waiting = "" if plan.straggler_s is None else f" over the {plan.straggler_s:.6g} s of a straggler"
    return (
        f"{_title(plan.problem)}: {plan.iteration_time_s:.6g} s per iteration, {plan.energy_j:.6g} J and "
        f"{plan.average_power_w:.5g} W{waiting}{plan.gap_text}; pfo-fs plan, solver {plan.solver}"
    )


def _title(problem: Problem) -> str:
    pipeline = problem.pipeline
    ranks = f" on {len(pipeline.orders)} ranks" if len(pipeline.orders) != pipeline.num_stages else ""
    return (
        f"{Path(problem.profile.source).stem}, {pipeline.name}, {pipeline.num_stages} stages{ranks} x "
        f"{pipeline.num_microbatches} micro-batches"
    )


def plans_table(rows: Sequence[tuple[str, Plan | str]]) -> Table:
    """Returns plans as a table; slowdowns and savings are relative to the first plan."""
    plans = [plan for _, plan in rows if isinstance(plan, Plan)]
    lines = ["gap: how far the energy can be above the least possible; changes: of clocks"]
    if plans and len(rows) <= _EXPLAINED and not plans[-1].problem.switch_costs.none:
        lines.append(plans[-1].switching)
    if plans and plans[-1].straggler_s is not None:
        lines.append(f"energy and power over the {plans[-1].straggler_s:.6g} s of the straggler, waiting included")
    columns = ("", "time s", "slower", "energy J", "saved", "power W", "gap", "changes")
    shown = table(*columns, title=_title(plans[0].problem) if plans else "", caption="\n".join(lines))
    for name, plan in rows:
        if isinstance(plan, str):
            continue
        slower = plan.iteration_time_s / plans[0].iteration_time_s - 1
        shown.add_row(
            f"[bold]{name}[/]" if name == "planned" else name,
            f"{plan.iteration_time_s:.4f}",
            percent(slower),
            f"{plan.energy_j:,.0f}",
            percent(1 - plan.energy_j / plans[0].energy_j),
            f"{plan.average_power_w:,.0f}",
            "" if plan.gap is None else percent(plan.gap, 3),
            f"{len(plan.changes)}",
        )
    return shown


def as_json(rows: Sequence[tuple[str, Plan | str]]) -> list[dict[str, object]]:
    """Returns plans as JSON objects; the last one includes its clocks."""
    documents: list[dict[str, object]] = []
    for name, plan in rows:
        documents.append({"name": name, "error": plan} if isinstance(plan, str) else {"name": name, **plan.summary()})
    last = rows[-1][1]
    if isinstance(last, Plan):
        documents[-1]["ranks"] = [
            [{"stage": i.stage, "instruction": i.name, "microbatch": i.microbatch, "mhz": mhz} for i, mhz in order]
            for order in last.orders()
        ]
    return documents
