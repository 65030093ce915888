"""What plans with full knowledge of a job's variation save, for `traces.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from _quick_clocks import without_clocks
from _yield_jobs import MOST_LATE, known_switching, problem_of

from pfo_fs.planner import Problem, ScenarioPlanner, Scenarios, SwitchCosts
from pfo_fs.simulator import SimulatedJob
from pfo_fs.simulator.cluster import Played
from pfo_fs.simulator.summary import judged_iterations
from pfo_fs.simulator.traces import SLOW_WORKER

_ROUNDS = 6
"""Plans are made so often, each for the time that makes up for the lateness of the one before when it was played."""

_ROOM = 0.0002
"""A plan that leaves less of the allowed time is good enough: it would save about as little more."""


class Known(NamedTuple):
    """A plan as it is played: energy saved and additional time against max clocks, relative."""

    saved: float
    late: float


def known_plan(job: SimulatedJob, seed: int, iterations: int, slowdown: float) -> Known | None:
    """The best plan of `ScenarioPlanner` for the iterations by which plans are judged.

    Args:
        job: The job.
        seed: The run's seed.
        iterations: The number of iterations of the run.
        slowdown: The longest mean time, as a multiple of that at max clocks.

    Returns:
        None if the job does not vary.
    """
    import numpy as np

    if job.variation is None:
        return None
    cluster = job.cluster(seed)
    cluster.iteration = iterations
    factors = np.array(job.variation.judged(iterations, seed))
    instructions = job.pipeline.instructions
    highest_s = [job.truth.measurement(i.stage, i.name, job.truth.clocks_mhz[0]).time_s for i in instructions]
    groups = _groups(job, factors)
    durations_s = factors * np.array(highest_s)[:, None]
    full_s = fmean(each.full_time_s for each in judged_iterations(cluster, [{}] * job.pipelines))
    best, most = Known(0.0, 0.0), slowdown + MOST_LATE
    planner, allowed_s = ScenarioPlanner(Scenarios(_priced_problem(job), durations_s, groups)), most * full_s
    for _ in range(_ROUNDS):
        clocks = planner.at(allowed_s)
        known = judged(judged_iterations(cluster, [_by_rank(job, clocks[group]) for group in groups]))
        if known.late <= most - 1:
            best = max(best, known)
            if known.late >= most - 1 - _ROOM:
                break
        allowed_s *= most / (1 + known.late)
    return best


def _priced_problem(job: SimulatedJob) -> Problem:
    """The job's true times and powers, with what clock changes cost on its nodes."""
    problem = problem_of(job)
    if job.nodes is None:
        return replace(problem, switch_costs=SwitchCosts(acts_late_s=job.nuisances.switch_s))
    true = known_switching(job)
    return replace(problem, profile=without_clocks(problem.profile, true.slow_mhz), switch_costs=true.costs)


def _groups(job: SimulatedJob, factors: Any) -> list[int]:
    """For each pipeline the number of its group: healthy ones share clocks, each slow one has its own."""
    import numpy as np

    kinds = [(one.stage, one.name) for one in job.pipeline.instructions]
    rows = [[node for node, kind in enumerate(kinds) if kind == wanted] for wanted in sorted(set(kinds))]
    means = np.array([factors[:, row].mean(axis=(0, 1)) for row in rows])
    slow = (means > SLOW_WORKER * np.median(means, axis=1, keepdims=True)).any(axis=0)
    return [int(slow[:pipeline].sum()) + 1 if slow[pipeline] else 0 for pipeline in range(job.pipelines)]


def _by_rank(job: SimulatedJob, clocks_mhz: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
    mhz = iter(clocks_mhz)
    return {rank: [(one.name, next(mhz)) for one in order] for rank, order in enumerate(job.pipeline.orders)}


def judged(iterations: Sequence[Played]) -> Known:
    """Returns what a plan has done in all of these iterations."""
    saved = 1 - sum(each.energy_j for each in iterations) / sum(each.full_energy_j for each in iterations)
    return Known(saved, sum(each.time_s for each in iterations) / sum(each.full_time_s for each in iterations) - 1)
