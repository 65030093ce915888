"""Plans for scenarios (`ScenarioPlanner`) on traces of real jobs: made from some steps, judged by the others.

    python benchmarks/scenarios.py [--seen 16] [--slowdown 1.0005] [--only st,ar] [--no-bound]

Traces lie in `--data` (`../shared/data/traces` beside the checkout; it says so and stops where they are absent), of
which at most four pipelines are taken. GPUs are the A100 model with the trace's stages. Which steps are seen is drawn
from `--seed`. Columns, `late` being additional mean time, relative to max clocks as are savings:

    case        the trace; "slow": with the pipelines that are slow for good, each with clocks of its own
    costs       what a clock change costs: nothing, time of the driver (3 ms, 10 ms until it acts), or clocks that act
                10 ms late
    seconds     CPU time for the plan
    seen        saved and late over the steps that the plan was made from
    others      saved and late over the other steps
    bound       the most that any plan saves over the steps seen in the time of this one, if clock changes cost nothing
                (a linear program with a copy of the pipeline per step; plans that fit these steps so closely are
                later on others)
    simple      what one clock per rank saves on the others
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import _common as common

from pfo_fs.planner import Problem, Profile, ScenarioPlanner, Scenarios, SwitchCosts
from pfo_fs.planner.relaxation import Relaxation
from pfo_fs.simulator import read_trace
from pfo_fs.simulator.traces import TracedStages

DELAY_S, OVERHEAD_S = 0.0005, 0.05
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
_MOST_PIPELINES = 4
COSTS = {
    "none": SwitchCosts(),
    "driver": SwitchCosts(driver_time_s=0.003, latency_s=0.01, late_s=0.001),
    "late": SwitchCosts(acts_late_s=0.01),
}


def cases(data: Path) -> Iterator[tuple[str, Problem, Any, list[int]]]:
    """Each case: its name, problem, durations of all steps in s, and groups."""
    import numpy as np

    for path in sorted(data.glob("*.csv.gz")):
        for slow in (False, True):
            trace = read_trace(path, slow_workers=slow)
            if slow and not read_trace(path, slow_workers=False).left_out:
                continue
            table = trace.table[:, :, :_MOST_PIPELINES]
            truth = TracedStages(trace.lengths_s)
            profile = Profile({k: [truth.measurement(*k, mhz) for mhz in truth.clocks_mhz] for k in trace.lengths_s})
            pipeline = trace.pipeline.with_delay(DELAY_S)
            lengths_s: Any = np.array([trace.lengths_s[i.stage, i.name] for i in pipeline.instructions])
            count = table.shape[2]
            groups = list(range(count)) if slow else [0] * count
            problem = Problem(pipeline, profile, truth.blocking_power_w, overhead_s=OVERHEAD_S)
            yield trace.name + (" slow" if slow else ""), problem, table * lengths_s[:, None], groups


def least_j(scenarios: Scenarios, mean_s: float) -> float:
    """The least mean energy in J of any durations on the hulls within a mean iteration time in s."""
    waiting_w, overhead_s = scenarios.waiting_power_w, scenarios.problem.overhead_s
    return Relaxation(scenarios).solve(mean_s - overhead_s, waiting_w).lower_bound_j + waiting_w * overhead_s


def against_highest(scenarios: Scenarios, clocks: list[list[int]]) -> tuple[float, float]:
    """Energy saved and additional time, relative."""
    saved = 1 - scenarios.energy_j(clocks) / scenarios.energy_j()
    return saved, float(scenarios.iteration_times_s(clocks).mean() / scenarios.iteration_times_s().mean() - 1)


def main() -> None:
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--seen", type=int, default=16)
    parser.add_argument("--slowdown", type=float, default=1.0005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-bound", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.data.is_dir():
        sys.exit(f"{args.data} is absent: it holds the traces of production jobs that this benchmark plans for")
    rows, results = [], []
    for name, problem, durations_s, groups in cases(args.data):
        if args.only and name.split()[0] not in args.only.split(","):
            continue
        order = np.random.default_rng(args.seed).permutation(len(durations_s))
        for costs_name, costs in COSTS.items():
            priced = replace(problem, switch_costs=costs)
            seen = Scenarios(priced, durations_s[order[: args.seen]], groups)
            others = Scenarios(priced, durations_s[order[args.seen :]], groups)
            mean_s = args.slowdown * float(seen.iteration_times_s().mean())
            began = time.process_time()
            clocks = ScenarioPlanner(seen).at(mean_s)
            seconds = time.process_time() - began
            simple = ScenarioPlanner(seen).one_clock_per_rank(mean_s)
            figures: dict[str, Any] = {"case": name, "costs": costs_name, "seconds": seconds}
            figures["seen"], figures["others"] = against_highest(seen, clocks), against_highest(others, clocks)
            figures["simple"] = against_highest(others, simple)
            if costs.none and not args.no_bound:
                own_s = float(seen.iteration_times_s(clocks).mean())
                figures["bound"] = 1 - least_j(seen, own_s) / seen.energy_j()
            results.append(figures)
            bound = f"{100 * figures['bound']:.2f} %" if "bound" in figures else ""
            pairs = [f"{100 * s:.2f} % at {100 * t:+.3f} %" for s, t in (figures["seen"], figures["others"])]
            rows.append([name, costs_name, f"{seconds:.2f}", *pairs, bound, f"{100 * figures['simple'][0]:.2f} %"])
    about = common.machine(seen=args.seen, slowdown=args.slowdown, seed=args.seed)
    columns = ("case", "costs", "seconds", "seen", "others", "bound", "simple")
    common.show(f"Plans from {args.seen} steps, at most {args.slowdown - 1:+.2%} late", columns, rows, str(about))
    common.write_json(args.json, about, results)


if __name__ == "__main__":
    main()
