"""Plays the closed loop on jobs, beside plans with full knowledge: what `traces.py` and `loop_yield.py` have in common.

All figures are simulated, depend on seeds only, and are relative to max clocks with the same durations. Each job is
simulated from its first iteration, without any knowledge. Columns, `late` being additional time:

    pipelines   number of pipelines; "slow": with those that are permanently slow (left out otherwise)
    plan        the plan in force at the end: saved and late over all iterations by which plans are judged (all steps of
                a trace), without noise and with all latencies known; "worst" is the latest of these steps
    known       the same for the best plan that is at most 0.1 % late: of one who knows them all (`_known_plans.py`;
                alone `by_planner_saved` in JSON), or of all that the run has tried (`best_tried_saved`)
    ratio       plan / known, where the latter saves at least 0.5 %
    run         saved and late over the whole run, profiling and plans that were tried included
    first       iteration of the first plan
    settled     iteration since which the last plan is in force; "-" if the scheduler did not keep it to the end
    alarms      after the scheduler had settled: schedules that measure again, or are for a straggler. False alarms in
                jobs that stay the same
    off         how far what the scheduler stated (in its model, which `pfo-fs status` and `report` print) was from the
                truth, in percentage points: the median and the worst of its statements about lateness, and the worst
                about energy. The truth is what the schedule that it speaks of does over all judged iterations
    within      of the figures with an error, the share that was within twice the standard error, which is what status
                and report print; "-" where errors are not stated
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _known_plans import MOST_LATE, Known, judged, known_plan
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pfo_fs.autotune.goals import TIMES_THE_ERROR
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Iteration, Play, SimulatedJob, summarize
from pfo_fs.simulator.ranks import RankSchedules
from pfo_fs.simulator.summary import judged_iterations
from pfo_fs.store import bodies

LEAST_SAVED = 0.005
"""Where a plan with full knowledge saves less, there is no ratio."""
_ROUNDING = 1e-9
"""Max clocks save exactly nothing, which is computed with this error at most."""
_MEMORY = Path("/dev/shm")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


class Case(NamedTuple):
    """A job to simulate.

    Attributes:
        name: The name in tables.
        group: What it is counted with, beside its node.
        make: Makes the job; it can be pickled.
        node: The kind of node, or `launch`, or `own` where the job has nodes of its own.
        slow_workers: Whether pipelines that are permanently slow are kept.
        one_seed_known: Whether plans are judged by the same iterations whatever the seed.
    """

    name: str
    group: str
    make: Callable[[], SimulatedJob]
    node: str = "own"
    slow_workers: bool = False
    one_seed_known: bool = True


# ---- one run


class Figure(NamedTuple):
    """A relative figure that the scheduler states, with the error if it states one."""

    value: float
    error: float | None


class Statement(NamedTuple):
    """What the scheduler said of a schedule."""

    number: int
    late: Figure
    saved: Figure | None


def statement_of(model: dict[str, Any], number: int) -> Statement | None:
    """What a scheduler's model says of the schedule in force; None if it says nothing of its time."""
    late, saved = model.get("more_time"), model.get("energy_saved")
    if late is None:
        return None
    of_saved = None if saved is None else Figure(saved, model.get("energy_saved_error"))
    return Statement(number, Figure(late, model.get("more_time_error")), of_saved)


def row_of(case: Case, seed: int, args: argparse.Namespace, known: Known | None) -> dict[str, Any]:
    """Simulates a job; returns its row."""
    began, job = time.perf_counter(), case.make()
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        asked = {} if args.slowdown == 1 else {"slowdown": args.slowdown}
        settings = PFOSettings(profile_steps=5, scheduler_args=asked)
        play = Play(job.cluster(seed), Path(folder) / "pfo", settings)
        played, statements, settled_number = [], [], None
        while len(played) < args.iterations or sum(each.time_s for each in played) < args.seconds:
            for iteration in play.run(args.iterations):
                played.append(iteration)
                scheduler = play.coordinator.scheduler
                # It speaks of the schedule that was published last to stay, which is in force some iterations later.
                newest = _staying(play)
                said = statement_of(scheduler.model() if scheduler else {}, newest)
                if said is not None and (not statements or said[1:] != statements[-1][1:]):
                    statements.append(said)
                if settled_number is None:
                    current = play.folder.read(bodies.CurrentBody)
                    if current is not None and current.converged and current.number == iteration.number:
                        settled_number = iteration.number
        summary = summarize(play, played)
        settled_at = _settled_at(play, played, summary.plan_number) if summary.settled else None
        by_planner = best_tried = None
        alarms = None if settled_number is None else _alarms(play, settled_number)
        tried = _tried(play)
        late, saved = _off(tried, statements)
        if known is not None:  # a reference that the loop could beat would be none
            best_tried = max(plan for plan in tried.values() if plan.late <= args.slowdown - 1 + MOST_LATE)
            by_planner, known = known, max(known, best_tried)
    stated = [each for each in (*late, *saved) if each.error is not None]
    return {
        "job": case.name,
        "group": case.group,
        "pipelines": job.pipelines,
        "slow_workers": case.slow_workers,
        "node": case.node,
        "seed": seed,
        "iterations": len(played),
        "slowdown": args.slowdown,
        "plan_saved": summary.energy_saved,
        "plan_late": summary.slowdown,
        "run_saved": summary.run_saved,
        "run_late": summary.run_late,
        "worst_step_late": summary.worst_step_late,
        "known_saved": known.saved if known else None,
        "known_late": known.late if known else None,
        "by_planner_saved": by_planner.saved if by_planner else None,
        "best_tried_saved": best_tried.saved if best_tried else None,
        "ratio": summary.energy_saved / known.saved if known and known.saved >= LEAST_SAVED else None,
        "first": summary.deployed_at,
        "settled": settled_at,
        "alarms": alarms,
        "statements": len(late),
        "late_off_median": _median([abs(each.value) for each in late]),
        "late_off_worst": max((abs(each.value) for each in late), default=None),
        "saved_off_worst": max((abs(each.value) for each in saved), default=None),
        "figures_with_error": len(stated),
        "within_error": sum(abs(each.value) <= TIMES_THE_ERROR * (each.error or 0) + _ROUNDING for each in stated),
        "status": summary.status_text,
        "seconds": time.perf_counter() - began,
    }


def _staying(play: Play) -> int:
    """The number of the newest schedule that holds for ever; -1 for none."""
    indexes = (play.folder.read(bodies.IndexBody, number=n) for n in reversed(play.folder.schedule_numbers()))
    return next((index.number for index in indexes if index is not None and index.stays), -1)


def _settled_at(play: Play, played: Sequence[Iteration], last: int) -> int:
    """The first step since which, windows that measure and stragglers' plans apart, only the plan of `last` ran."""
    indexes = {
        n: play.folder.read(bodies.IndexBody, number=n) for n in {i.number for i in played} if n >= play.first_plan
    }
    under_plan = [i for i in played if i.number in indexes and indexes[i.number].stays]
    plans = {number: play.schedules_of(number) for number in {i.number for i in under_plan}}
    place = len(under_plan)
    while place and ((number := under_plan[place - 1].number) > last or plans[number] == plans[last]):
        place -= 1
    return under_plan[place].step


def _alarms(play: Play, settled: int) -> int:
    """How many schedules after number `settled` measure again, or are for a straggler."""
    indexes = [
        play.folder.read(bodies.IndexBody, number=number)
        for number in play.folder.schedule_numbers()
        if number > settled
    ]
    return sum(
        bool(not index.stays or index.source.plan_inputs.slow_pipelines) for index in indexes if index is not None
    )


def _tried(play: Play) -> dict[int, Known]:
    """What each schedule of a run truly does; -1 is max clocks."""
    truth: dict[str, Known] = {}
    by_number = {}
    for number in (-1, *play.folder.schedule_numbers()):
        schedules: RankSchedules = play.schedules_of(number) if number >= 0 else [{}] * play.cluster.pipelines
        key = repr(schedules)
        if key not in truth:
            truth[key] = judged(judged_iterations(play.cluster, schedules, as_learned=True))
        by_number[number] = truth[key]
    return by_number


def _off(truth: Mapping[int, Known], statements: Sequence[Statement]) -> tuple[list[Figure], list[Figure]]:
    """How far stated lateness and stated savings were from the truth, each with the error that was stated."""
    late_off, saved_off = [], []
    for number, late, saved in statements:
        late_off.append(Figure(late.value - truth[number].late, late.error))
        if saved is not None:
            saved_off.append(Figure(saved.value - truth[number].saved, saved.error))
    return late_off, saved_off


# ---- all runs


def add_options(parser: argparse.ArgumentParser, *, iterations: int, seconds: float) -> None:
    """Adds the options that both commands have."""
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="jobs with short iterations run at least so long"
    )
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--only", help="only jobs whose name contains this")
    parser.add_argument("--no-known", action="store_true", help="leave out the plan with full knowledge")
    parser.add_argument("--status", action="store_true", help="print the policy's last status of each job")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object per row, and one with the totals")
    parser.add_argument("--data", type=Path, default=SHARED)


def play_all(cases: Sequence[Case], seeds: Sequence[int], args: argparse.Namespace) -> None:
    """Plays each job with each seed, and prints rows and totals."""
    todo = [case for case in cases if not args.only or args.only in case.name]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.workers) as pool:
        running = {pool.submit(partial(_rows_of, seeds=seeds, args=args), case): case for case in todo}
        for done in as_completed(running):
            try:
                new = done.result()
            except Exception as error:  # one broken job must not hide the others
                print(f"{running[done]}: {error!r}", file=sys.stderr, flush=True)
                continue
            rows += new
            for row in new:
                text = f"{row['job']} {row['node']} {row['pipelines']}"
                text += f": {row['status']}" if args.status else ""
                print(json.dumps(row) if args.json else text, file=None if args.json else sys.stderr, flush=True)
    if not rows:
        return
    rows.sort(key=lambda row: (row["job"], row["slow_workers"], row["node"], row["pipelines"], row["seed"]))
    totals = totals_of(rows)
    if args.json:
        print(json.dumps(totals))
        return
    console = Console(width=None if sys.stdout.isatty() else 190)
    console.print(table_of(rows))
    console.print(totals_table(totals))


def _rows_of(case: Case, seeds: Sequence[int], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a job, one per seed."""
    known: dict[int, Known | None] = {}
    for seed in () if args.no_known else seeds:
        same = case.one_seed_known and known
        known[seed] = known[seeds[0]] if same else known_plan(case.make(), seed, args.iterations, args.slowdown)
    return [row_of(case, seed, args, known.get(seed)) for seed in seeds]


# ---- tables


def totals_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the worst of all rows, for each group of jobs, by node."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        slow = " with slow workers" if row["slow_workers"] else ""
        found.setdefault(f"{row['group']}{slow}, {row['node']}", []).append(row)
    return {
        name: {
            "rows": len(group),
            **{f"{key}_median": median(row[key] for row in group) for key in ("plan_saved", "run_saved")},
            **{f"{key}_worst": max(row[key] for row in group) for key in ("plan_late", "run_late", "worst_step_late")},
            "known_saved_median": _median([row["known_saved"] for row in group]),
            "ratio_median": _median([row["ratio"] for row in group]),
            "ratio_worst": min((row["ratio"] for row in group if row["ratio"] is not None), default=None),
            "first_median": _median([row["first"] for row in group]),
            "not_settled": sum(row["settled"] is None for row in group),
            "alarms": sum(row["alarms"] or 0 for row in group),
            "late_off_median": _median([row["late_off_median"] for row in group]),
            "late_off_worst": _worst([row["late_off_worst"] for row in group]),
            "saved_off_worst": _worst([row["saved_off_worst"] for row in group]),
            "within_error": _share(group),
        }
        for name, group in found.items()
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _share(rows: Sequence[dict[str, Any]]) -> float | None:
    stated = sum(row["figures_with_error"] for row in rows)
    return sum(row["within_error"] for row in rows) / stated if stated else None


def _percent(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows as a table; all shares in percent."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="all shares in %; late: additional time")
    head = "job pipelines node seed plan late worst known late ratio run late first settled alarms off worst energy"
    for name in [*head.split(), "within"]:
        table.add_column(name, justify="left" if name in ("job", "node") else "right", no_wrap=True)
    for row in rows:
        shares = ("plan_saved", "plan_late", "worst_step_late", "known_saved", "known_late")
        counts = ["-" if row[key] is None else str(row[key]) for key in ("first", "settled", "alarms")]
        table.add_row(
            row["job"],
            f"{row['pipelines']}{' slow' if row['slow_workers'] else ''}",
            row["node"],
            str(row["seed"]),
            *(_percent(row[key]) for key in shares),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            *(_percent(row[key]) for key in ("run_saved", "run_late")),
            *counts,
            *(_percent(row[key]) for key in ("late_off_median", "late_off_worst", "saved_off_worst")),
            _percent(_share([row]), 0),
        )
    return table


def totals_table(totals: dict[str, Any]) -> Table:
    """One column for each group of rows; shares in percent."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="by job and node; shares in %")
    table.add_column("")
    for name in totals:
        table.add_column(name, justify="right")
    plain = ("rows", "first_median", "not_settled", "alarms", "ratio_median", "ratio_worst")
    for key in next(iter(totals.values()), {}):
        cells = [each[key] for each in totals.values()]
        table.add_row(key, *("-" if c is None else f"{c:.3g}" if key in plain else _percent(c) for c in cells))
    return table
