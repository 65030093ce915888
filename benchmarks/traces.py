"""What the closed loop does with the durations of real jobs: traces, with and without slow workers, and varied jobs.

    python benchmarks/traces.py                          # all traces; about half an hour on two cores
    python benchmarks/traces.py --quick                  # one seed, 1 and 4 pipelines, 150 iterations
    python benchmarks/traces.py --only ar --nodes kind
    python benchmarks/traces.py --varied 20 --first 100 --no-traces
    PFO_FS_SCHEDULER=InstructionProfiler python benchmarks/traces.py     # another policy

Traces lie in `--data` (`../shared/data/traces` beside the checkout; left out where it is absent). Each job is simulated
from its first iteration, without any knowledge; an iteration takes its durations from a step of the trace. Varied jobs
are drawn from seeds (`varied_job` in `pfo_fs/simulator/job_generator.py`). All figures are simulated, and relative to
max clocks with the same durations. Columns, `late` being additional time:

    pipelines   number of pipelines; "slow": with those that are slow for good (left out otherwise)
    plan        the plan in force at the end: saved and late over all steps of the trace, without noise and with all
                latencies known; "worst" is the latest of these steps
    known       the same for a plan by one who knows all steps (`ScenarioPlanner`), at most 0.1 % late
    run         saved and late over the whole run, profiling and plans that were tried included
    first       iteration of the first plan
    settled     iteration since which the last plan is in force; "-" if the scheduler did not keep it to the end
    alarms      after the scheduler had settled: schedules that measure again, or are for a straggler. False alarms in
                traces, whose steps stay the same
    off         how far what the scheduler stated (in its model, which `pfo-fs status` and `report` print) was from the
                truth, in percentage points: the median and the worst of its statements about lateness, and the worst
                about energy. The truth is what the schedule that it speaks of does over all steps of the trace
    within      of the figures with an error, the share that was within twice the standard error, which is what status
                and report print; "-" where errors are not stated
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _known_plans import Known, judged, known_plan
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pfo_fs.autotune.status_text import TIMES_THE_ERROR
from pfo_fs.device.simulated.node_physics import node_physics
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, SimulatedJob, read_trace, summarize, varied_job
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.ranks import RankSchedules
from pfo_fs.simulator.summary import judged_iterations

PIPELINES = (1, 2, 4, 8, 16)
_ROUNDING = 1e-9
"""Max clocks save exactly nothing, which is computed with this error at most."""
_MEMORY = Path("/dev/shm")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


class Case(NamedTuple):
    """A job to simulate.

    Attributes:
        trace: The trace; None for a varied job.
        seed: The seed of a varied job; 0 for a trace.
        pipelines: The number of pipelines of a trace.
        slow_workers: Whether pipelines that are slow for good are kept.
        node: The kind of node, or `launch`; of a trace.
    """

    trace: Path | None
    seed: int = 0
    pipelines: int = 1
    slow_workers: bool = True
    node: str = "kind"

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"varied {self.seed}" if self.trace is None else self.trace.name.split(".")[0]

    def job(self) -> SimulatedJob:
        """The job itself."""
        if self.trace is None:
            return varied_job(self.seed)
        trace = read_trace(self.trace, pipelines=self.pipelines, slow_workers=self.slow_workers)
        return trace.job(nodes=None if self.node == "launch" else NodeSettings(node_physics(self.node), "device"))


def cases(data: Path, nodes: Sequence[str], quick: bool) -> Iterator[Case]:
    """The jobs of all traces: healthy pipelines by number, and where there are slow ones all pipelines of the trace."""
    paths = sorted([*data.glob("traces/*.csv"), *data.glob("traces/*.csv.gz")])
    if not paths:
        print(f"{data / 'traces'} is absent or empty: no traces are simulated", file=sys.stderr)
    for path in paths:
        healthy, everyone = read_trace(path, slow_workers=False), read_trace(path)
        for node in nodes:
            for pipelines in (1, 4) if quick else PIPELINES:
                if pipelines <= len(healthy.dp_ranks):
                    yield Case(path, 0, pipelines, False, node)
            if healthy.left_out:
                yield Case(path, 0, len(everyone.dp_ranks), True, node)


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
    late, saved = model.get("time_late", model.get("more_time")), model.get("energy_saved")
    if late is None:
        return None
    of_saved = None if saved is None else Figure(saved, model.get("energy_saved_error"))
    return Statement(number, Figure(late, model.get("more_time_error")), of_saved)


def row_of(case: Case, seed: int, iterations: int, slowdown: float, known: Known | None) -> dict[str, Any]:
    """Simulates a job; returns its row."""
    began, job = time.perf_counter(), case.job()
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        asked = {} if slowdown == 1 else {"slowdown": slowdown}
        settings = PFOSettings(profile_steps=5, scheduler_args=asked)
        play = Play(job.cluster(seed), Path(folder) / "pfo", settings)
        played, statements, settled_number = [], [], None
        for iteration in play.run(iterations):
            played.append(iteration)
            scheduler = play.coordinator.scheduler
            # It speaks of the schedule that was published last, which is in force some iterations later.
            newest = max(play.folder.schedule_numbers(), default=-1)
            said = statement_of(scheduler.model() if scheduler else {}, newest)
            if said is not None and (not statements or said[1:] != statements[-1][1:]):
                statements.append(said)
            if settled_number is None:
                current = play.folder.read_current()
                if current is not None and current.converged and current.number == iteration.number:
                    settled_number = iteration.number
        summary = summarize(play, played)
        alarms = None if settled_number is None else _alarms(play, settled_number)
        late, saved = _off(play, statements)
    stated = [each for each in (*late, *saved) if each.error is not None]
    return {
        "job": case.name,
        "pipelines": job.pipelines,
        "slow_workers": case.slow_workers,
        "node": case.node,
        "seed": seed,
        "iterations": iterations,
        "slowdown": slowdown,
        **{name: summary.as_json()[name] for name in ("plan_saved", "plan_late", "run_saved", "run_late")},
        "worst_step_late": summary.worst_step_late,
        "known_saved": known.saved if known else None,
        "known_late": known.late if known else None,
        "first": summary.deployed_at,
        "settled": summary.settled_at if summary.settled else None,
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


def _alarms(play: Play, settled: int) -> int:
    """How many schedules after number `settled` measure again, or are for a straggler."""
    indexes = [play.folder.read_index(number) for number in play.folder.schedule_numbers() if number > settled]
    return sum(bool(index.steps or index.source.plan_inputs.slow_pipelines) for index in indexes if index is not None)


def _off(play: Play, statements: Sequence[Statement]) -> tuple[list[Figure], list[Figure]]:
    """How far stated lateness and stated savings were from the truth, each with the error that was stated."""
    truth: dict[str, Known] = {}
    late_off, saved_off = [], []
    for number, late, saved in statements:
        schedules: RankSchedules = play.schedules_of(number) if number >= 0 else [{}] * play.cluster.pipelines
        key = repr(schedules)
        if key not in truth:
            truth[key] = judged(judged_iterations(play.cluster, schedules))
        late_off.append(Figure(late.value - truth[key].late, late.error))
        if saved is not None:
            saved_off.append(Figure(saved.value - truth[key].saved, saved.error))
    return late_off, saved_off


# ---- tables


def rows_of(case: Case, seeds: Sequence[int], iterations: int, slowdown: float, oracle: bool) -> list[dict[str, Any]]:
    """The rows of a job, one per seed."""
    known: dict[int, Known | None] = {}
    for seed in seeds if oracle else ():
        same = case.trace is not None and known  # plans for a trace are judged by its steps, whatever the seed
        known[seed] = known[seeds[0]] if same else known_plan(case.job(), seed, iterations, slowdown)
    return [row_of(case, seed, iterations, slowdown, known.get(seed)) for seed in seeds]


def totals_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the worst of all rows, for each job with or without its slow workers, by node."""
    found = {}
    for row in rows:
        name = "varied" if row["job"].startswith("varied") else row["job"]
        found.setdefault((name, row["slow_workers"], row["node"]), []).append(row)
    return {
        f"{name}{' with slow workers' if slow and name != 'varied' else ''}, {node}": {
            "rows": len(group),
            **{f"{key}_median": median(row[key] for row in group) for key in ("plan_saved", "run_saved")},
            **{f"{key}_worst": max(row[key] for row in group) for key in ("plan_late", "run_late", "worst_step_late")},
            "known_saved_median": _median([row["known_saved"] for row in group]),
            "first_median": _median([row["first"] for row in group]),
            "not_settled": sum(row["settled"] is None for row in group),
            "alarms": sum(row["alarms"] or 0 for row in group),
            "late_off_median": _median([row["late_off_median"] for row in group]),
            "late_off_worst": _worst([row["late_off_worst"] for row in group]),
            "saved_off_worst": _worst([row["saved_off_worst"] for row in group]),
            "within_error": _share(group),
        }
        for (name, slow, node), group in found.items()
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
    head = "job pipelines node seed plan late worst known late run late first settled alarms off worst energy within"
    for name in head.split():
        table.add_column(name, justify="left" if name in ("job", "node") else "right", no_wrap=True)
    for row in rows:
        slow = " slow" if row["slow_workers"] and not row["job"].startswith("varied") else ""
        shares = ("plan_saved", "plan_late", "worst_step_late", "known_saved", "known_late", "run_saved", "run_late")
        counts = ["-" if row[key] is None else str(row[key]) for key in ("first", "settled", "alarms")]
        table.add_row(
            row["job"],
            f"{row['pipelines']}{slow}",
            row["node"],
            str(row["seed"]),
            *(_percent(row[key]) for key in shares),
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
    plain = ("rows", "first_median", "not_settled", "alarms")
    for key in next(iter(totals.values()), {}):
        cells = [each[key] for each in totals.values()]
        table.add_row(key, *("-" if c is None else f"{c:g}" if key in plain else _percent(c) for c in cells))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="each job is simulated with each")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--nodes", nargs="+", default=["kind", "launch"])
    parser.add_argument("--only", help="only traces whose name contains this")
    parser.add_argument("--no-traces", action="store_true", help="simulate varied jobs only")
    parser.add_argument("--varied", type=int, default=0, help="number of varied jobs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first varied job")
    parser.add_argument("--no-known", action="store_true", help="leave out the plan with full knowledge")
    parser.add_argument("--quick", action="store_true", help="one seed, 1 and 4 pipelines, 150 iterations")
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--json", action="store_true", help="one JSON object per row, and one with the totals")
    parser.add_argument("--data", type=Path, default=SHARED)
    args = parser.parse_args()
    seeds, iterations = (args.seeds[:1], min(150, args.iterations)) if args.quick else (args.seeds, args.iterations)
    todo = [] if args.no_traces else list(cases(args.data, args.nodes, args.quick))
    todo = [case for case in todo if not args.only or args.only in case.name]
    todo += [Case(None, seed, node="own") for seed in range(args.first, args.first + args.varied)]
    rows: list[dict[str, Any]] = []
    of_case = partial(rows_of, seeds=seeds, iterations=iterations, slowdown=args.slowdown, oracle=not args.no_known)
    with ProcessPoolExecutor(args.workers) as pool:
        running = {pool.submit(of_case, case): case for case in todo}
        for done in as_completed(running):
            try:
                new = done.result()
            except Exception as error:  # one broken job must not hide the others
                print(f"{running[done]}: {error!r}", file=sys.stderr, flush=True)
                continue
            rows += new
            for row in new:
                print(
                    json.dumps(row) if args.json else f"{row['job']} {row['node']} {row['pipelines']}",
                    file=None if args.json else sys.stderr,
                    flush=True,
                )
    if not rows:
        return
    rows.sort(key=lambda row: (row["job"], row["slow_workers"], row["node"], row["pipelines"], row["seed"]))
    totals = totals_of(rows)
    if args.json:
        print(json.dumps(totals))
        return
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table_of(rows))
    console.print(totals_table(totals))


if __name__ == "__main__":
    main()
