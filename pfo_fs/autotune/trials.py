"""What a window tells of the plan that was in force, beside what the model makes of the same iterations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pfo_fs.autotune.beliefs import Beliefs, Trial
from pfo_fs.autotune.judgements import ClockPlan, error_of_mean
from pfo_fs.autotune.windows import Window
from pfo_fs.planner.scenarios import Scenarios

if TYPE_CHECKING:
    from pfo_fs.autotune.model import JobModel

Array = Any
"""An array of numpy, which is not typed here."""

_DRIFT_ERROR = 0.005
"""Relative: power drifts by about this much from one window to the next."""


def trial_of(model: JobModel, beliefs: Beliefs, plan: ClockPlan, window: Window) -> Trial:
    """Returns what a window tells of the plan that was in force, beside what the model makes of its iterations."""
    import numpy as np

    reference = beliefs.reference
    assert beliefs.loads is not None
    full_s = beliefs.loads.full_speed_s(window, beliefs.ratios())
    groups = sorted({model.group_of.get(pipeline, 0) for pipeline in window.pipelines})
    columns = [groups.index(model.group_of.get(pipeline, 0)) for pipeline in window.pipelines]
    scenarios = Scenarios(model.everything, full_s, columns)
    clocks = [plan.of(window.pipelines[columns.index(number)]) for number in range(len(groups))]
    off: Array = (window.spans_s.max(axis=1) - scenarios.iteration_times_s(clocks)) / model.full_s
    later, later_error = float(off.mean()), error_of_mean(off)
    tail_j = window.tail_s * model.problem.waiting_power_w * len(window.pipelines)
    saved, saved_error = 0.0, math.inf
    if window.energies_j.all():
        drift = beliefs.power_drift_factor
        ratio = window.energies_j / drift / (scenarios.energy_j(None) + tail_j)
        saved, saved_error = 1 - float(ratio.mean()), error_of_mean(ratio)
    if reference is None:
        return Trial(plan, saved, saved_error, later, later_error)
    scale = 1 - reference.saved
    return Trial(
        plan,
        1 - (1 - saved) / scale,
        float(np.hypot(np.hypot(saved_error, reference.saved_error) / scale, _DRIFT_ERROR)),
        later - reference.later,
        math.hypot(later_error, reference.later_error),
    )
