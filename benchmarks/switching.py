"""Clocks on real nodes: what is left of a plan when changes of the clock take time, and calls wait for each other.

    python benchmarks/switching.py                               # all parts, about half an hour
    python benchmarks/switching.py --parts plans --micro-batches 12 --generated 2

Simulated nodes (`pfo_fs/device/simulated/node_physics.py`: "kind", "A100 node", "H100 node"), event by event, with the
clock followers of the real clock processes. 8 stages, 1F1B; durations jitter by 0.5 %, communication takes 0.5 ms.

- plans: for the models of GPT-3 175B on A100 and A40, for the published profiles in `--data` (left out where they are
  absent) and for generated jobs (stages of random lengths, random dependence of time and power on the clock): the plan
  that ignores what changes cost, one clock per stage, our plan, and the best that was found with planners that take
  changes for cheaper or dearer than they are. `late` is the iteration time against the same plan with clocks that act
  at once, `time` against all at max clocks, both with the same noise; `wrong` is the share of GPU time in
  instructions spent at another clock than planned.
- launch: the same plan with clocks set when training launches an instruction, two instructions ahead of the device.
- doctor: `pfo-fs doctor --switching` in real processes on the simulated nodes: the constants put in, and those found.
- loop: a whole job from its first iteration: profiling, planning, following.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from _quick_clocks import NodeSwitching, node_switching, without_clocks

from pfo_fs.autotune.measured_switching import measured_switching
from pfo_fs.device.simulated.node_physics import PRESETS, NodePhysics
from pfo_fs.device.simulated.physics import A40, A100, GpuModel
from pfo_fs.errors import PfoError
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import (
    Measurement,
    Pipeline,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    make_pipeline,
    one_per_stage,
    read_profile,
)
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import QUIET, Cluster, ModelTruth, Play, ProfileTruth, Truth, summarize
from pfo_fs.simulator.nodes import NodeSettings

STAGES, DELAY_S, OVERHEAD_S, JITTER = 8, 0.0005, 0.05, 0.005
NODES = ("kind", "A100 node", "H100 node")
LAYOUTS = ((1, 1), (1, 8), (8, 1))
"""(GPUs per stage, stages per node)."""
PROFILES = (
    ("gpt3-175b+a100_sxm_bf16.csv", 83.64),
    ("gpt3-175b+a40_bf16.csv", 70.38),
    ("bloom+a100_sxm_bf16.csv", 83.64),
)
SCALES = (0.0, 0.25, 0.5, 2.0, 4.0)
ITERATIONS = 8


class Job(NamedTuple):
    """A pipeline and the truth about its instructions."""

    name: str
    pipeline: Pipeline
    truth: Truth

    @property
    def problem(self) -> Problem:
        kinds = sorted({(i.stage, i.name) for i in self.pipeline.instructions})
        table = {kind: [self.truth.measurement(*kind, mhz) for mhz in self.truth.clocks_mhz] for kind in kinds}
        return Problem(self.pipeline.with_delay(DELAY_S), Profile(table), self.truth.blocking_power_w)


class GeneratedTruth(ModelTruth):
    """Stages of random lengths, whose time and power depend on the clock in random ways."""

    def __init__(self, model: GpuModel, seed: int) -> None:
        super().__init__(model, STAGES, slowest_mhz=600)
        chance = random.Random(seed)
        object.__setattr__(self, "lengths", [chance.uniform(0.7, 1.3) for _ in range(STAGES)])
        object.__setattr__(self, "shares", [chance.uniform(0.3, 1.0) for _ in range(STAGES)])
        object.__setattr__(self, "scale", chance.choice([0.1, 0.3, 1.0]))

    def measurement(self, stage: int, instruction: str, mhz: int) -> Any:
        length, share = self.lengths[stage] * self.scale, self.shares[stage]
        one = self.model.coefficients(instruction)
        one = one._replace(time_ref_s=one.time_ref_s * length, a=one.a * share)
        seconds = one.time_s(mhz)
        return Measurement(mhz, seconds, seconds * one.power_w(mhz))


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    for micro_batches in args.micro_batches:
        pipeline = make_pipeline("1f1b", STAGES, micro_batches)
        for model in (A100, A40):
            yield Job(f"model {model.name} x {micro_batches}", pipeline, ModelTruth(model, STAGES, slowest_mhz=600))
        for name, power_w in PROFILES:
            path = Path(args.data) / "profiles" / name
            if path.exists():
                yield Job(f"{name} x {micro_batches}", pipeline, ProfileTruth(read_profile(path), power_w))
            else:
                print(f"{path} is absent: left out", flush=True)
        for seed in range(args.generated):
            yield Job(f"generated {seed} x {micro_batches}", pipeline, GeneratedTruth(A100 if seed % 2 else A40, seed))


def known_switching(job: Job, physics: NodePhysics, gpus: int, stages_per_node: int) -> NodeSwitching:
    """What the policy makes of the reports of such a node, when all latencies are known."""
    places = [(stage, gpu) for stage in range(STAGES) for gpu in range(gpus)]
    infos = [
        RankInfo(rank=rank, dp_rank=0, pp_rank=stage, tp_rank=gpu, available_frequencies=list(job.truth.clocks_mhz))
        for rank, (stage, gpu) in enumerate(places)
    ]
    report = Switching(
        mode="device",
        call_s=physics.call_s,
        gpus=gpus * stages_per_node if physics.serial else 1,
        latencies_s={mhz: physics.settle_s(mhz) for mhz in job.truth.clocks_mhz},
    )
    top_mhz = job.truth.clocks_mhz[0]
    results = [
        ProfilingResult(
            rank=info.rank,
            iter_time=[1.0],
            iter_energy=[1.0],
            time_breakdown={
                name: [[job.truth.measurement(info.pp_rank, name, top_mhz).time_s]] for name in ("forward", "backward")
            },
            switching=report,
        )
        for info in infos
    ]
    found = measured_switching(results, infos)
    assert found is not None
    lengths_s = [each[0][0] for result in results for each in result.time_breakdown.values()]
    return node_switching(found, fmean(lengths_s))


def scaled(costs: SwitchCosts, scale: float) -> SwitchCosts:
    return replace(
        costs,
        driver_time_s=costs.driver_time_s * scale,
        latency_s=costs.latency_s * scale,
        late_s=costs.late_s * scale,
    )


class Ran(NamedTuple):
    """A plan on nodes: mean iteration time in s, energy in J, share of time at a wrong clock, calls per second."""

    time_s: float
    energy_j: float
    wrong: float
    calls_per_s: float


def run(job: Job, plan: Plan | None, settings: NodeSettings, seed: int = 1) -> Ran:
    """Runs a plan (None: all at max clocks) on nodes until it is settled, and then for some iterations."""
    odd = replace(QUIET, time_jitter=JITTER, delay_s=DELAY_S, overhead_s=OVERHEAD_S)
    cluster = Cluster(job.pipeline, job.truth, odd, seed=seed, nodes=settings, knows_latencies=True)
    schedules = {} if plan is None else {s.rank: s.frequencies for s in plan.schedules()}
    clocks = cluster.clocks_of([schedules])
    for _ in range(4):
        cluster.run(clocks)
    cluster.wrong_s = cluster.busy_s = 0.0
    cluster.calls = 0
    played = [cluster.run(clocks) for _ in range(ITERATIONS)]
    time_s = sum(each.time_s for each in played) / ITERATIONS
    energy_j = sum(each.energy_j for each in played) / ITERATIONS
    return Ran(time_s, energy_j, cluster.wrong_s / cluster.busy_s, cluster.calls / ITERATIONS / time_s)


def ideal(gpus: int) -> NodeSettings:
    """Clocks that act at once when the instruction begins."""
    return NodeSettings(PRESETS["none"], "launch", gpus, 1, run_ahead=0)


def plans(args: argparse.Namespace) -> None:
    for job in jobs(args):
        base = job.problem
        for gpus, stages_per_node in [each for each in LAYOUTS if each[0] in args.gpus]:
            problem = replace(base, gpus_per_rank=gpus)
            full = all_maximum(problem)
            deadline_s = full.iteration_time_s
            highest = run(job, None, ideal(gpus))
            free = Planner(problem).at(deadline=max(deadline_s, Planner(problem).fastest_s))
            for name in args.nodes:
                physics = PRESETS[name]
                settings = NodeSettings(physics, "device", gpus, stages_per_node)
                switching = known_switching(job, physics, gpus, stages_per_node)
                quick = replace(problem, profile=without_clocks(problem.profile, switching.slow_mhz))
                costs = switching.costs
                found: dict[str, Plan] = {"free": free}
                with suppress(PfoError):
                    found["one per stage"] = one_per_stage(problem, deadline_s)
                began = time.perf_counter()
                planner = Planner(replace(quick, switch_costs=costs))
                found["ours"] = planner.at(deadline=max(deadline_s, planner.fastest_s))
                seconds = time.perf_counter() - began
                for scale in SCALES if args.search else ():
                    other = Planner(replace(quick, switch_costs=scaled(costs, scale)))
                    found[f"scale {scale:g}"] = other.at(deadline=max(deadline_s, other.fastest_s))
                rows = {key: figures(job, plan, settings, highest) for key, plan in found.items()}
                # The best plan that is not slower than all at max clocks by more than noise.
                on_time = [row["saved"] for row in rows.values() if row["time"] <= max(0.001, rows["ours"]["time"])]
                best = max([*on_time, rows["ours"]["saved"]])
                result = {
                    "job": job.name,
                    "node": name,
                    "gpus_per_stage": gpus,
                    "stages_per_node": stages_per_node,
                    "ours": rows["ours"],
                    "why": found["ours"].switching,
                    "planned_saved": 1 - found["ours"].energy_j / full.energy_j,
                    "of_best_found": rows["ours"]["saved"] / best if best > 0 else None,
                    "free": rows["free"],
                    "one_per_stage": rows.get("one per stage"),
                    "plan_seconds": seconds,
                }
                print(json.dumps(result), flush=True)


def figures(job: Job, plan: Plan, settings: NodeSettings, highest: Ran) -> dict[str, float]:
    ran = run(job, plan, settings)
    at_once = run(job, plan, ideal(settings.gpus_per_rank))
    return {
        "saved": round(1 - ran.energy_j / highest.energy_j, 5),
        "time": round(ran.time_s / highest.time_s - 1, 6),
        "late": round(ran.time_s / at_once.time_s - 1, 6),
        "wrong": round(ran.wrong, 5),
        "changes": len(plan.changes),
        "calls_per_s": round(ran.calls_per_s, 1),
    }


def launch(args: argparse.Namespace) -> None:
    for job in jobs(args):
        problem = job.problem
        planner = Planner(problem)
        plan = planner.at(deadline=max(all_maximum(problem).iteration_time_s, planner.fastest_s))
        highest = run(job, None, ideal(1))
        for name in args.nodes:
            for mode, ahead in (("device", 0), ("launch", 0), ("launch", 2)):
                row = figures(job, plan, NodeSettings(PRESETS[name], mode, 1, 1, run_ahead=ahead), highest)
                print(json.dumps({"job": job.name, "node": name, "mode": mode, "ahead": ahead, **row}), flush=True)


def loop(args: argparse.Namespace) -> None:
    for job in jobs(args):
        for name in args.nodes:
            for gpus, stages_per_node in LAYOUTS:
                settings = NodeSettings(PRESETS[name], "device", gpus, stages_per_node)
                cluster = Cluster(job.pipeline, job.truth, nodes=settings, seed=args.seed)
                began = time.perf_counter()
                with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
                    play = Play(cluster, Path(folder) / "pfo", PFOSettings(profile_steps=5))
                    played = list(play.run(args.iterations))
                    summary = summarize(play, played)
                result = {
                    "job": job.name,
                    "node": name,
                    "gpus_per_stage": gpus,
                    "stages_per_node": stages_per_node,
                    "settled_at": summary.settled_at,
                    "time": round(summary.slowdown, 6),
                    "saved": round(summary.energy_saved, 5),
                    "status": summary.status_text,
                    "seconds": round(time.perf_counter() - began, 1),
                }
                print(json.dumps(result), flush=True)


def doctor(args: argparse.Namespace) -> None:
    for name in args.nodes:
        physics = PRESETS[name]
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "switching.json"
            command = [
                sys.executable,
                "-m",
                "pfo_fs",
                "doctor",
                "--switching",
                "--yes",
                "--gpus",
                "8",
                "-o",
                str(output),
            ]
            environment = {"PFO_FS_GPU": "simulated", "PFO_FS_SIM_NODE": name, "PFO_FS_SIM_DIR": folder}
            subprocess.run(command, check=True, env={**os.environ, **environment}, capture_output=True)
            found = json.loads(output.read_text())
        errors_s = [abs(latency_s - physics.settle_s(int(mhz))) for mhz, latency_s in found["latency_s"].items()]
        result = {
            "node": name,
            "call_s": [physics.call_s, found["call_s"]["median"]],
            "slow_call_s": [physics.slow_call_s, found["call_s"]["p99"]],
            "serial": [physics.serial, found["serial"]],
            "clocks": len(errors_s),
            "worst_latency_error_s": max(errors_s, default=None),
            "max_calls_per_s": found["max_calls_per_s"],
        }
        print(json.dumps(result), flush=True)


PARTS = {"plans": plans, "launch": launch, "doctor": doctor, "loop": loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--nodes", nargs="+", default=NODES, choices=list(PRESETS))
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[12])
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 8], choices=[1, 8], help="per stage")
    parser.add_argument("--generated", type=int, default=4, help="number of generated jobs")
    parser.add_argument("--search", action="store_true", help="search for better plans than ours, to compare (slow)")
    parser.add_argument("--iterations", type=int, default=200, help="of a loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    args = parser.parse_args()
    for part in args.parts:
        PARTS[part](args)


if __name__ == "__main__":
    main()
