"""The one rule by which plans are chosen.

run    the plan with the largest expected saving among those that are late by more than the tolerance with a
       probability of at most 16 % (one standard error)
try    a plan that may save more since it uses clocks that are hardly known, if the possible gain is worth a window
stop   when there is none: the plan in force stays until the monitor finds that something has changed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import NormalDist

from pfo_fs.autotune.curves import CAUTIOUS, HOPEFUL, View
from pfo_fs.autotune.job_layout import ClockPlan
from pfo_fs.autotune.judgements import Judgement
from pfo_fs.autotune.model import JobModel

TOLERANCE = 0.0008
"""Relative: iterations of a plan may be longer than the target by this much on average. It takes 150 iterations
to measure that of a job whose iterations scatter by 1 %."""
SURE = 1.0
"""A plan is in time if it is late by less than the tolerance even if it is later than expected by one standard error:
84 % of all such plans are."""
LEAST_GAIN = 0.003
"""Relative to the energy at max clocks: another plan takes the place of the one in force if it saves this much
more. A smaller difference is within the error of what is believed of two plans."""
HORIZON = 300
"""What a trial may win counts for 300 iterations, or for as many as the job has run, if they are more: most jobs that
have run for n iterations run for n more (Lindy's law)."""
LOST_TIME = 0.0005
"""Relative: all trials together may take 0.05 % of the time of the iterations so far and those of the horizon. A trial
counts with what is expected of it, and later with what it took."""
MOST_LATE_TRIAL = 0.015
"""Relative: a plan that is expected to be later than this is not tried: its steps would stand out in a training log."""
LUCK = 0.05
"""A plan is as good as is hoped of it with about this probability (two standard errors in time, one in power)."""
_HOPES = (1.0, 0.7, 0.5, 0.35, 0.25)
"""How optimistic a plan is: a less optimistic plan loses less when it is wrong. The first that may be tried counts."""
_EVERY = (1, 2, 4, 8, 16)
"""A trial changes the clocks of all micro-batches, or of every second, fourth and so on: that tells all about the
clocks of which something is hoped."""
PARTS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""A trial changes the clocks by all that is hoped for, or by half of it, a quarter and so on: a small step tells how
closely an instruction follows its clock, so that the next step can be larger."""
_REMEMBERED = 8
"""Of the plans that were measured, the latest 8 may run again: about as many as a job tries until it settles."""
_MOST_WINDOWS = 3
"""A trial goes on while it is neither surely in time nor surely late, for three windows at most. Each has
twice the steps of the window before, so that a plan that is far too late ends after few."""
TRIALS_IN_VAIN = 2
"""After two trials in a row that won nothing, one that only hopes is made after each regular measurement of the plan in
force: these come ever more rarely, so that the number of trials grows with the logarithm of the iterations. A plan that
is expected to save more is tried after twice as many in vain: the job settles also where expectations keep failing."""
_MOST_MADE = 4
"""A plan is made again for an earlier end, four times at most, until it is surely in time."""


@dataclass(frozen=True)
class Choice:
    """What to do.

    Attributes:
        plan: The plan.
        judgement: What is believed of it.
        margin: Relative: by how much the planner was asked for another time than the target.
        stays: The plan that runs if a trial is no better; None: there is none yet.
        trial: Whether it is tried because it may save more than is expected of it.
        converged: Whether nothing is worth another window.
        in_vain: How many trials in a row have won nothing.
        windows: How many windows of the plan were measured before, if its trial goes on; else 0.
        steady: Whether plans have one clock per rank so far.
        note: Why, as text for the status.
    """

    plan: ClockPlan
    judgement: Judgement
    margin: float = 0.0
    stays: ClockPlan | None = None
    trial: bool = False
    converged: bool = False
    in_vain: int = 0
    windows: int = 0
    steady: bool = False
    note: str = ""


def in_time(judgement: Judgement) -> bool:
    """Returns whether a plan very likely keeps to its target."""
    return judgement.late + SURE * judgement.late_error <= TOLERANCE


def is_late(judgement: Judgement) -> bool:
    """Returns whether a plan very likely misses its target."""
    return judgement.late - SURE * judgement.late_error > TOLERANCE


def may_be_tried(judgement: Judgement) -> bool:
    """Returns whether a plan is very likely within the limit of a trial."""
    return judgement.late + SURE * judgement.late_error <= MOST_LATE_TRIAL


def trial_time(judgement: Judgement, iterations: int) -> float:
    """Returns how much more time a trial is expected to take, as a number of iterations; none that is early counts.

    Args:
        iterations: For how many iterations all ranks follow the plan, or twice as many half of them.
    """
    late, error = judgement.late, max(judgement.late_error, 1e-9)
    normal = NormalDist()
    return (error * normal.pdf(late / error) + late * normal.cdf(late / error)) * iterations


@dataclass(frozen=True)
class _Planned:
    """The plans that were made for a target.

    Attributes:
        margin: By how much the planner was asked for another time than the target at last, relative.
        sure: The plan that saves most among those that very likely keep to it; None: there is none.
        likely: The plan that saves most among those that may keep to it; None: there is none.
    """

    margin: float
    sure: ClockPlan | None
    likely: ClockPlan | None


def _planned(
    model: JobModel,
    margin: float,
    least_saved: float,
    near: ClockPlan | None,
    steady: bool,
) -> _Planned:
    """Makes plans for the target.

    Plans are made for fewer iterations than they are judged by, and with times that are not known exactly. So the time
    that the planner is asked for moves until the verdict agrees.

    Args:
        model: What is believed.
        margin: Relative: by how much the planner is asked for another time than the target at first.
        least_saved: A plan that saves less than this is of no interest.
        near: The plan that runs; None: there is none.
        steady: Whether all instructions of a rank have one clock.
    """
    made: list[tuple[float, Judgement, ClockPlan]] = []
    # A plan may hardly be faster than max clocks, so the aim nears that in steps.
    least_margin = min(0.0, model.full_s / model.target_s - 1)
    margin = margin if margin > least_margin else least_margin + TOLERANCE / 2
    for _ in range(_MOST_MADE):
        plan = model.plan(1 + margin, near=near, steady=steady)
        found = model.judge(plan)
        over = found.late + SURE * found.late_error - TOLERANCE
        made.append((margin, found, plan))
        # Where there is no room for an earlier end, only a measurement tells.
        is_unsure = found.late <= TOLERANCE < SURE * found.late_error and margin - over < least_margin
        if found.saved <= least_saved or -TOLERANCE / 2 <= over <= 0 or is_unsure:
            break
        margin = max(margin - over - TOLERANCE / 4, least_margin + (margin - least_margin) / 4)
    sure = max((each for each in made if in_time(each[1])), key=lambda each: each[1].saved, default=None)
    likely = max((each for each in made if not is_late(each[1])), key=lambda each: each[1].saved, default=None)
    return _Planned(sure[0] if sure else margin, sure[2] if sure else None, likely[2] if likely else None)


def choose(
    model: JobModel,
    last: Choice | None,
    iterations: int,
    tried: Sequence[ClockPlan],
    lost: float = 0.0,
    is_regular: bool = False,
) -> Choice:
    """Applies the rule.

    Where an iteration is too short for a second clock to act surely within it, plans have one clock per rank until none
    of these is worth another window: each window tells of them, and hardly anything of clocks that change. Where clocks
    do not follow the device, that is all.

    Args:
        model: What is believed.
        last: The choice whose plan is in force; None: none was made yet.
        iterations: Number of iterations so far.
        tried: The plans that were measured, the latest last.
        lost: Time that trials have taken so far, as a number of iterations.
        is_regular: Whether this follows a regular measurement of a plan that had settled.
    """
    if model.one_stretch and (last is None or last.steady):
        found = _choose(model, last, iterations, tried, lost, is_regular, steady=True)
        if model.only_steady or not found.converged:
            return replace(found, steady=True)
    return _choose(model, last, iterations, tried, lost, is_regular, steady=False)


def _choose(
    model: JobModel,
    last: Choice | None,
    iterations: int,
    tried: Sequence[ClockPlan],
    lost: float,
    is_regular: bool,
    steady: bool,
) -> Choice:
    """Applies the rule to plans with any clocks, or to those with one clock per rank."""
    before = [] if last is None else [last.stays, last.plan, *tried[-_REMEMBERED:]]
    known = [plan for plan in before if plan is not None and model.knows(plan)]
    judged = [(plan, model.judge(plan)) for plan in known]
    # The plan that runs, or ran before a trial, stays unless it is surely late; one that was tried has to be in time. A
    # first plan has to be in time more likely than not: there is none to go back to.
    stays = None if last is None else last.stays if last.trial else last.plan
    first = last.plan if last is not None and last.trial and stays is None else None
    usable = [
        (plan, found)
        for plan, found in judged
        if in_time(found) or (plan is stays and not is_late(found)) or (plan is first and found.late <= TOLERANCE)
    ]
    run = usable[0] if usable else None
    for other in usable[1:]:
        if run is not None and other[1].saved > run[1].saved + LEAST_GAIN:
            run = other
    if run is not None and run[1].saved < 0:
        run = None  # max clocks take less
    least = run[1].saved + LEAST_GAIN if run is not None else 0.0
    if last is not None and last.trial and last.plan in tried and last.windows + 1 < _MOST_WINDOWS:
        found = next((found for plan, found in judged if plan == last.plan), None)
        is_open = found is not None and not in_time(found) and not is_late(found)
        if found is not None and is_open and found.saved > least and may_be_tried(found):
            return replace(last, judgement=found, windows=last.windows + 1, note="measuring a plan again")
    planned = _planned(model, last.margin if last is not None else TOLERANCE / 2, least, run and run[0], steady)
    note = ""
    if run is None or (planned.sure is not None and model.judge(planned.sure).saved > least):
        plan = planned.sure or model.max_clocks
        run, note = (plan, model.judge(plan)), "another plan saves more" if last is not None else ""
    plan, judgement = run
    stays = plan if plan in tried else None
    in_vain = _in_vain(last, plan, is_regular)
    left = LOST_TIME * (HORIZON + iterations) - lost
    may_expect = in_vain < 2 * TRIALS_IN_VAIN
    for likely in filter(None, (planned.likely, model.plan(1 + TOLERANCE / 2, CAUTIOUS, plan, steady))):
        found = model.judge(likely)
        took = trial_time(found, model.trial_iterations)
        is_more = found.saved > judgement.saved + LEAST_GAIN
        if likely not in tried and is_more and may_expect and may_be_tried(found) and took <= left:
            note = "measuring a plan that is likely in time"
            return Choice(likely, found, planned.margin, stays, trial=True, in_vain=in_vain, note=note)
    if stays is None:
        return Choice(plan, judgement, planned.margin, plan, in_vain=in_vain, note=note)
    # Half of the time that is left, so that there is some for the next trial.
    may_hope = left > 0 and in_vain < TRIALS_IN_VAIN
    hoped = _hopeful_plan(model, plan, tried, left / 2, steady) if may_hope else None
    if hoped is not None:
        trial, more = hoped
        expected = model.judge(trial)
        energy = max(0.0, judgement.saved - expected.saved) * model.trial_iterations
        may_win = LUCK * more * max(HORIZON, iterations)
        if more > LEAST_GAIN and may_win > energy:
            note = "trying clocks that may take less energy"
            return Choice(trial, expected, planned.margin, plan, trial=True, in_vain=in_vain, note=note)
    return Choice(plan, judgement, planned.margin, plan, converged=True, in_vain=in_vain, note=note)


def _in_vain(last: Choice | None, plan: ClockPlan, is_regular: bool) -> int:
    """How many trials in a row have won nothing, if this plan is to run now; a regular measurement allows one more."""
    if last is None or last.stays is None or plan != last.stays:
        return 0
    found = last.in_vain + last.trial
    return min(found, TRIALS_IN_VAIN - 1) if is_regular else found


def _hopeful_plan(
    model: JobModel, run: ClockPlan, known: Sequence[ClockPlan], most_time: float, steady: bool
) -> tuple[ClockPlan, float] | None:
    """Returns a plan that uses clocks which may be better than expected, and how much more it saves if they are.

    Trials alternate: the full change in few micro-batches, or part of the change in all, so that a trial takes no more
    than `most_time`, as a number of iterations. No plan in `known` is tried again. Neither way is better on
    all jobs: where a change of the clock takes long, few micro-batches tell nothing.
    """
    for share in _HOPES:
        view = View(
            *(share * each for each in (HOPEFUL.times, HOPEFUL.powers, HOPEFUL.time_error, HOPEFUL.power_error))
        )
        hoped = model.plan(1 + TOLERANCE / 2, view, run, steady)
        more = model.saved_if(hoped, view) - model.saved_if(run, view)
        if more <= LEAST_GAIN:
            continue
        number = len(known)
        few = (model.mixed(run, hoped, every, number + first) for every in _EVERY for first in range(every))
        steps = (model.nearer(run, hoped, part) for part in PARTS)
        for plan in chain(steps, few) if number % 2 else chain(few, steps):
            if plan == run or plan in known:
                continue
            found = model.judge(plan)
            if may_be_tried(found) and trial_time(found, model.trial_iterations) <= most_time:
                return plan, more
    return None
