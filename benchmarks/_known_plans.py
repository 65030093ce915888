"""The jobs of `loop_yield.py`, and what a plan with full knowledge of a job saves, for it and for `traces.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median_low
from typing import Any, NamedTuple

import numpy as np

from pfo_fs.autotune.measured_switching import measured_switching
from pfo_fs.device.simulated.physics import A40, A100, GpuModel, node_physics
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import (
    Planner,
    Problem,
    Profile,
    ScenarioPlanner,
    Scenarios,
    SwitchCosts,
    make_pipeline,
    read_profile,
)
from pfo_fs.simulator import ProfileTruth, SimulatedJob
from pfo_fs.simulator.cluster import Played
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.ranks import RankSchedules
from pfo_fs.simulator.summary import judged_iterations
from pfo_fs.simulator.traces import SLOW_WORKER

PROFILES = {
    "gpt3-175b+a100_sxm_bf16.csv": A100,
    "gpt3-175b+a40_bf16.csv": A40,
    "bloom+a100_sxm_bf16.csv": A100,
}
MOST_LATE = 0.001
"""Relative: plans that end later than all at max clocks by more than this do not count."""
_ROUNDS = 6
"""Plans are made so often, each for the time that makes up for the lateness of the one before when it was played."""
_ROOM = 0.0002
"""A plan that leaves less of the allowed time is good enough: it would save about as little more."""
_QUICK_S, _LATE_SHARE = 0.005, 0.25
"""Clocks that act within this time, or this share of an instruction's duration, are quick."""


class Known(NamedTuple):
    """A plan as it is played: energy saved and additional time against max clocks, relative."""

    saved: float
    late: float


def profile_job(path: Path, micro_batches: int, node: str) -> SimulatedJob:
    """A published profile of 8 stages, in 1F1B, with one GPU per stage."""
    gpu: GpuModel = PROFILES[path.name]
    truth = ProfileTruth(read_profile(path), gpu.blocking_power_w)
    pipeline = make_pipeline("1f1b", 8, micro_batches)
    return SimulatedJob(f"{path.stem} 8x{micro_batches}", pipeline, truth, nodes=nodes_of(node))


def nodes_of(node: str) -> NodeSettings | None:
    """The nodes of a kind; for `launch`, where clocks cannot follow the device, None."""
    return None if node == "launch" else NodeSettings(node_physics(node))


def known_plan(job: SimulatedJob, seed: int, iterations: int, slowdown: float) -> Known:
    """The best plan for the iterations by which plans are judged, made from true times, powers and costs of changes.

    A job that varies gets a plan for its scenarios. For others, several are tried: with all clocks or only those that
    act soon, and with changes at their true costs or at none; the one that saves most when it is played wins.

    Args:
        job: The job.
        seed: The run's seed.
        iterations: The number of iterations of the run.
        slowdown: The longest mean time, as a multiple of that at max clocks.
    """
    cluster = job.cluster(seed)
    cluster.iteration = iterations
    full_s = fmean(each.full_time_s for each in judged_iterations(cluster, [{}] * job.pipelines))
    best, most = Known(0.0, 0.0), slowdown + MOST_LATE
    problems = list(_problems(job))
    planners = [_for_scenarios(job, problems[0], seed, iterations)] if job.variation else map(_for_one, problems)
    if job.nodes is None and not job.variation:
        planners = [_with_one_clock_per_rank(job, problems[0])]
    for plan in planners:
        allowed_s = most * full_s
        for _ in range(_ROUNDS):
            known = judged(judged_iterations(cluster, plan(allowed_s)))
            if known.late <= most - 1:
                best = max(best, known)
                if known.late >= most - 1 - _ROOM:
                    break
            allowed_s *= most / (1 + known.late)
    return best


def judged(iterations: Sequence[Played]) -> Known:
    """Returns what a plan has done in all of these iterations."""
    saved = 1 - sum(each.energy_j for each in iterations) / sum(each.full_energy_j for each in iterations)
    return Known(saved, sum(each.time_s for each in iterations) / sum(each.full_time_s for each in iterations) - 1)


def _for_one(problem: Problem) -> Callable[[float], RankSchedules]:
    planner = Planner(problem)

    def plan(allowed_s: float) -> RankSchedules:
        found = planner.at(deadline=max(allowed_s, planner.fastest_s))
        return [{rank: list(one.frequencies) for rank, one in enumerate(found.schedules())}]

    return plan


def _with_one_clock_per_rank(job: SimulatedJob, problem: Problem) -> Callable[[float], RankSchedules]:
    """Where clocks do not follow the device."""
    planner = ScenarioPlanner(problem.alike)
    return lambda allowed_s: [_by_rank(job, planner.one_clock_per_rank(allowed_s)[0])]


def _for_scenarios(job: SimulatedJob, problem: Problem, seed: int, iterations: int) -> Callable[[float], RankSchedules]:
    assert job.variation is not None
    factors = np.array(job.variation.judged(iterations, seed))
    nodes = job.pipeline.instructions
    highest_s = [job.truth.measurement(one.stage, one.name, job.truth.clocks_mhz[0]).time_s for one in nodes]
    groups = _groups(job, factors)
    planner = ScenarioPlanner(Scenarios(problem, factors * np.array(highest_s)[:, None], groups))

    def plan(allowed_s: float) -> RankSchedules:
        clocks = planner.at(allowed_s) if job.nodes is not None else planner.one_clock_per_rank(allowed_s)
        return [_by_rank(job, clocks[group]) for group in groups]

    return plan


def _groups(job: SimulatedJob, factors: Any) -> list[int]:
    """For each pipeline the number of its group: healthy ones share clocks, each slow one has its own."""
    kinds = [(one.stage, one.name) for one in job.pipeline.instructions]
    rows = [[node for node, kind in enumerate(kinds) if kind == wanted] for wanted in sorted(set(kinds))]
    means = np.array([factors[:, row].mean(axis=(0, 1)) for row in rows])
    slow = (means > SLOW_WORKER * np.median(means, axis=1, keepdims=True)).any(axis=0)
    return [int(slow[:pipeline].sum()) + 1 if slow[pipeline] else 0 for pipeline in range(job.pipelines)]


def _by_rank(job: SimulatedJob, clocks_mhz: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
    mhz = iter(clocks_mhz)
    return {rank: [(one.name, next(mhz)) for one in order] for rank, order in enumerate(job.pipeline.orders)}


# ---- true times, powers and costs


def _problems(job: SimulatedJob) -> Iterator[Problem]:
    """The job's problem; on nodes first with quick clocks, then with the quicker half of the others, and with all."""
    kinds = sorted({(one.stage, one.name) for one in job.pipeline.instructions})
    table = {kind: [job.truth.measurement(*kind, mhz) for mhz in job.truth.clocks_mhz] for kind in kinds}
    gpus = 1 if job.nodes is None else job.nodes.gpus_per_rank
    problem_of = partial(
        Problem,
        job.pipeline.with_delay(job.nuisances.delay_s),
        blocking_power_w=job.truth.blocking_power_w,
        overhead_s=job.nuisances.overhead_s,
        gpus_per_rank=gpus,
    )
    if job.nodes is None:
        yield problem_of(Profile(table))
        return
    costs = _true_costs(job)
    lengths_s = [table[one.stage, one.name][0].time_s for one in job.pipeline.instructions]
    quick_s = max(_QUICK_S, _LATE_SHARE * fmean(lengths_s))
    slow_s = sorted(latency_s for latency_s in costs.latencies_s.values() if latency_s > quick_s)
    for most_s in dict.fromkeys([quick_s, *([median_low(slow_s), slow_s[-1]] if slow_s else [])]):
        left_out = {mhz for mhz, latency_s in costs.latencies_s.items() if latency_s > most_s}
        offered = {kind: [row for row in rows[1:] if row.frequency_mhz not in left_out] for kind, rows in table.items()}
        profile = Profile({kind: [table[kind][0], *rows] for kind, rows in offered.items()})
        latency_s = costs.latency_s if most_s == quick_s else most_s
        yield problem_of(profile, switch_costs=replace(costs, latency_s=latency_s))
        yield problem_of(profile, switch_costs=replace(costs, latency_s=0.0, timing_error_s=0.0, driver_time_s=0.0))


def _true_costs(job: SimulatedJob) -> SwitchCosts:
    """What the policy makes of the reports of such nodes, when all latencies are known."""
    assert job.nodes is not None
    physics, gpus, clocks_mhz = job.nodes.physics, job.nodes.gpus_per_rank, job.truth.clocks_mhz
    report = Switching(
        mode="device",
        call_s=physics.call_s,
        gpus=gpus * job.nodes.ranks_per_node if physics.serial else 1,
        latencies_s={mhz: physics.latency_s(mhz) for mhz in clocks_mhz},
    )
    infos = [
        RankInfo(rank=rank * gpus + gpu, dp_rank=0, pp_rank=rank, tp_rank=gpu, available_frequencies=list(clocks_mhz))
        for rank in range(len(job.pipeline.orders))
        for gpu in range(gpus)
    ]
    results = [ProfilingResult(rank=info.rank, iter_time=[1.0], iter_energy=[1.0], switching=report) for info in infos]
    found = measured_switching(results, infos)
    assert found is not None
    return found
