"""What a window tells of the plan that was in force, relative to the model of the same iterations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pfo_fs.arrays import Array
from pfo_fs.autotune.beliefs import Beliefs, Trial
from pfo_fs.autotune.judgements import ClockPlan, error_of_mean
from pfo_fs.autotune.windows import Window
from pfo_fs.planner.scenarios import Scenarios

if TYPE_CHECKING:
    from pfo_fs.autotune.model import JobModel

_WALK = 1e-4
"""Relative: the level of durations drifts by about this much from one iteration to the next, by 0.1 % in a hundred, as
a random walk. It is assumed, not measured: with it, an old window of max clocks counts for little."""
_DRIFT_ERROR = 0.0035
"""Relative: the power of one window is off by about this much, as power drifts by 0.5 % from one to the next."""


def trial_of(model: JobModel, beliefs: Beliefs, plan: ClockPlan, window: Window) -> Trial:
    """Returns what a window tells of the plan that was in force, relative to the model of its iterations.

    The window of max clocks is told relative to the same model, so errors in modelled power do not count as savings.
    """
    assert beliefs.reference is not None
    own = _beside_the_model(model, beliefs, plan, window, beliefs.power_drift_factor)
    reference = _beside_the_model(model, beliefs, model.max_clocks, beliefs.reference, beliefs.reference_drift)
    scale = 1 - reference.saved
    return Trial(
        plan,
        1 - (1 - own.saved) / scale,
        math.hypot(own.saved_error / scale, _DRIFT_ERROR),
        own.later - reference.later,
        math.hypot(own.later_error, reference.later_error),
        *_slower(window, beliefs.reference),
        saved_of_all=math.hypot(reference.saved_error / scale, _DRIFT_ERROR),
        slower_of_all=_error_of_span(beliefs.reference),
        is_checked=beliefs.reference.steps[-1] > window.steps[-1],
    )


def _slower(window: Window, reference: Window) -> tuple[float, float]:
    """By how much the iterations of a window took longer than those of another one, relative.

    Then the error of that, without the other window's.
    """
    if window.pipelines != reference.pipelines:
        return 0.0, math.inf
    now, before = window.spans_s.max(axis=1), reference.spans_s.max(axis=1)
    apart = abs(window.steps[-1] - reference.steps[-1])
    return float(now.mean() / before.mean()) - 1, math.hypot(_error_of_span(window), _WALK * math.sqrt(apart))


def _error_of_span(window: Window) -> float:
    """The standard error of the mean duration of a window's iterations, relative."""
    spans_s = window.spans_s.max(axis=1)
    return error_of_mean(spans_s) / float(spans_s.mean())


def _beside_the_model(model: JobModel, beliefs: Beliefs, plan: ClockPlan, window: Window, drift: float) -> Trial:
    """What was measured under a plan, against what the model makes of the same iterations at max clocks.

    Args:
        model, beliefs, plan, window: As for `trial_of`.
        drift: Power at the time of the window, as a multiple of that of the first measurements.
    """

    assert beliefs.loads is not None
    full_s = beliefs.loads.at_max_clocks_s(window, beliefs.ratios())
    groups = sorted({model.group_of.get(pipeline, 0) for pipeline in window.pipelines})
    columns = [groups.index(model.group_of.get(pipeline, 0)) for pipeline in window.pipelines]
    scenarios = Scenarios(model.everything, full_s, columns)
    clocks = [model.known(plan.of(window.pipelines[columns.index(number)])) for number in range(len(groups))]
    off: Array = (window.spans_s.max(axis=1) - scenarios.iteration_times_s(clocks)) / model.full_s
    saved, saved_error = 0.0, math.inf
    if window.energies_j.all():
        tail_j = window.tail_s * model.problem.waiting_power_w * len(window.pipelines)
        ratio = window.energies_j / drift / (scenarios.energy_j(None) + tail_j)
        saved, saved_error = 1 - float(ratio.mean()), error_of_mean(ratio)
    return Trial(plan, saved, saved_error, float(off.mean()), error_of_mean(off))
