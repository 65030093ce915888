"""How much room a plan leaves, so that iterations under it take what the target allows, by the model and beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pfo_fs.autotune.corrections import MOST_TIME_MARGIN
from pfo_fs.autotune.plan_selection import LEAST_TIME_GAIN, PlanSelection

_AIM = 0.0007
"""Relative: plans are made to be late by this on average; to be on time exactly costs far more energy."""
_MOST_STEPS, _SURE, _MOST_AIMED, _MOST_FASTER = 4, 0.0002, 0.05, 0.003
"""At most this many time margins are tried, until a plan is within the second number of the aim; the third one is the
largest margin. A plan that is late by less than the fourth one is made faster; for others that takes too much energy.
"""
_MANY = 600
"""With more instructions than this, half as many margins are tried, the last one first."""
_MARGIN_PER_LATENESS = 2.0
"""So much time margin makes iterations faster by one, as a first guess: only slowed instructions get the margin."""


def aim(selection: PlanSelection, unexplained: float) -> None:
    """Sets the corrections so that the next plan is in time: of several time margins, the one that takes least energy.

    A plan from a small margin is made faster instruction by instruction, one from a large margin is in time as it is.
    Which of them takes less energy depends on the job.

    Args:
        selection: The plans.
        unexplained: By how much iterations are longer than by the model, relative.
    """
    corrections = selection.corrections
    late_by = round(_AIM - unexplained, 5)
    # A deadline is made longer only because measured iterations were shorter than the target, not because the planner
    # was careful about clocks that are not known well.
    least = -_AIM if unexplained > -LEAST_TIME_GAIN else -MOST_TIME_MARGIN
    margin, steps = max(least, min(-_AIM, unexplained)), _MOST_STEPS
    if len(selection.model.problem.pipeline.instructions) > _MANY and corrections.time_margin > 0:
        margin, steps = corrections.time_margin, _MOST_STEPS // 2  # each takes seconds
    tried: list[_Tried] = []
    found: list[tuple[float, float, float]] = []  # late, energy, margin

    def make_faster(margin: float) -> None:
        """Finds the plan of a margin, made faster if that is needed."""
        corrections.time_margin, corrections.late_by = margin, late_by
        plan = selection.planned_for(0)
        late = selection.predicted_off(plan) + unexplained - _AIM
        found.append((late, plan.energy_j, margin))

    for step in range(steps):
        corrections.time_margin, corrections.late_by = round(margin, 5), math.inf
        plan = selection.planned_for(0)
        late = selection.predicted_off(plan) + unexplained - _AIM
        saves = plan.frequencies_mhz != selection.model.full_speed.frequencies_mhz
        tried.append(_Tried(corrections.time_margin, late, saves))
        margin = max(least, min(_next_margin(tried), _MOST_AIMED))
        is_last = abs(late) <= _SURE or margin == corrections.time_margin or step == steps - 1
        if late <= _MOST_FASTER or is_last:
            make_faster(corrections.time_margin)
        if is_last:
            break
    if tried[0].saves and not any(each.saves for each in tried[1:]) and found[0][2] != tried[0].margin:
        make_faster(tried[0].margin)  # it takes energy, but all others save nothing
    corrections.late_by = late_by
    on_time = [each for each in found if each[0] <= _SURE]
    best = min(on_time, key=lambda each: each[1]) if on_time else min(found)
    corrections.time_margin = best[2]


class _Tried(NamedTuple):
    """A time margin, how late its plan is, and whether that saves anything: any instruction has a lower clock."""

    margin: float
    late: float
    saves: bool


def _next_margin(tried: Sequence[_Tried]) -> float:
    """Returns the time margin to try after some that made plans late by so much, relative."""
    margin, late, saves = tried[-1]
    smaller = [each.margin for each in tried if each.saves]
    if not saves and smaller:
        return (margin + max(smaller)) / 2  # no plan is that fast, so all run at the highest clocks
    if len(tried) > 1:
        before, late_before, _ = tried[-2]
        gained = late_before - late
        if gained * (margin - before) > 0:  # a larger margin made iterations faster
            step = late * (margin - before) / gained
            most = 2 * abs(margin - before)
            return margin + max(-most, min(step, most))
    return margin + (late if margin <= 0 and late < 0 else _MARGIN_PER_LATENESS * late)
