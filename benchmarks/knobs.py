"""The knobs of the power-limit optimizer against each other: a power limit, and a clock, on the simulated GPUs.

    python benchmarks/knobs.py [--seeds 100] [--noise 0.003] [--clock-step 45] [--json FILE]

Needs what `power_limit.py` needs. For each model of simulated GPUs, selector and search, the optimizer is driven until
it has chosen, under the same noise as in `power_limit.py`; energy and time of its choice are judged without noise,
against training that sets nothing. "within" counts choices that keep what the selector allows (5 % more time, and 0.5 %
for noise).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import patch

import _common as common
import power_limit as limits

from pfo_fs import power_limit as ours
from pfo_fs.device.physics import MODELS, GpuModel
from pfo_fs.power_limit.candidates import spaced_clocks
from pfo_fs.power_limit.gpus import Levels

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--noise", type=float, default=0.003, help="of a window of 40 steps; 0.003 is 0.3 %%")
    parser.add_argument("--clock-step", type=int, default=45, help="MHz between two clocks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
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
