"""What the default policy reports: a line of what it plans for and has measured, and its figures. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfo_fs.autotune.judgements import Judgement, Trial
from pfo_fs.autotune.plan_schedules import OUTSIDE_THE_JOB, PlanGoal

if TYPE_CHECKING:
    from pfo_fs.autotune.model import JobModel

TIMES_THE_ERROR = 2.0
"""Figures are given with two standard errors: the true one is within that in 95 % of all cases."""


def goal_text(goal: PlanGoal, impossibility: str, reasons: Mapping[int, str]) -> str:
    """Returns the text about the goal of the plans.

    Args:
        goal: Target and stragglers.
        impossibility: Why no plan keeps to the target; empty if one does.
        reasons: For each pipeline that was found to straggle, how that was noticed.
    """
    text = f"target: {goal.target}"
    if impossibility:
        text += f", which is impossible: {impossibility}"
    if goal.slowdowns:
        names = ", ".join(
            "announced"
            if pipeline == OUTSIDE_THE_JOB
            else f"pipeline {pipeline} ({reasons.get(pipeline, 'announced')})"
            for pipeline in sorted(goal.slowdowns)
        )
        text += f"; pace of a straggler, {goal.slowest:.2f} times as slow: {names}"
    return text


def measured_text(found: Judgement, trial: Trial | None) -> str:
    """Returns what was measured of a plan beside default clocks, each figure with its error.

    Args:
        found: What is believed of it.
        trial: What was measured; None: nothing yet. Nothing that is only modelled is said.
    """
    if not found.saved and not found.saved_error:
        return "all at max clocks"
    if trial is None:
        return "not measured yet"
    energy = "energy not measured yet"
    if trial.saved_error < math.inf:
        verb = "saves" if found.saved >= 0 else "takes more energy, by"
        energy = f"{verb} {_with_error(abs(found.saved), found.saved_error, 1)}"
    time = f"{_with_error(abs(found.slower), found.late_error, 2)} {'slower' if found.slower >= 0 else 'faster'}"
    steps = f"against {trial.default_steps:,} steps at default clocks" if trial.default_steps else "beside the model"
    return f"{energy}, {time}, {steps}"


def _with_error(value: float, error: float, digits: int) -> str:
    return f"{100 * value:.{digits}f} ± {100 * TIMES_THE_ERROR * error:.{digits}f} %"


def figures_of(model: JobModel, found: Judgement, trial: Trial | None) -> dict[str, float]:
    """Returns the figures of a model, by the names in `model.json`, and what was measured of the plan in force."""
    measured: dict[str, float] = {}
    if trial is not None:
        measured = {"more_time": found.slower, "off_target": found.late, "more_time_error": found.late_error}
        measured["default_steps"] = trial.default_steps
        if trial.saved_error < math.inf:
            measured |= {"energy_saved": found.saved, "energy_saved_error": found.saved_error}
    delay_s = model.calibration.delay_s if model.calibration else 0.0
    return {"blocking_power_w": model.problem.blocking_power_w, "delay_s": delay_s, **measured}
