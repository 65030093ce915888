"""What a window in turns tells of its plan: each rank's steps with it beside its own steps at default clocks."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.beliefs import LEAST_BLOCK_S, LEAST_ROUNDS, Beliefs, block_of
from pfo_fs.autotune.goals import TIMES_THE_ERROR, PlanGoal, target_of
from pfo_fs.autotune.job_layout import ClockPlan, JobLayout
from pfo_fs.autotune.judgements import Figure, Trial, error_of_mean
from pfo_fs.autotune.model import JobModel
from pfo_fs.autotune.windows import Window
from pfo_fs.models import FrequencySchedule, InstructionOrders, JobInfo, ProfilingResult, RankInfo
from pfo_fs.planner.scenarios import Scenarios
from pfo_fs.scheduler.checks import plausible_results
from pfo_fs.turns import ROUND

_MODEL_ERROR = 0.0005
"""Relative: without turns, iterations are compared with the model alone, whose times are off by about this much."""

_MIXED = 0.02
"""Relative to the saving: ticks of an energy counter mix this share of the energies of two turns."""
_AT_CLOCK_BEFORE = 0.05
"""Instructions run for about 5 % of their time at the clock before, since clocks act late. The work of steps with the
plan may be misjudged by this share of the time that lower clocks add."""
_USUAL_STEPS = 96
"""After this many steps, time is known to about 0.05 %, and the energy saved to a twentieth of itself."""


def trial_of(model: JobModel, beliefs: Beliefs, plan: ClockPlan, window: Window, block: int) -> Trial:
    """Returns what a window tells of its plan; each turn lasted for `block` steps, 0: there were no turns."""
    assert beliefs.loads is not None
    full_s = beliefs.loads.at_max_clocks_s(window, beliefs.ratios())
    # The first step after a change has in part the clocks of the turn before. Turns of one step have no other.
    counts: Array = np.full(window.iterations, block < 2)
    counts[1:] |= (window.follows[1:] == window.follows[:-1]).all(axis=(1, 2)) & (np.diff(np.array(window.steps)) == 1)
    shares = np.where(counts, window.follows.mean(axis=(1, 2)), np.nan)
    spans_s: Array = window.spans_s.max(axis=1)
    # Where it is unknown whether a clock acted in time, the measured duration counts: how late it acts is still to be
    # learned. Clocks may also stay late: so the difference between the planned and the measured time is an error.
    planned_logs, _ = beliefs.ratios().at(beliefs.loads.kind_of_node[:, None], window.clocks_mhz)
    as_ran_s = np.where(window.or_mhz > 0, window.times_s / np.exp(planned_logs), full_s)
    modelled_s = _as_modelled(model, window, as_ran_s)
    off = (spans_s - modelled_s) / model.full_s
    later = _slope(off, shares)
    if (window.or_mhz > 0).any():
        as_planned = (_as_modelled(model, window, full_s) - modelled_s) / model.full_s
        later = later._replace(error=math.hypot(later.error, _slope(as_planned, shares).value))
    if not later.is_known:
        later = Figure(float(off.mean()), math.hypot(error_of_mean(off), _MODEL_ERROR))
    saved = Figure()
    if (block - 1) * float(window.step_s.mean()) > LEAST_BLOCK_S / 2:
        alike = Scenarios(model.everything, full_s, range(len(window.pipelines))).iteration_times_s(None)
        longer = _slope(modelled_s / alike, shares).value + later.value
        saved = _saved(model, window, full_s, longer, counts)
    default_steps = round(float(np.nansum(1 - shares)))
    return Trial(plan, saved, later, _slope(spans_s / model.full_s, shares), default_steps)


def _as_modelled(model: JobModel, window: Window, full_s: Array) -> Array:
    """The time that each iteration takes by the model, at the clocks at which it ran, in s."""
    found: Array = np.zeros(window.iterations)
    pipelines = list(range(len(window.pipelines)))
    for turn in np.unique(window.follows, axis=0):
        ran = np.flatnonzero((window.follows == turn).all(axis=(1, 2)))
        clocks = [model.known(window.clocks_mhz[ran[0], :, pipeline].astype(int)) for pipeline in pipelines]
        found[ran] = Scenarios(model.everything, full_s[ran], pipelines).iteration_times_s(clocks)
    return found


def _slope(values: Array, shares: Array) -> Figure:
    """The slope of values over the share of ranks that followed the plan (NaN: the step does not count).

    It is not known without turns. Neighbouring iterations are alike, and turns are spread evenly, so the error is
    rather less than stated.
    """
    counts = ~np.isnan(shares)
    if counts.sum() < 3:
        return Figure()
    values, around = values[counts], shares[counts] - shares[counts].mean()
    squares = float((around**2).sum())
    if squares == 0:
        return Figure()
    slope = float((around * values).sum()) / squares
    rest = values - values.mean() - slope * around
    return Figure(slope, math.sqrt(float((rest**2).sum()) / (len(values) - 2) / squares))


def _saved(model: JobModel, window: Window, full_s: Array, longer: float, counts: Array) -> Figure:
    """The share of energy that the plan saves.

    Each rank's energy, relative to what the model makes of its work in the step at max clocks, is compared between its
    own steps with and without the plan. So the step's work and errors of the model's powers cancel out. So does the
    time by which the plan makes steps `longer`, relative, for all ranks: in that time they wait. The last step before a
    change does not count, either, if each rank has others: a reading of its energy counter that comes after the change
    has a part of both turns. If steps with the plan have more or less work on average, this is chance, or an error of
    the model, which sees that work at other clocks. The scatter of the work and the model's error tell how likely each
    is.
    """
    follows = window.follows
    counts = np.broadcast_to(counts[:, None, None], follows.shape)
    inner: Array = counts.copy()
    inner[:-1] &= counts[1:]
    inner[-1] = False
    if (inner & follows).any(axis=0).all() and (inner & ~follows).any(axis=0).all():
        counts = inner
    with_plan, without = (counts & follows).sum(axis=0), (counts & ~follows).sum(axis=0)
    if (window.energies_j <= 0).any() or (with_plan == 0).any() or (without == 0).any():
        return Figure()
    ranks = np.array([rank for rank, order in enumerate(model.problem.pipeline.orders) for _ in order])
    busy_s, busy_j = (
        np.stack([(full_s * each)[:, ranks == rank].sum(axis=1) for rank in range(ranks.max() + 1)], axis=1)
        for each in (1.0, model.top_powers_w[:, None])
    )
    waiting_s = np.maximum(window.step_s[:, None, :] - busy_s, 0.0)
    usual_j = (busy_j + model.problem.blocking_power_w * waiting_s) * model.problem.gpus_per_rank
    ran_s = np.stack([window.times_s[:, ranks == rank].sum(axis=1) for rank in range(ranks.max() + 1)], axis=1)
    around = np.where(counts, follows - with_plan / (with_plan + without), 0.0)
    squares = (around**2).sum(axis=0)

    def by_turn(values: Array) -> tuple[Array, Array, Array]:
        """The mean of each rank's steps without the plan, by how much those with it differ, and the rest."""
        means = np.where(counts & ~follows, values, 0.0).sum(axis=0) / without
        differ = (around * values).sum(axis=0) / squares
        return means, differ, values - means - differ * follows

    _, more_work, scatter = by_turn(np.log(usual_j))
    misjudged = _AT_CLOCK_BEFORE * np.maximum(0.0, by_turn(np.log(ran_s / busy_s))[1])
    by_chance = (around**2 * scatter**2).sum(axis=0) / squares**2
    true_share = by_chance / np.maximum(by_chance + misjudged**2, 1e-12)
    default_logs, slopes, rest = by_turn(np.log(window.energies_j / usual_j))
    slopes, rest = slopes + (1 - true_share) * more_work, rest + (1 - true_share) * scatter
    weights = np.exp(default_logs) * usual_j.mean(axis=0)
    waiting_w = model.problem.blocking_power_w * model.problem.gpus_per_rank * weights.size
    more = longer * model.full_s * waiting_w / float(weights.sum())
    weights = weights / weights.sum()
    left = weights * np.exp(slopes)
    of_step = (left * around * rest / squares).sum(axis=(1, 2))
    free = max(1.0, float(counts.mean()) * window.iterations - 2)
    error = math.sqrt(float((of_step**2).sum()) * float(counts.mean()) * window.iterations / free)
    saved = 1 - float(left.sum()) - more
    return Figure(saved, math.hypot(error, float((left * true_share * misjudged).sum()), _MIXED * saved))


class Checked(NamedTuple):
    """What a schedule does, relative to default clocks; errors are two standard errors.

    Attributes:
        slower, slower_error: By how much longer steps are.
        saved, saved_error: Energy saved; the error is infinite where energies are not known.
        steps, default_steps: Number of measured steps, and of steps at default clocks; a step in which half of the
            ranks had them counts half.
    """

    slower: float
    slower_error: float
    saved: float
    saved_error: float
    steps: int
    default_steps: int


def turns_for(step_s: float, latency_s: float, steps: int | None) -> tuple[int, int]:
    """Returns for how many steps each turn lasts, and how many steps there are: whole rounds of turns.

    A clock acts `latency_s` after it is requested. There are `steps` at least; None: as many as tell enough.
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

    Ranks are sorted; `turns` says which of them followed the schedules in which step, as in `Term`.
    """
    beliefs = Beliefs(JobLayout(job_info, rank_infos, lambda: orders))
    plausible = plausible_results(results, beliefs.layout.place.keys())
    window = beliefs.take(plausible, schedules, turns)
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
    beliefs.add_trial(trial)
    judged = JobModel(beliefs, goal, waiting_w, keep=others).judge(plan)
    share = float(window.spans_s.max(axis=1).mean() / window.step_s.max(axis=1).mean())  # the rest is as long as it was
    return Checked(
        share * judged.slower,
        TIMES_THE_ERROR * share * judged.late_error,
        trial.saved.value,
        TIMES_THE_ERROR * trial.saved.error,
        window.iterations,
        trial.default_steps,
    )
