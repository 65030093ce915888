"""What each heuristic wins: planner, device and autotune with all of them, and without one at a time.

    python benchmarks/ablate.py --out rows.jsonl                       # all parts; hours
    python benchmarks/ablate.py --out rows.jsonl --part planner --jobs 40
    python benchmarks/ablate.py --out rows.jsonl --part loop --only plateaus --jobs 8
    python benchmarks/ablate.py --out rows.jsonl --table               # only prints what is there

Each row goes into the file as soon as it is known; a run that is repeated, or asked for more jobs, adds what is
missing. After a change of the code, begin another file. The traces and, in part planner, the published profiles in
`--data` come first; other jobs are drawn from seeds (`--first`), and in part loop every other one varies as production
traces do. What is switched off, and how, is in `_heuristics.py`. One at a time hides what two do for each other: before
several go, switch them off together.

Parts:

    planner   one plan at the time of max clocks, from the true times and powers, with changes that cost nothing
              and with those of the job's nodes (10 ms late without nodes); as the planner evaluates it
    device    such a plan on simulated nodes, with clock processes that know no latency at first, `--iterations` long
    loop      a whole job from its first iteration without any knowledge; the plan that is in force at the end

Columns, in percentage points and over the jobs of a heuristic; "worth" is the energy saved less twice the time lost:

    median, mean, error   of the worth that is lost without the heuristic, with the standard error of the mean
    worst, best           the job that loses most without it, and the one that gains most
    changed               jobs in which anything is different without it
    rescued, harmed       jobs that lose more than one point without it, and that gain more than one
    late                  mean of the time lost without it, beyond that with it
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as count_from
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from _heuristics import HEURISTICS, PARTS, Heuristic, switched_off
from _quick_clocks import without_clocks
from _yield_jobs import known, known_switching, problem_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pfo_fs.device.simulated.node_physics import node_physics
from pfo_fs.planner import Plan, Planner, Problem, SwitchCosts, all_maximum
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, SimulatedJob, generated_job, read_trace, summarize, varied_job
from pfo_fs.simulator.nodes import NodeSettings

FIRST_SEED = 500_000
TIME_COUNTS = 2.0
"""A share of time counts as twice that share of energy: lost time is a broken promise."""
RESCUED = 0.01
ALL_ON = "all on"
_MEMORY = Path("/dev/shm")
_LARGEST_KNOWN, _NODES = 400, (("A100 node", 1, 8), ("A100 node", 8, 1), ("H100 node", 8, 1))
"""Published profiles of at most so many instructions are planned on nodes of these kinds, with so many GPUs per stage
and stages per node: where drivers are slow and GPUs many, plans depend on other heuristics than those of small jobs."""
_SKIPPED = 5
"""In part device, the first iterations are left out: no job has a plan then."""
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


class Result(NamedTuple):
    """Energy saved and time lost against max clocks with the same noise, relative."""

    saved: float
    late: float

    @property
    def worth(self) -> float:
        return self.saved - TIME_COUNTS * max(0.0, self.late)


# ---- the jobs


def jobs(part: str, data: Path, first: int, count: int, largest: int) -> Iterator[SimulatedJob]:
    """The traces with one pipeline, on nodes and without; published profiles; and then so many jobs from seeds."""
    for path in sorted(data.glob("traces/*.csv.gz")):
        for nodes in (NodeSettings(node_physics("kind"), "device"), None):
            if nodes is not None or part != "device":
                job = read_trace(path, pipelines=1, slow_workers=False).job(nodes=nodes)
                yield replace(job, name=f"{path.name.split('.')[0]}, {'nodes' if nodes else 'launch'}")
    for job in known(data) if part == "planner" and (data / "profiles").is_dir() else ():
        if len(job.pipeline.instructions) <= _LARGEST_KNOWN:
            for kind, gpus, stages in _NODES:
                nodes = NodeSettings(node_physics(kind), "device", gpus, stages)
                yield replace(job, name=f"{job.name}, {kind} {gpus}x{stages}", nodes=nodes)
            yield job
    found = 0
    for seed in count_from(first):
        if found >= count:
            return
        job = generated_job(seed)
        if len(job.pipeline.instructions) > largest or (part == "device" and not changes_late_clocks(job)):
            continue
        yield varied_job(seed) if part == "loop" and found % 2 else job
        found += 1


def changes_late_clocks(job: SimulatedJob) -> bool:
    """Whether clocks act some time after the call of a clock process, and a plan changes them in each rank."""
    if job.nodes is None or not any(job.nodes.physics.settle_s(mhz) for mhz in job.truth.clocks_mhz):
        return False
    return len(plan_of(priced(job)).changes) >= 2 * len(job.pipeline.orders)


def priced(job: SimulatedJob) -> Problem:
    """The job's true times and powers, with what changes cost on its nodes."""
    problem = problem_of(job)
    if job.nodes is None:
        return replace(problem, switch_costs=SwitchCosts(acts_late_s=job.nuisances.switch_s))
    true = known_switching(job)
    return replace(problem, profile=without_clocks(problem.profile, true.slow_mhz), switch_costs=true.costs)


def plan_of(problem: Problem) -> Plan:
    """A plan at the time of max clocks, made as quickly as for a running job."""
    planner = Planner(problem)
    return planner.at(deadline=max(planner.fastest_s, all_maximum(problem).iteration_time_s))


# ---- the parts


def planned(job: SimulatedJob) -> dict[str, Result]:
    """The part `planner`: a result with free changes, and one with costly ones."""
    results = {}
    for kind, problem in (("free", problem_of(job)), ("costly", priced(job))):
        plan, full = plan_of(problem), all_maximum(problem)
        saved, late = 1 - plan.energy_j / full.energy_j, plan.iteration_time_s / full.iteration_time_s - 1
        results[kind] = Result(saved, late)
    return results


def followed(job: SimulatedJob, iterations: int) -> dict[str, Result]:
    """The part `device`."""
    plan, cluster = plan_of(priced(job)), job.cluster(1)
    schedules = {rank: [("", mhz) for _, mhz in each.frequencies] for rank, each in enumerate(plan.schedules())}
    clocks = cluster.clocks_of([schedules] * cluster.pipelines)
    played = [cluster.run(clocks) for _ in range(iterations)][_SKIPPED:]
    saved = 1 - sum(each.energy_j for each in played) / sum(each.full_energy_j for each in played)
    late = sum(each.time_s for each in played) / sum(each.full_time_s for each in played) - 1
    return {"": Result(float(saved), float(late))}


def looped(job: SimulatedJob, iterations: int, seconds: float) -> dict[str, Result]:
    """The part `loop`: the plan at the end, and the whole run."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        play, played = Play(job.cluster(1), Path(folder) / "pfo", PFOSettings(profile_steps=5)), []
        while len(played) < iterations or sum(each.time_s for each in played) < seconds:
            played += play.run(iterations)
        summary = summarize(play, played)
    return {"": Result(summary.energy_saved, summary.slowdown), "run": Result(summary.run_saved, summary.run_late)}


def result_of(part: str, job: SimulatedJob, iterations: int, seconds: float) -> dict[str, Result]:
    """What a job delivers, with the heuristics that are on now."""
    if part == "planner":
        return planned(job)
    return followed(job, iterations) if part == "device" else looped(job, iterations, seconds)


# ---- rows and table


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; an incomplete last line, of a run that was ended, is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return list({(row["part"], row["heuristic"], row["job"], row["kind"]): row for row in rows}.values())


def missing(
    part: str, chosen: Sequence[SimulatedJob], heuristics: Sequence[Heuristic | None], done: set[tuple[str, str, str]]
) -> Iterator[tuple[SimulatedJob, Heuristic | None]]:
    """What is still to be run, job by job, so that a run that is ended has all rows of some jobs."""
    for job in chosen:
        for heuristic in heuristics:
            if (part, heuristic.name if heuristic else ALL_ON, job.name) not in done:
                yield job, heuristic


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """A line for each heuristic, the ones that win most first."""
    on = {(row["part"], row["job"], row["kind"]): row for row in rows if row["heuristic"] == ALL_ON}
    rooms = {heuristic.name: heuristic.room for heuristic in HEURISTICS}
    lost: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        before = on.get((row["part"], row["job"], row["kind"]))
        if before is not None and row["heuristic"] != ALL_ON:
            own, other = Result(before["saved"], before["late"]), Result(row["saved"], row["late"])
            key = row["part"], row["kind"], row["heuristic"]
            lost[key].append((100 * (own.worth - other.worth), 100 * (other.late - own.late)))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="lost without each heuristic, in percentage points")
    for name in "part room heuristic jobs median mean error worst best changed rescued harmed late".split():
        table.add_column(name, justify="left" if name in ("part", "room", "heuristic") else "right", no_wrap=True)

    def rank(key: tuple[str, str, str]) -> tuple[int, str, float]:
        return PARTS.index(key[0]), key[1], -fmean(worth for worth, _ in lost[key])

    for key in sorted(lost, key=rank):
        part, kind, name = key
        worths = [worth for worth, _ in lost[key]]
        error = stdev(worths) / math.sqrt(len(worths)) if len(worths) > 1 else math.nan
        figures = (median(worths), fmean(worths), error, max(worths), min(worths))
        table.add_row(
            f"{part} {kind}".strip(),
            rooms.get(name, "-"),
            name,
            str(len(worths)),
            *(f"{figure:.2f}" for figure in figures),
            str(sum(abs(worth) > 1e-6 for worth in worths)),
            str(sum(worth > 100 * RESCUED for worth in worths)),
            str(sum(worth < -100 * RESCUED for worth in worths)),
            f"{fmean(late for _, late in lost[key]):.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of rows, JSON lines; it is added to")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--only", action="append", help="heuristics whose name contains this")
    parser.add_argument("--jobs", type=int, default=50, help="number of drawn jobs of each part")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="seed of the first drawn job")
    parser.add_argument("--largest", type=int, default=100, help="drawn jobs have at most so many instructions")
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=100.0, help="in part loop, jobs run at least so long")
    parser.add_argument("--no-traces", action="store_true")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--data", type=Path, default=SHARED)
    args = parser.parse_args()
    for part in [] if args.table else args.part or PARTS:
        done = {(row["part"], row["heuristic"], row["job"]) for row in rows_in(args.out)}
        wanted = [each for each in HEURISTICS if not args.only or any(text in each.name for text in args.only)]
        heuristics = [None, *(each for each in wanted if each.part == part)]
        data = Path("/nonexistent") if args.no_traces else args.data
        chosen = list(jobs(part, data, args.first, args.jobs, args.largest))
        for job, heuristic in missing(part, chosen, heuristics, done):
            began, name = time.perf_counter(), heuristic.name if heuristic else ALL_ON
            try:
                with switched_off(heuristic):
                    results = result_of(part, job, args.iterations, args.seconds)
            except Exception as error:  # one broken job must not hide the others
                print(f"{part}, {name}, {job.name}: {error!r}", file=sys.stderr, flush=True)
                continue
            seconds = time.perf_counter() - began
            with args.out.open("a") as file:
                for kind, found in results.items():
                    row = {"part": part, "heuristic": name, "job": job.name, "kind": kind, **found._asdict()}
                    file.write(json.dumps({**row, "seconds": seconds}) + "\n")
    Console(width=None if sys.stdout.isatty() else 160).print(table_of(rows_in(args.out)))


if __name__ == "__main__":
    main()
