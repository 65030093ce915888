"""The jobs of `loop_yield.py`, and the best plans that are known for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from _late_clocks import Clocks, LateClocks
from _quick_clocks import NodeSwitching, node_switching, without_clocks

from pfo_fs.autotune.measured_switching import measured_switching
from pfo_fs.device.simulated.node_physics import node_physics
from pfo_fs.device.simulated.physics import A40, A100, GpuModel
from pfo_fs.errors import PfoError
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import (
    Measurement,
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
from pfo_fs.simulator import QUIET, Cluster, ProfileTruth, Truth
from pfo_fs.simulator.job_generator import SimulatedJob, generated_job
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.ranks import RankSchedules

PROFILES = (
    ("gpt3-175b+a100_sxm_bf16.csv", A100),
    ("gpt3-175b+a40_bf16.csv", A40),
    ("bloom+a100_sxm_bf16.csv", A100),
)
MICRO_BATCHES = (12, 24, 48, 96)
PCIE_POWER = 0.55
"""Power of an A100 PCIe as a share of that of the A100 SXM's model: the measured runs draw 230 to 260 W on average."""
PRICES_S = (0.0, 0.0003, 0.001, 0.003)
"""Without nodes: prices of a change, as time in s for which a GPU stands still, that plans are tried with."""
SCALES = (0.0, 0.5, 1.0, 2.0)
"""On nodes: multiples of the true costs of a change that plans are tried with."""
_ROUNDS = 5
_NOISY_ITERATIONS = 8
MOST_LATE = 0.001
"""Relative: plans that end later than all at max clocks by more than this do not count."""


def known(data: Path) -> Iterator[SimulatedJob]:
    """Published profiles of 8 stages, in 1F1B."""
    for micro_batches in MICRO_BATCHES:
        for name, gpu in PROFILES:
            path = data / "profiles" / name
            if not path.exists():
                print(f"{path} is absent: left out", flush=True)
                continue
            truth = ProfileTruth(read_profile(path), gpu.blocking_power_w)
            yield SimulatedJob(f"{path.stem} 8x{micro_batches}", make_pipeline("1f1b", 8, micro_batches), truth)


@dataclass(frozen=True)
class MeasuredStages:
    """Stages with the measured lengths of a real run at max clocks, on an A100 PCIe.

    How time and power follow the clock is that of the model of an A100 SXM, with less power: these runs did not measure
    it.
    """

    lengths_s: dict[tuple[int, str], float]
    model: GpuModel = A100

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        return self.model.clocks_mhz

    @property
    def blocking_power_w(self) -> float:
        return PCIE_POWER * self.model.blocking_power_w

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        one = self.model.coefficients(instruction)
        time_s = self.lengths_s[stage, instruction] * one.time_s(mhz) / one.time_s(one.top_mhz)
        return Measurement(mhz, time_s, time_s * PCIE_POWER * one.power_w(mhz))


def measured(data: Path) -> Iterator[SimulatedJob]:
    """Runs of 4 stages, whose lengths were measured."""
    paths = sorted((data / "measured").glob("*.json"))
    if not paths:
        print(f"{data / 'measured'} is absent or empty: left out", flush=True)
    for path in paths:
        run = json.loads(path.read_text())
        lengths = {
            (stage, name): min(median(plan[f"{name}_s"][stage]) for plan in run["plans"])
            for stage in range(run["pp"])
            for name in ("forward", "backward")
        }
        pipeline = make_pipeline("1f1b", run["pp"], run["num_microbatches"])
        yield SimulatedJob(path.stem, pipeline, MeasuredStages(lengths))


def jobs(kinds: str, data: Path, seeds: range, node: str = "launch") -> list[SimulatedJob]:
    """The jobs of a kind: known, measured, generated or all; the smallest first.

    Args:
        kinds: The kind.
        data: The folder of published data.
        seeds: Seeds of the generated jobs.
        node: The kind of node of known and measured jobs, one GPU per stage; `launch`: none, clocks act 10 ms late.
    """
    found: list[SimulatedJob] = []
    if kinds in ("known", "all"):
        found += known(data)
    if kinds in ("measured", "all"):
        found += measured(data)
    if node != "launch":
        settings = NodeSettings(node_physics(node), "device")
        found = [replace(job, name=f"{job.name}, {node}", nodes=settings) for job in found]
    if kinds in ("generated", "all"):
        found += [generated_job(seed) for seed in seeds]
    return sorted(found, key=lambda job: len(job.pipeline.instructions))


# ---- the best plans that are known


class Result(NamedTuple):
    """What a plan does in the simulator without noise: energy saved and time lost, against max clocks."""

    saved: float
    time: float
    changes: int
    made_by: str


def quiet(job: SimulatedJob) -> Cluster:
    """The job's cluster without noise, on which clock processes know all latencies."""
    odd = job.nuisances
    calm = replace(QUIET, switch_s=odd.switch_s, delay_s=odd.delay_s, overhead_s=odd.overhead_s)
    return Cluster(job.pipeline, job.truth, calm, nodes=job.nodes, knows_latencies=True)


class Mean(NamedTuple):
    """Mean time in s and energy in J of an iteration."""

    time_s: float
    energy_j: float


def noisy_mean(cluster: Cluster, schedules: RankSchedules, iterations: int = _NOISY_ITERATIONS) -> Mean:
    """Runs schedules until they are settled, and then for so many iterations, always with the same noise."""
    clocks = cluster.clocks_of(schedules)
    cluster.settled(clocks)
    cluster.repeat_noise(0)
    ran = [cluster.run(clocks) for _ in range(iterations if cluster.nuisances.time_jitter else 1)]
    return Mean(fmean(each.time_s for each in ran), fmean(each.energy_j for each in ran))


def best_plans(job: SimulatedJob) -> tuple[Result, Result]:
    """The best plan with full knowledge, and the best single clock per stage; as the simulator plays them, with noise.

    Plans are made from the true times and powers, with several prices of a change. Those that take longer than the
    highest clocks when they are played are repaired, or made again with room for changes that act late. The one that
    saves most wins.
    """
    problem = problem_of(job)
    odd = replace(job.nuisances, power_jitter=0.0, warm_up=0.0)
    cluster = Cluster(job.pipeline, job.truth, odd, nodes=job.nodes, knows_latencies=True)
    full = noisy_mean(cluster, [{}])
    full_plan = all_maximum(problem)

    def played_clocks(clocks: Clocks, made_by: str) -> Result:
        ran = noisy_mean(cluster, [{rank: [("", mhz) for mhz in row] for rank, row in enumerate(clocks)}])
        saved, time = 1 - ran.energy_j / full.energy_j, ran.time_s / full.time_s - 1
        changes = sum(one != other for row in clocks for one, other in pairwise(row))
        return Result(float(saved), float(time), changes, made_by)

    def played(plan: Plan, made_by: str) -> Result:
        return played_clocks([[mhz for _, mhz in s.frequencies] for s in plan.schedules()], made_by)

    span_s = full_plan.iteration_time_s - job.nuisances.overhead_s
    late_clocks = LateClocks(job) if job.nodes is None else None
    highest = Result(0.0, 0.0, 0, "highest clocks")
    found, per_stage = [highest], [highest]
    for costs, profile, name in _prices(job, problem):
        margin = 0.0
        for _ in range(_ROUNDS):
            slower = _with_margin(profile, margin)
            planner = Planner(replace(problem, profile=slower, switch_costs=costs))
            plan = planner.at(deadline=max(full_plan.iteration_time_s, planner.fastest_s))
            found.append(played(plan, f"{name}, margin {margin:.2%}"))
            late = found[-1].time
            if late <= MOST_LATE:
                break
            if late_clocks is not None:
                clocks = [[mhz for _, mhz in s.frequencies] for s in plan.schedules()]
                repaired = late_clocks.repaired(clocks, (1 + 0.9 * MOST_LATE) * span_s)
                if repaired is not None:
                    found.append(played_clocks(repaired, f"{name}, margin {margin:.2%}, repaired"))
            margin = 2 * margin + late
    deadline_s = full_plan.iteration_time_s
    for _ in range(_ROUNDS):
        with suppress(PfoError):
            per_stage.append(played(one_per_stage(problem, deadline_s), "one clock per stage"))
            late = per_stage[-1].time
            if late > MOST_LATE:
                deadline_s *= 1 - late
                continue
        break
    best_per_stage = _best(per_stage)
    return max(_best(found), best_per_stage), best_per_stage


def _with_margin(profile: Profile, margin: float) -> Profile:
    """The profile with all clocks but the highest slower by this share, at the same power: room for late changes."""
    table = {}
    for kind, rows in profile.measurements.items():
        top = max(row.frequency_mhz for row in rows)
        table[kind] = [
            row
            if row.frequency_mhz == top
            else Measurement(row.frequency_mhz, row.time_s * (1 + margin), row.energy_j * (1 + margin))
            for row in rows
        ]
    return Profile(table, profile.source)


def _best(results: list[Result]) -> Result:
    return max(result for result in results if result.time <= MOST_LATE)


def problem_of(job: SimulatedJob) -> Problem:
    """The problem with the job's true times and powers, in which changes cost nothing."""
    kinds = sorted({(i.stage, i.name) for i in job.pipeline.instructions})
    table = {kind: [job.truth.measurement(*kind, mhz) for mhz in job.truth.clocks_mhz] for kind in kinds}
    pipeline = job.pipeline.with_delay(job.nuisances.delay_s)
    gpus = 1 if job.nodes is None else job.nodes.gpus_per_rank
    return Problem(
        pipeline,
        Profile(table),
        job.truth.blocking_power_w,
        overhead_s=job.nuisances.overhead_s,
        gpus_per_rank=gpus,
    )


def _prices(job: SimulatedJob, problem: Problem) -> Iterator[tuple[SwitchCosts, Profile, str]]:
    if job.nodes is None:
        for price_s in PRICES_S:
            yield SwitchCosts(stands_still_s=price_s), problem.profile, f"price {price_s:g} s"
        yield SwitchCosts(acts_late_s=job.nuisances.switch_s), problem.profile, "late clocks"
        return
    true = known_switching(job)
    for scale in SCALES:
        profile = without_clocks(problem.profile, true.slow_mhz) if scale else problem.profile
        yield _scaled(true.costs, scale), profile, f"costs x {scale:g}"
    for offer in true.offers[1:]:
        costs = replace(true.costs, latency_s=offer.latency_s)
        profile = without_clocks(problem.profile, offer.left_out_mhz)
        for scale in SCALES[1:]:
            yield _scaled(costs, scale), profile, f"clocks within {offer.latency_s * 1e3:.0f} ms, costs x {scale:g}"


def _scaled(costs: SwitchCosts, times: float) -> SwitchCosts:
    return replace(
        costs,
        driver_time_s=costs.driver_time_s * times,
        latency_s=costs.latency_s * times,
        late_s=costs.late_s * times,
    )


def known_switching(job: SimulatedJob) -> NodeSwitching:
    """What the policy makes of the reports of such a node, when all latencies are known."""
    assert job.nodes is not None
    truth: Truth = job.truth
    physics, gpus = job.nodes.physics, job.nodes.gpus_per_rank
    places = [(rank, gpu) for rank in range(len(job.pipeline.orders)) for gpu in range(gpus)]
    infos = [
        RankInfo(rank=number, dp_rank=0, pp_rank=rank, tp_rank=gpu, available_frequencies=list(truth.clocks_mhz))
        for number, (rank, gpu) in enumerate(places)
    ]
    report = Switching(
        mode="device",
        call_s=physics.call_s,
        gpus=gpus * job.nodes.ranks_per_node if physics.serial else 1,
        latencies_s={mhz: physics.settle_s(mhz) for mhz in truth.clocks_mhz},
    )
    results = []
    for info in infos:
        durations: dict[str, Any] = {}
        for one in job.pipeline.orders[info.pp_rank]:
            durations[one.name] = [[truth.measurement(one.stage, one.name, truth.clocks_mhz[0]).time_s]]
        results.append(
            ProfilingResult(
                rank=info.rank, iter_time=[1.0], iter_energy=[1.0], time_breakdown=durations, switching=report
            )
        )
    found = measured_switching(results, infos)
    assert found is not None
    lengths_s = [each[0][0] for result in results for each in result.time_breakdown.values()]
    return node_switching(found, fmean(lengths_s))
