"""The coarse-to-fine search against the full sweep, Zeus's own class, on the same noisy numbers.

    python benchmarks/power_limit.py [--seeds 200] [--noise 0.003] [--json FILE]

Needs `pip install -e '.[benchmark]'`. For each model of simulated GPUs, distance of limits, and selector: Zeus's
`GlobalPowerLimitOptimizer` and ours, both ways, are driven step by step until they have chosen. A window of 40 steps is
off by a normal error of standard deviation `--noise` in time and in power, a shorter one by more, as the square root of
steps; all three see the same errors. Ours and Zeus's class are run once more with others, to see how much of a
difference noise makes by itself. Counted are training steps until the choice; what a choice costs is judged without
noise, against Zeus's.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import _common as common
from zeus.optimizer import power_limit as zeus

from pfo_fs import power_limit as ours
from pfo_fs.device.shared_page import WORDS
from pfo_fs.device.simulated.physics import MODELS, GpuModel
from pfo_fs.power_limit.gpus import Levels

WARMUP_STEPS, PROFILE_STEPS, WAIT_STEPS = 10, 40, 1
SELECTORS: dict[str, tuple[str, dict[str, float]]] = {
    "energy": ("Energy", {}),
    "time": ("Time", {}),
    "cost 0.5": ("ZeusCost", {"eta_knob": 0.5}),
    "cost 0.75": ("ZeusCost", {"eta_knob": 0.75}),
    "2 % slower": ("MaxSlowdownConstraint", {"factor": 1.02}),
    "5 % slower": ("MaxSlowdownConstraint", {"factor": 1.05}),
    "20 % slower": ("MaxSlowdownConstraint", {"factor": 1.2}),
}


def at_limit(model: GpuModel, level: int) -> tuple[float, float]:
    """Returns seconds and joules of 40 times forward and backward."""
    parts = [model.coefficients(name).within(level, model.clocks_mhz[-1]) for name in ("forward", "backward")]
    times_s = [PROFILE_STEPS * part.time_s(model.clocks_mhz[0]) for part in parts]
    return sum(times_s), sum(
        time_s * part.power_w(model.clocks_mhz[0]) for time_s, part in zip(times_s, parts, strict=True)
    )


class Machine:
    """GPU and monitor of all three: a window says what the limit in force makes of it, with an error."""

    def __init__(self, model: GpuModel, truth: dict[int, tuple[float, float]], noise: float, seed: int) -> None:
        self.gpu_indices = [0]
        self.words = memoryview(bytearray(WORDS * 8)).cast("q")
        self.trouble = ""
        self.name = model.name
        self.level = 0
        self.steps = 0
        self._range = model.power_limits_w
        self._truth = truth
        dice = random.Random(seed)
        self._errors = {level: (dice.gauss(0, noise), dice.gauss(0, noise)) for level in truth}

    # a monitor, ours and Zeus's

    def begin_window(self, key: str) -> None:
        self._began = self.steps

    def end_window(self, key: str, cancel: bool = False) -> Any:
        steps = self.steps - self._began
        time_s, energy_j = (value * steps / PROFILE_STEPS for value in self._truth[self.level])
        more = math.sqrt(PROFILE_STEPS / steps)
        slower, hotter = (1 + error * more for error in self._errors[self.level])
        return SimpleNamespace(time=time_s * slower, gpu_energy={0: energy_j * slower * hotter})

    # a GPU of ours

    def bounds(self) -> Levels:
        return Levels(*self._range)

    def set_level(self, level: int) -> None:
        self.level = level

    def check(self) -> str:
        return ""

    def restore(self, deadline_s: float | None = None) -> None:
        pass

    leave = close = settle = restore

    # Zeus's GPU layer

    def get_power_management_limit_constraints(self, _index: int) -> tuple[int, int]:
        return round(self._range[0] * 1000), round(self._range[1] * 1000)

    def set_persistence_mode(self, *_: object, **__: object) -> None:
        pass

    def set_power_management_limit(self, _index: int, limit_mw: int) -> None:
        self.level = limit_mw // 1000

    def train(self, optimizer: Any) -> tuple[int, int]:
        """Returns the limit that is chosen, in W, and the steps until then."""
        while type(optimizer.state).__name__ != "Done":
            optimizer.on_step_begin()
            self.steps += 1
        return self.level, self.steps


def choose(machine: Machine, kind: str, selector: tuple[str, dict[str, float]], pl_step: int) -> tuple[int, int]:
    """Drives one optimizer until it has chosen."""
    options: Any = {"wait_steps": WAIT_STEPS, "warmup_steps": WARMUP_STEPS, "profile_steps": PROFILE_STEPS}
    options["pl_step"] = pl_step
    name, arguments = selector
    if kind == "zeus":
        with (
            patch.object(zeus, "get_gpus", lambda **_: machine),
            patch.object(zeus, "atexit", SimpleNamespace(register=lambda _: None)),
        ):
            optimizer = zeus.GlobalPowerLimitOptimizer(machine, getattr(zeus, name)(**arguments), **options)
            return machine.train(optimizer)
    with patch("pfo_fs.power_limit.rank_gpus.gpus_of", lambda *_: [machine]):
        found = ours.GlobalPowerLimitOptimizer(machine, getattr(ours, name)(**arguments), search=kind, **options)
    try:
        return machine.train(found)
    finally:
        found.close()


def cost_of(selector: tuple[str, dict[str, float]], truth: dict[int, tuple[float, float]]) -> Callable[[int], float]:
    """Returns what a limit costs in truth: seconds for `Time`, joules otherwise."""
    name, arguments = selector

    def cost(level: int) -> float:
        time_s, energy_j = truth[level]
        if name == "Time":
            return time_s
        if name == "ZeusCost":
            eta = arguments["eta_knob"]
            return eta * energy_j + (1 - eta) * max(truth) * time_s
        return energy_j

    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.003, help="of a window of 40 steps; 0.003 is 0.3 %%")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    about = common.machine(seeds=args.seeds, noise=args.noise)
    results: list[dict[str, object]] = []
    rows: list[list[str]] = []
    for model in MODELS.values():
        for pl_step in (10, 25, 50):
            levels = range(int(model.power_limits_w[1]), int(model.power_limits_w[0]) - 1, -pl_step)
            truth = {level: at_limit(model, level) for level in levels}
            for name, selector in SELECTORS.items():
                cost = cost_of(selector, truth)
                steps: dict[str, list[int]] = {"zeus": [], "full": [], "coarse-to-fine": []}
                same, same_full, extra, again, zeus_again = 0, 0, [], [], []
                for seed in range(args.seeds):
                    chosen = {}
                    for kind, counts in steps.items():
                        chosen[kind], count = choose(Machine(model, truth, args.noise, seed), kind, selector, pl_step)
                        counts.append(count)
                    same_full += chosen["full"] == chosen["zeus"]
                    same += chosen["coarse-to-fine"] == chosen["zeus"]
                    extra.append(cost(chosen["coarse-to-fine"]) / cost(chosen["zeus"]) - 1)
                    for kind, costs in (("coarse-to-fine", again), ("zeus", zeus_again)):
                        other, _ = choose(Machine(model, truth, args.noise, -1 - seed), kind, selector, pl_step)
                        costs.append(cost(other) / cost(chosen["zeus"]) - 1)
                share = max(ours / theirs for ours, theirs in zip(steps["coarse-to-fine"], steps["zeus"], strict=True))
                within = [sum(more <= 0.01 for more in costs) / args.seeds for costs in (extra, again, zeus_again)]
                result = {
                    "gpu": model.name,
                    "pl_step": pl_step,
                    "selector": name,
                    "zeus_steps": max(steps["zeus"]),
                    "full_same": same_full / args.seeds,
                    "steps": statistics.median(steps["coarse-to-fine"]),
                    "largest_share": share,
                    "same": same / args.seeds,
                    "within_1_percent": within[0],
                    "again_within_1_percent": within[1],
                    "zeus_again_within_1_percent": within[2],
                    "mean_extra_cost": statistics.mean(extra),
                    "largest_extra_cost": max(extra),
                }
                results.append(result)
                rows.append(
                    [
                        f"{model.name} {pl_step} W, {name}",
                        f"{max(steps['zeus'])}",
                        f"{result['full_same']:.0%}",
                        f"{result['steps']:.0f}",
                        f"{share:.0%}",
                        f"{result['same']:.0%}",
                        *(f"{share:.1%}" for share in within),
                        f"{result['mean_extra_cost']:+.2%}",
                        f"{max(extra):+.2%}",
                    ]
                )
    columns = ["GPU, distance, selector", "Zeus", "full", "ours", "most", "same", "within", "again", "Zeus again"]
    columns += ["mean", "worst"]
    common.show(
        f"steps until a power limit is chosen; {args.seeds} seeds, windows off by {args.noise:.1%}",
        columns,
        rows,
        "Zeus, ours: steps, ours with the coarse-to-fine search; full: our full sweep chooses as Zeus; most: largest "
        "share of Zeus's steps; same: chooses as Zeus; within: costs 1 % more at most, in truth; again: so does "
        "the choice under other noise, and Zeus's own; mean, worst: cost against Zeus's choice",
    )
    common.write_json(args.json, about, results)


if __name__ == "__main__":
    main()
