"""The jobs of `loop_yield.py`, and what a plan with full knowledge of a job saves, for it and for `traces.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median_low
from typing import Any, NamedTuple

import numpy as np

from pfo_fs.autotune.samples import measured_switching
from pfo_fs.device.simulated.physics import A40, A100, GpuModel, node_physics
from pfo_fs.models import ProfilingResult, RankInfo, Switching
from pfo_fs.planner import (
    Measurement,
    Problem,
    Profile,
    ScenarioPlanner,
    Scenarios,
    SwitchCosts,
    make_pipeline,
    read_profile,
)
from pfo_fs.planner.scenario_descent import ScenarioDescent
from pfo_fs.planner.scenario_model import Played
from pfo_fs.planner.switch_costs import SwitchLoad
from pfo_fs.simulator import Cluster, SimulatedJob, read_trace
from pfo_fs.simulator import Played as PlayedIteration
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.summary import judged_iterations
from pfo_fs.simulator.traces import SLOW_WORKER
from pfo_fs.simulator.truth import Truth

PROFILES = {
    "gpt3-175b+a100_sxm_bf16.csv": A100,
    "gpt3-175b+a40_bf16.csv": A40,
    "bloom+a100_sxm_bf16.csv": A100,
}
MOST_LATE = 0.001
"""Relative: plans that end later than all at max clocks by more than this do not count."""
_ROUNDS = 2
"""Plans are made so often in each way, each for the time that makes up for what the one before was off when played."""
_WALKS = 300
"""Of a planner's descent through its model: the descent through what is played goes on from there."""
_LEAST_PLAYS, _MOST_PLAYS, _INSTRUCTIONS = 2, 25, 200_000
"""A descent plays so many plans, or so many instructions in all: on nodes, a second has about 10,000 of them."""
_ROOM = 0.0002
"""A plan that leaves less of the allowed time is good enough: it would save about as little more."""
_QUICK_S, _LATE_SHARE = 0.005, 0.25
"""Clocks that act within this time, or this share of an instruction's duration, are quick."""


class Known(NamedTuple):
    """A plan as it is played: energy saved and additional time against max clocks, relative."""

    saved: float
    late: float


class ProfileTruth(Truth):
    """The truth of a measured profile, at clocks that were measured for all instructions: its means are exact."""

    def __init__(self, profile: Profile, blocking_power_w: float) -> None:
        self._tables = {kind: {m.frequency_mhz: m for m in ms} for kind, ms in profile.measurements.items()}
        common = set.intersection(*(set(table) for table in self._tables.values()))
        self.model = GpuModel("", tuple(sorted(common, reverse=True)), (0.0, 0.0), blocking_power_w, {}, {})

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock."""
        return self._tables[stage, instruction][mhz]


def profile_job(path: Path, micro_batches: int, node: str) -> SimulatedJob:
    """A published profile of 8 stages, in 1F1B, with one GPU per stage."""
    gpu: GpuModel = PROFILES[path.name]
    truth = ProfileTruth(read_profile(path), gpu.blocking_power_w)
    pipeline = make_pipeline("1f1b", 8, micro_batches)
    return SimulatedJob(f"{path.stem} 8x{micro_batches}", pipeline, truth, nodes=nodes_of(node))


def nodes_of(node: str) -> NodeSettings | None:
    """The nodes of a kind; for `launch`, where clocks cannot follow the device, None."""
    return None if node == "launch" else NodeSettings(node_physics(node))


def slow_workers(path: Path) -> tuple[int, ...]:
    """The dp_ranks of a trace in which instructions of a stage take much longer than in the median pipeline."""
    trace = read_trace(path)
    kinds = [(i.stage, i.name) for i in trace.pipeline.instructions]
    means = [trace.full_s[:, [one == kind for one in kinds]].mean(axis=(0, 1)) for kind in sorted(set(kinds))]
    slow = np.any([of_kind > SLOW_WORKER * np.median(of_kind) for of_kind in means], axis=0)
    return tuple(np.array(trace.dp_ranks)[slow].tolist())


def known_plan(job: SimulatedJob, seed: int, iterations: int, slowdown: float) -> Known:
    """The best plan found for the iterations by which plans are judged, with true times, powers and costs of changes.

    Plans are made in several ways: with clocks that act soon, or more of them, or all; with changes at their true
    costs, at none, or without changes. Each is played, and made again for the time that it was off. Then a descent that
    is judged by what plans do when they are played repairs it if it is late, and makes it better: what a planner's
    model misses counts, such as clocks that act late where durations vary.

    Args:
        job: The job.
        seed: The run's seed.
        iterations: The number of iterations of the run.
        slowdown: The longest mean time, as a multiple of that at max clocks.
    """
    cluster = job.cluster(seed)
    cluster.iteration = iterations
    problems = list(_problems(job))
    truth = _PlayedScenarios(job, cluster, problems[-2], slowdown + MOST_LATE)
    descent = ScenarioDescent(truth)

    def descend(clocks: Any) -> None:
        truth.plays_left = truth.plays_each
        with suppress(_NoPlaysLeft):
            descent.improve(clocks, truth.most_s)

    for plan in _ways(job, problems, truth):
        allowed_s = truth.most_s
        for _ in range(_ROUNDS):
            truth.plays_left = 1
            made = truth.play(truth.numbers(plan(allowed_s)))
            left_s = truth.most_s - made.mean_s
            allowed_s += left_s
            if 0 <= left_s <= _ROOM * truth.most_s or allowed_s < truth.most_s / truth.most_late:
                break  # it is good, or no plan is so short in the planner's model
        descend(made.clocks)
    descend(truth.best_clocks)
    return truth.best


def judged(iterations: Sequence[PlayedIteration]) -> Known:
    """Returns what a plan has done in all of these iterations."""
    saved = 1 - sum(each.energy_j for each in iterations) / sum(each.full_energy_j for each in iterations)
    return Known(saved, sum(each.time_s for each in iterations) / sum(each.full_time_s for each in iterations) - 1)


# ---- how plans are made


def _ways(
    job: SimulatedJob, problems: Sequence[Problem], truth: Scenarios
) -> Iterator[Callable[[float], list[list[int]]]]:
    """Yields functions that make plans for a longest mean time, in s: for each group, clocks of the nodes in MHz."""
    groups = truth.groups.tolist()
    yield ScenarioPlanner(Scenarios(problems[-1], truth.full_s, groups)).one_clock_per_rank
    for problem in problems:
        if all(len(rows) == 1 for rows in problem.profile.measurements.values()):
            continue  # no clock acts soon
        yield ScenarioPlanner(Scenarios(problem, truth.full_s, groups), most_walks=_WALKS).at


def _groups(job: SimulatedJob, factors: Any) -> list[int]:
    """For each pipeline the number of its group: healthy ones share clocks, each slow one has its own."""
    kinds = [(one.stage, one.name) for one in job.pipeline.instructions]
    rows = [[node for node, kind in enumerate(kinds) if kind == wanted] for wanted in sorted(set(kinds))]
    means = np.array([factors[:, row].mean(axis=(0, 1)) for row in rows])
    slow = (means > SLOW_WORKER * np.median(means, axis=1, keepdims=True)).any(axis=0)
    return [int(slow[:pipeline].sum()) + 1 if slow[pipeline] else 0 for pipeline in range(job.pipelines)]


class _NoPlaysLeft(Exception):
    """A descent has played as many plans as it may."""


class _PlayedScenarios(Scenarios):
    """The iterations by which plans are judged; `play` plays them on the cluster, in place of a planner's model.

    Attributes:
        most_late: The longest mean time, as a multiple of that at max clocks.
        most_s: The same in s.
        best, best_clocks: The best plan of all that were played, its clocks as positions.
        plays_each: How many plans a descent may play.
        plays_left: How many further plans may be played.
    """

    def __init__(self, job: SimulatedJob, cluster: Cluster, problem: Problem, most_late: float) -> None:
        full = judged_iterations(cluster, [{}] * job.pipelines)
        full_s = np.stack([(each.ends_s - each.starts_s).reshape(-1, job.pipelines) for each in full])
        super().__init__(problem, full_s, _groups(job, full_s))
        self._job, self._cluster, self.most_late = job, cluster, most_late
        self._known: dict[bytes, Played] = {}
        self.best, self.best_clocks = Known(0.0, 0.0), self.max_clocks
        self.plays_each = min(_MOST_PLAYS, max(_LEAST_PLAYS, _INSTRUCTIONS // full_s.size))
        self.plays_left = 0
        self.most_s = most_late * fmean(each.time_s for each in full)

    def play(self, numbers: Any) -> Played:
        """Returns what clocks, given as positions, do on the cluster."""
        key = numbers.tobytes()
        if key not in self._known:
            if self.plays_left <= 0:
                raise _NoPlaysLeft
            self.plays_left -= 1
            self._known[key] = self._played(numbers)
        return self._known[key]

    def _played(self, numbers: Any) -> Played:
        clocks = self.mhz(numbers)
        played = judged_iterations(self._cluster, [self._by_rank(clocks[group]) for group in self.groups])
        known = judged(played)
        if known.late <= self.most_late - 1 and known > self.best:
            self.best, self.best_clocks = known, numbers
        ends_s = np.stack([each.ends_s for each in played], axis=1).reshape(self.nodes, -1)
        starts_s = np.stack([each.starts_s for each in played], axis=1).reshape(self.nodes, -1)
        spans_s = np.stack([each.spans_s for each in played])
        mean_s, energy_j = fmean(each.time_s for each in played), fmean(each.energy_j for each in played)
        effective_j = energy_j - self.waiting_power_w * mean_s
        load = SwitchLoad(int(self.changed(numbers).sum()))
        return Played(numbers, ends_s - starts_s, ends_s, spans_s, mean_s, effective_j, energy_j, load)

    def _by_rank(self, clocks_mhz: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
        mhz = iter(clocks_mhz)
        return {rank: [(one.name, next(mhz)) for one in order] for rank, order in enumerate(self._job.pipeline.orders)}


# ---- true times, powers and costs


def _problems(job: SimulatedJob) -> Iterator[Problem]:
    """The job's problem, with the true costs of changes and with none: on nodes first with quick clocks, then with the
    quicker half of the others, and with all. The last two have all clocks.
    """
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
        late_s = job.nuisances.switch_s
        yield problem_of(Profile(table), switch_costs=SwitchCosts(latency_s=late_s, timing_error_s=late_s / 2))
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
        call_s=physics.most_call_s,
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
