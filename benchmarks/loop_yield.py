"""What the closed loop delivers of what a plan with full knowledge would save, for known and for generated jobs.

    python benchmarks/loop_yield.py --jobs known
    python benchmarks/loop_yield.py --jobs generated --first 1000 --seeds 20 --workers 2
    python benchmarks/loop_yield.py --jobs generated --first 7 --seeds 1 --status

Jobs: the published profiles in `--data` (known; 8 stages, 12 to 96 micro-batches), runs of 4 stages whose lengths were
measured (measured), and jobs drawn at random from a seed (generated; `pfo_fs/simulator/job_generator.py`). Those of
seeds from 1000 on are for judging: nothing in the library may be tuned on them.

Each job is simulated from its first iteration, without any knowledge: `--iterations`, or as many as `--seconds` hold.
The columns of its row:

    plan       energy saved by the best plan with full knowledge, played in the same simulator (`_yield_jobs.py`)
    stage      energy saved by the best single clock per stage, likewise
    loop       energy saved by the plan that the loop had in force at the end
    ratio      loop / plan, where the plan saves at least 0.5 %
    time       iteration time under that plan, against max clocks, with the same noise for both, and with the
               latencies of clocks that the clock processes have learned in this run
    quiet      the same without noise, with all latencies known
    first      iterations until the first plan
    last       iterations until the last plan; windows between do not count if the same plan follows
    profiling  share of all time that was lost to profiling
    run        time of the whole run against max clocks', profiling and plans that were tried included
    again      how often the loop asked for measuring windows after it had a plan, those at max clocks too
    settled    whether the loop keeps the last plan, as far as it knows

All figures are simulated, and depend on seeds only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from _yield_jobs import best_plans, jobs, noisy_mean

from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Iteration, Play, summarize
from pfo_fs.simulator.job_generator import SimulatedJob

LEAST_PLAN = 0.005
_INSTRUCTIONS, _LEAST_ITERATIONS = 20_000, 8
"""About so many instructions tell the mean time of an iteration to 0.03 %; at least so many iterations."""
LOW_RATIO, LONG_TIME = 0.85, 0.002
_MEMORY = Path("/dev/shm")


def row_of(
    job: SimulatedJob,
    iterations: int,
    seconds: float,
    noise_seed: int,
    scheduler_args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Simulates so many iterations of a job, and at least so many seconds; returns its row."""
    began = time.perf_counter()
    plan, per_stage = best_plans(job)
    planned = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        settings = PFOSettings(profile_steps=5, scheduler_args=scheduler_args or {})
        play = Play(job.cluster(noise_seed), Path(folder) / "pfo", settings)
        played: list[Iteration] = []
        while len(played) < iterations or sum(each.time_s for each in played) < seconds:
            played += play.run(iterations)
        summary = summarize(play, played)
        loop_saved, loop_time, highest_s = as_run(play, summary.plan_number)
    return {
        "job": job.name,
        "noise_seed": noise_seed,
        "instructions": len(job.pipeline.instructions),
        "iterations": len(played),
        "iteration_s": summary.full_time_s,
        "plan": plan.saved,
        "plan_changes": plan.changes,
        "plan_made_by": plan.made_by,
        "stage": per_stage.saved,
        "loop": loop_saved,
        "ratio": loop_saved / plan.saved if plan.saved >= LEAST_PLAN else None,
        "time": loop_time,
        "quiet_time": summary.slowdown,
        "quiet_loop": summary.energy_saved,
        "first": summary.deployed_at,
        "last": summary.settled_at,
        "run_time": summary.time_s / (len(played) * highest_s) - 1,
        "profiling": summary.overhead_s / summary.time_s,
        "profiling_steps": summary.profiling_steps,
        "again": summary.profiling_again,
        "settled": summary.settled,
        "status": summary.status_text,
        "plan_seconds": planned - began,
        "play_seconds": time.perf_counter() - planned,
    }


def as_run(play: Play, number: int | None) -> tuple[float, float, float]:
    """Energy saved and time lost by a schedule against max clocks, relative; with the same noise for both.

    It goes on with the clock processes of the run, which know only the latencies that they have learned.

    Returns:
        Energy saved, time lost, and the time of an iteration at max clocks in s.
    """
    cluster = play.cluster
    iterations = max(_LEAST_ITERATIONS, _INSTRUCTIONS // len(cluster.pipeline.instructions))
    time_s, energy_j = [], []
    for schedules in ([{}] if number is None else play.schedules_of(number), [{}]):
        ran = noisy_mean(cluster, schedules, iterations)
        time_s.append(ran.time_s)
        energy_j.append(ran.energy_j)
    return 1 - energy_j[0] / energy_j[1], time_s[0] / time_s[1] - 1, time_s[1]


def text_of(row: dict[str, Any]) -> str:
    """A row as a line of the table."""
    if "error" in row:
        return f"{row['job']:58.58s} {row['error']}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    first, last = ("-" if row[key] is None else row[key] for key in ("first", "last"))
    saved = f"{row['plan']:7.2%} {row['stage']:7.2%} {row['loop']:7.2%}"
    return (
        f"{row['job']:58.58s} {saved} {ratio:>5s} {row['time']:+8.3%} {row['quiet_time']:+8.3%} "
        f"{first:>5} {last:>5} {row['profiling']:9.2%} {row['run_time']:+8.2%} {row['again']:5d} "
        f"{'yes' if row['settled'] else 'NO':>7s}"
    )


def rows_of(todo: list[tuple[Any, ...]], workers: int) -> Iterator[dict[str, Any]]:
    """The rows as they come; a job that cannot be simulated has an error instead."""
    if workers <= 1:
        for each in todo:
            yield _row_or_error(each)
        return
    with ProcessPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(_row_or_error, each) for each in todo]):
            yield done.result()


def _row_or_error(each: tuple[Any, ...]) -> dict[str, Any]:
    try:
        return row_of(*each)
    except Exception as error:  # one broken job must not hide the others
        return {"job": each[0].name, "noise_seed": each[3], "error": repr(error)}


def totals_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, worst and quantiles over all rows."""
    good = [row for row in rows if "error" not in row]
    ratios = sorted(row["ratio"] for row in good if row["ratio"] is not None)
    times = sorted(row["time"] for row in good)
    firsts = [row["first"] for row in good if row["first"] is not None]

    def quantile(values: list[float], share: float) -> float | None:
        return values[round(share * (len(values) - 1))] if values else None

    return {
        "jobs": len(rows),
        "errors": len(rows) - len(good),
        "ratio_median": quantile(ratios, 0.5),
        "ratio_worst": quantile(ratios, 0.0),
        "ratio_5_percent": quantile(ratios, 0.05),
        "ratio_25_percent": quantile(ratios, 0.25),
        "ratio_below_0.85": sum(ratio < LOW_RATIO for ratio in ratios),
        "plan_saves_too_little_for_a_ratio": len(good) - len(ratios),
        "below_one_clock_per_stage": sum(row["loop"] < row["stage"] - 0.001 for row in good),
        "time_median": quantile(times, 0.5),
        "time_worst": quantile(times, 1.0),
        "time_above_0.1_percent": sum(time > 0.001 for time in times),
        "time_above_0.2_percent": sum(time > LONG_TIME for time in times),
        "first_plan_median": statistics.median(firsts) if firsts else None,
        "first_plan_worst": max(firsts, default=None),
        "without_a_plan": sum(row["first"] is None for row in good),
        "not_settled": sum(not row["settled"] for row in good),
        "last_plan_after_100": sum((row["last"] or 0) > 100 for row in good),
        "profiled_again": sum(row["again"] > 0 for row in good),
        "profiling_mean": statistics.fmean(row["profiling"] for row in good) if good else None,
        "profiling_worst": max((row["profiling"] for row in good), default=None),
        "run_time_mean": statistics.fmean(row["run_time"] for row in good) if good else None,
        "run_time_worst": max((row["run_time"] for row in good), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", choices=["known", "measured", "generated", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=20, help="number of generated jobs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first generated job")
    parser.add_argument("--noise-seeds", type=int, nargs="+", default=[1], help="each job is simulated with each")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=200, help="jobs with short iterations run at least so long")
    parser.add_argument("--only", help="only jobs whose name contains this")
    parser.add_argument("--largest", type=int, help="only jobs of at most so many instructions")
    parser.add_argument(
        "--node", default="kind", help="of known and measured jobs; launch: clocks are requested as instructions begin"
    )
    parser.add_argument(
        "--switch-time",
        type=float,
        help="plans count that GPUs stand still so many seconds at a change; `plan` does not",
    )
    parser.add_argument("--status", action="store_true", help="print the policy's last status under each row")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per row, and one with the totals")
    parser.add_argument("--data", default=str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    chosen = [
        job for job in jobs(args.jobs, Path(args.data), seeds, args.node) if not args.only or args.only in job.name
    ]
    chosen = [job for job in chosen if not args.largest or len(job.pipeline.instructions) <= args.largest]
    price = {} if args.switch_time is None else {"switch_time": args.switch_time}
    todo = [(job, args.iterations, args.seconds, seed, price) for job in chosen for seed in args.noise_seeds]
    if not args.json:
        print(f"{'':58s} {'plan':>7} {'stage':>7} {'loop':>7} ratio {'time':>8} {'quiet':>8} first  last", end=" ")
        print("profiling      run again settled")
    rows = []
    for row in rows_of(todo, args.workers):
        rows.append(row)
        print(json.dumps(row) if args.json else text_of(row), flush=True)
        if args.status and not args.json:
            print(f"    {row.get('status')} ({row.get('plan_made_by')})", flush=True)
    totals = totals_of(rows)
    if args.json:
        print(json.dumps(totals))
    else:
        for name, value in totals.items():
            print(f"{name:36s} {value if not isinstance(value, float) else format(value, '.4f')}")


if __name__ == "__main__":
    main()
