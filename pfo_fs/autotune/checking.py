"""Whether the schedule in force makes training slower, from one window in turns alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pfo_fs.autotune.beliefs import LEAST_BLOCK_S, LEAST_ROUNDS, Beliefs, block_of
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.model import JobModel
from pfo_fs.autotune.plan_schedules import PlanGoal, target_of
from pfo_fs.autotune.status_text import TIMES_THE_ERROR
from pfo_fs.autotune.trials import trial_of
from pfo_fs.autotune.windows import measured_results
from pfo_fs.models import FrequencySchedule, InstructionOrders, JobInfo, ProfilingResult, RankInfo
from pfo_fs.scheduler.checks import plausible_results
from pfo_fs.turns import ROUND

_USUAL_STEPS = 96
"""Time is then known to about 0.05 %, and energy to a twentieth of its saving."""


class Checked(NamedTuple):
    """What a schedule does, relative to default clocks; errors are two standard errors.

    Attributes:
        slower, slower_error: By how much longer steps are.
        saved, saved_error: Energy saved; the error is infinite where energies are not known.
        steps, default_steps: Number of steps that tell it, and of those at default clocks; one in which half of the
            ranks had them is half.
    """

    slower: float
    slower_error: float
    saved: float
    saved_error: float
    steps: int
    default_steps: int


def turns_for(step_s: float, latency_s: float, steps: int | None) -> tuple[int, int]:
    """Returns for how many steps each turn lasts, and how many steps there are: whole rounds of turns.

    Args:
        step_s: How long a step takes, in s.
        latency_s: How much later a clock acts than it is requested, in s.
        steps: For how many steps, at least; None: as many as tell enough.
    """
    block = block_of(step_s, latency_s, LEAST_BLOCK_S)
    a_round = block * len(ROUND)
    rounds = math.ceil((steps or _USUAL_STEPS) / a_round)
    return block, a_round * (rounds if steps else max(LEAST_ROUNDS, rounds))


def checked(
    job_info: JobInfo,
    rank_infos: Sequence[RankInfo],
    orders: InstructionOrders,
    schedules: Sequence[FrequencySchedule],
    results: Sequence[ProfilingResult],
    turns: Sequence[int],
) -> Checked | None:
    """Returns what schedules do, from results under them in turns; None if no pipeline was measured on all stages.

    Args:
        rank_infos: All ranks, sorted.
        orders: The order of instructions of each rank.
        turns: Which ranks followed the schedules in which step, as in `Term`.
    """
    beliefs = Beliefs(JobLayout(job_info, rank_infos, lambda: orders))
    plausible = plausible_results(results, beliefs.layout.place.keys())
    window = beliefs.take(measured_results(plausible), schedules, turns)
    if window is None or beliefs.problem():
        return None
    by_pipeline: dict[int, list[object]] = {}
    for one in schedules:
        info = beliefs.layout.place[one.rank]
        by_pipeline.setdefault(info.dp_rank, []).append((info.pp_rank, info.tp_rank, one.frequencies))
    first = by_pipeline.get(window.pipelines[0])
    others = [pipeline for pipeline in window.pipelines if by_pipeline.get(pipeline) != first]
    goal, waiting_w = PlanGoal(target_of(None, None, None), {}), beliefs.blocking_power_w()
    model = JobModel(beliefs, goal, waiting_w, keep=others)
    plan = model.plan_of(schedules)
    trial = trial_of(model, beliefs, plan, window, len(turns) // len(ROUND))
    beliefs.add_trial(plan.key, trial)
    judged = JobModel(beliefs, goal, waiting_w, keep=others).judge(plan)
    share = float(window.spans_s.max(axis=1).mean() / window.step_s.max(axis=1).mean())  # the rest is as long as it was
    return Checked(
        share * judged.slower,
        TIMES_THE_ERROR * share * judged.late_error,
        trial.saved,
        TIMES_THE_ERROR * trial.saved_error,
        window.iterations,
        trial.default_steps,
    )
