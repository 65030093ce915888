"""The planner against lowtime: the same profile, blocking power and exact evaluation, in one run.

    python benchmarks/planner.py [--data ../shared/data] [--parts plans,lowtime,growth] [--json FILE]

Needs `pip install -e '.[benchmark]'`, and the published profiles of the Perseus artifact in `--data` (it says so and
stops where they are absent). 8 stages, 1F1B.

- plans: for 12, 24, 48 and 96 micro-batches, seconds for one plan at the all-maximum iteration time (a new planner, its
  program built from nothing), for a frontier of 100 deadlines, the certified gap over 20 deadlines, evenly spaced from
  the fastest plan to that of least energy; the saving against Table 6.
- lowtime: its whole run for 12 and 24 micro-batches; at each of its plans' iteration times, exactly evaluated, our plan
  for that deadline against its plan. For 48 and 96 its run is cut off
  after `--limit` seconds, what is left is taken to cost what the last plans cost, and the plans so far are compared.
- growth: one plan at the all-maximum time for 8 x 96, 16 x 256, 32 x 512 and 64 x 1,024, each in a process of its own.

The published energies are per GPU; the paper's Table 6 scales time and energy alike, which leaves the savings as here.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import random
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import _common as common
import yaml

from pfo_fs.planner import (
    Measurement,
    Plan,
    Planner,
    Problem,
    Profile,
    all_maximum,
    even_deadlines,
    lowtime_plans,
    make_pipeline,
    read_profile,
    solve_frontier,
)

CONFIGURATIONS = {
    "gpt3-175b+a100_sxm": ("gpt3-175b+a100_sxm_bf16.csv", 83.64),
    "gpt3-175b+a40": ("gpt3-175b+a40_bf16.csv", 70.38),
    "bloom+a100_sxm": ("bloom+a100_sxm_bf16.csv", 83.64),
    "bloom+a40": ("bloom+a40_bf16.csv", 70.38),
}
MICROBATCHES = (12, 24, 48, 96)
GROWTH = ((8, 96), (16, 256), (32, 512), (64, 1024))
STAGES = 8


def problem_of(profile: Profile, power_w: float, microbatches: int, stages: int = STAGES) -> Problem:
    return Problem(make_pipeline("1f1b", stages, microbatches), profile, power_w)


def bench_plans(profile: Profile, power_w: float, microbatches: int, published: float | None) -> dict[str, Any]:
    problem = problem_of(profile, power_w, microbatches)
    maximum = all_maximum(problem)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        planner = Planner(problem_of(profile, power_w, microbatches))
        plan = planner.at(deadline=maximum.iteration_time_s)
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    frontier = list(solve_frontier(problem, even_deadlines(planner, 100)))
    frontier_s = time.perf_counter() - began
    gaps = [planner.at(deadline=d).gap or 0.0 for d in even_deadlines(planner, 20)]
    return {
        "plan_s": statistics.median(seconds),
        "frontier_s": frontier_s,
        "frontier_points": len(frontier),
        "gap_mean": statistics.fmean(gaps),
        "gap_worst": max(gaps),
        "saving_percent": 100 * (1 - plan.energy_j / maximum.energy_j),
        "published_percent": published,
    }


def bench_lowtime(profile: Profile, power_w: float, microbatches: int, limit_s: float) -> dict[str, Any]:
    problem = problem_of(profile, power_w, microbatches)
    plans: list[Plan] = []
    said: list[float] = []
    began = time.perf_counter()
    for computed_s, plan in lowtime_plans(problem):
        plans.append(plan)
        said.append(computed_s)
        if time.perf_counter() - began > limit_s:
            break
    else:
        limit_s = 0.0
    lowtime_s = time.perf_counter() - began
    gc.collect()
    gc.freeze()  # what lowtime leaves behind is not ours to go through
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        planner = Planner(problem)
        list(solve_frontier(problem, even_deadlines(planner, 100)))
        seconds.append(time.perf_counter() - began)
    ours_s = statistics.median(seconds)
    result: dict[str, Any] = {"lowtime_s": lowtime_s, "lowtime_plans": len(plans), "our_frontier_one_core_s": ours_s}
    if limit_s:  # it goes on to the fastest plan, in steps of a millisecond
        left = (said[-1] - planner.fastest_s) / 0.001
        result["lowtime_s_at_least"] = lowtime_s + left * (plans[-1].seconds - plans[-51].seconds) / 50
        lowtime_s = result["lowtime_s_at_least"]
    ratios = []
    for start in range(0, len(plans), 100):
        theirs = plans[start : start + 100]
        ours = planner.at_each([plan.iteration_time_s for plan in theirs])
        ratios += [mine.energy_j / plan.energy_j for mine, plan in zip(ours, theirs, strict=True)]
    result["deadlines_where_lowtime_is_better"] = sum(ratio > 1 for ratio in ratios)
    result["energy_ratio_mean"] = statistics.fmean(ratios)
    result["energy_ratio_best"], result["energy_ratio_worst"] = min(ratios), max(ratios)
    result["lowtime_s_over_ours"] = lowtime_s / ours_s
    return result


def grow(profile: Profile, power_w: float, stages: int, microbatches: int) -> dict[str, Any]:
    """One plan of a large pipeline whose stages are the profile's, up to 7 % faster than the last."""
    rng = random.Random(0)
    measurements = {}
    for stage in range(stages):
        share = 1.0 if stage == stages - 1 else rng.uniform(0.93, 1.0)
        for name in ("forward", "backward"):
            measurements[stage, name] = [
                Measurement(m.frequency_mhz, m.time_s * share, m.energy_j * share)
                for m in profile.measurements[stage * STAGES // stages, name]
            ]
    began = time.perf_counter()
    problem = problem_of(Profile(measurements), power_w, microbatches, stages)
    maximum = all_maximum(problem)
    plan = Planner(problem).at(deadline=maximum.iteration_time_s)
    return {
        "instructions": len(problem.pipeline.instructions),
        "seconds": time.perf_counter() - began,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "gap": plan.gap,
        "saving_percent": 100 * (1 - plan.energy_j / maximum.energy_j),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--parts", default="plans,lowtime,growth")
    parser.add_argument("--microbatches", default=",".join(map(str, MICROBATCHES)))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for lowtime at 48 and 96 micro-batches")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not (options.data / "profiles").is_dir():
        sys.exit(f"the published profiles are not there ({options.data / 'profiles'}); nothing to measure with")
    parts = options.parts.split(",")
    table6 = yaml.safe_load((options.data / "published" / "sosp24_tables.yaml").read_text())
    table6 = table6["table6_intrinsic_saving_percent"]
    results: dict[str, Any] = {}

    def report(name: str, result: dict[str, Any]) -> None:
        results[name] = result
        figures = ", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items())
        print(f"{name}: {figures}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({"machine": common.machine(), "results": results}, indent=2))

    for name, (file, power_w) in CONFIGURATIONS.items():
        path = options.data / "profiles" / file
        if not path.exists():
            print(f"{name}: its profile is not published in {path.parent}")
            continue
        profile = read_profile(path)
        for count in map(int, options.microbatches.split(",")):
            if "plans" in parts:
                report(f"{name} x{count} plans", bench_plans(profile, power_w, count, table6[name].get(count)))
            if "lowtime" in parts:
                limit_s = options.limit if count > 24 else float("inf")
                report(f"{name} x{count} lowtime", bench_lowtime(profile, power_w, count, limit_s))
    if "growth" in parts:
        profile = read_profile(options.data / "profiles" / CONFIGURATIONS["gpt3-175b+a100_sxm"][0])
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
            for stages, count in GROWTH:
                report(f"growth {stages} x {count}", pool.submit(grow, profile, 83.64, stages, count).result())


if __name__ == "__main__":
    main()
