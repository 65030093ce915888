"""The knobs of the power-limit optimizer against each other: a power limit, and a clock, on the simulated GPUs.

    python benchmarks/knobs.py [--seeds 100] [--noise 0.003] [--clock-step 45] [--json FILE]
    python benchmarks/knobs.py --uneven [--seeds 20] [--data ../shared/data] [--json FILE]

Needs what `power_limit.py` needs. For each model of simulated GPUs, selector and search, the optimizer is driven until
it has chosen, under the same noise as in `power_limit.py`; energy and time of its choice are judged without noise,
against training that sets nothing. "within" counts choices that keep what the selector allows (5 % more time, and 0.5 %
for noise).

`--uneven`: ranks get unequal work in each step, as in the trace `se` (left out where it is absent) and in drawn
mixtures of documents, and the optimizer is told the loads, or not (`_uneven_search.py`). The best level, and what
another costs beside it, are those over all steps of the data; "within 1 %" counts choices with at most 1 % more energy
and, where time is bounded, at most 1 % more time than is allowed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import _common as common
import _uneven_search as uneven
import power_limit as limits

from pfo_fs import power_limit as ours
from pfo_fs.device.simulated.physics import MODELS, GpuModel
from pfo_fs.power_limit.gpus import Levels
from pfo_fs.power_limit.ranks import spaced_clocks

SELECTORS: dict[str, tuple[ours.OptimumSelector, float]] = {
    "least energy": (ours.Energy(), float("inf")),
    "5 % slower": (ours.MaxSlowdownConstraint(1.05), 1.055),
}
PL_STEP_W = 25


def at_clock(model: GpuModel, mhz: int) -> tuple[float, float]:
    """Returns seconds and joules of 40 times forward and backward."""
    parts = [model.coefficients(name) for name in ("forward", "backward")]
    times_s = [limits.PROFILE_STEPS * part.time_s(mhz) for part in parts]
    return sum(times_s), sum(time_s * part.power_w(mhz) for time_s, part in zip(times_s, parts, strict=True))


class ClockMachine(limits.Machine):
    """The same with a clock as its knob."""

    def bounds(self) -> Levels:
        clocks = tuple(sorted(self._truth, reverse=True))
        return Levels(clocks[-1], clocks[0], clocks)


def choose(
    machine: limits.Machine, selector: ours.OptimumSelector, search: Any, knob: Any, clock_step: int
) -> tuple[int, int]:
    """Returns the level that is chosen, and the steps until then."""
    options: Any = {"warmup_steps": limits.WARMUP_STEPS, "profile_steps": limits.PROFILE_STEPS, "search": search}
    options.update(pl_step=PL_STEP_W, clock_step=clock_step, knob=knob, wait_steps=limits.WAIT_STEPS)
    with patch("pfo_fs.power_limit.rank_gpus.gpus_of", lambda *_: [machine]):
        optimizer = ours.GlobalPowerLimitOptimizer(machine, selector, **options)
    try:
        return machine.train(optimizer)
    finally:
        optimizer.close()


def play_uneven(args: argparse.Namespace, seeds: int) -> None:
    """Plays searches on jobs whose ranks get unequal work."""
    trace = args.data / "traces" / "se.csv.gz"
    if not trace.exists():
        print(f"{trace} is absent: that trace is not played", file=sys.stderr)
    played = [uneven.traced(trace)] if trace.exists() else []
    played += [uneven.drawn(8, 32 << 10), uneven.drawn(16, 128 << 10)]
    results: list[dict[str, object]] = []
    for data in played:
        for knob in ("power_limit", "clock"):
            truth = uneven.Job(data, knob).truth()
            for name, (selector, _) in SELECTORS.items():
                for search in ("full", "coarse-to-fine"):
                    for with_loads in (False, True):
                        jobs = [uneven.Job(data, knob, seed=seed) for seed in range(seeds)]
                        found = [uneven.choose(job, selector, search, with_loads=with_loads) for job in jobs]
                        result: dict[str, object] = {"data": data.name, "knob": knob, "selector": name}
                        result |= {"search": search, "loads": with_loads}
                        result["best"] = sum(level == selector.select(truth) for level, _ in found)
                        result["within_1_percent"] = sum(uneven.is_near(selector, truth, level) for level, _ in found)
                        result["steps"] = statistics.median(steps for _, steps in found)
                        results.append(result)
    rows = [
        [", ".join(str(r[key]).replace("_", " ") for key in ("data", "knob", "selector", "search"))]
        + [f"{one[key]}" for one in (r, other) for key in ("best", "within_1_percent", "steps")]
        for r, other in zip(results[::2], results[1::2], strict=True)
    ]
    columns = ["data, knob, selector, search", *("best", "within 1 %", "steps"), "best", "within", "steps, by load"]
    common.show(f"of {seeds} searches on A100s, as measured and by load", columns, rows, width=150)
    common.write_json(args.json, common.machine(seeds=seeds), results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="100, or 20 with --uneven")
    parser.add_argument("--uneven", action="store_true", help="ranks get unequal work")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--noise", type=float, default=0.003, help="of a window of 40 steps; 0.003 is 0.3 %%")
    parser.add_argument("--clock-step", type=int, default=45, help="MHz between two clocks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.uneven:
        play_uneven(args, args.seeds or 20)
        return
    args.seeds = args.seeds or 100
    results: list[dict[str, object]] = []
    rows: list[list[str]] = []
    for model in MODELS.values():
        lowest_w, highest_w = map(int, model.power_limits_w)
        watts = range(highest_w, lowest_w - 1, -PL_STEP_W)
        truths = {
            "power_limit": {level: limits.at_limit(model, level) for level in watts},
            "clock": {mhz: at_clock(model, mhz) for mhz in spaced_clocks(model.clocks_mhz, args.clock_step)},
        }
        free_s, free_j = truths["clock"][model.clocks_mhz[0]]
        for name, (selector, longest) in SELECTORS.items():
            for search in ("full", "coarse-to-fine"):
                for knob, truth in truths.items():
                    kind = ClockMachine if knob == "clock" else limits.Machine
                    found = [
                        choose(kind(model, truth, args.noise, seed), selector, search, knob, args.clock_step)
                        for seed in range(args.seeds)
                    ]
                    saved = [1 - truth[level][1] / free_j for level, _ in found]
                    slower = [truth[level][0] / free_s for level, _ in found]
                    result = {
                        "gpu": model.name,
                        "selector": name,
                        "search": search,
                        "knob": knob,
                        "levels": len(truth),
                        "saved": statistics.mean(saved),
                        "least_saved": min(saved),
                        "slower": statistics.mean(slower) - 1,
                        "slowest": max(slower) - 1,
                        "within": sum(factor <= longest for factor in slower) / args.seeds,
                        "steps": statistics.median(steps for _, steps in found),
                        "most_steps": max(steps for _, steps in found),
                    }
                    results.append(result)
                    rows.append(
                        [
                            f"{model.name}, {name}, {search}, {knob.replace('_', ' ')}",
                            *(f"{result[key]:.1%}" for key in ("saved", "least_saved", "slower", "slowest", "within")),
                            f"{result['steps']:.0f}",
                            f"{result['most_steps']}",
                        ]
                    )
    common.show(
        f"energy saved against no setting at all; {args.seeds} seeds, windows off by {args.noise:.1%}",
        ["GPU, selector, search, knob", "saved", "worst", "slower", "worst", "within", "steps", "most"],
        rows,
        "saved, slower: mean over seeds, in truth; worst: least saved, slowest; steps: until the choice (median)",
    )
    common.write_json(args.json, common.machine(seeds=args.seeds, noise=args.noise), results)


if __name__ == "__main__":
    main()
