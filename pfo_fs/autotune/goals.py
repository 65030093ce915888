"""What plans are made for (a target, and slow pipelines), and what people are told of it and of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pfo_fs.autotune.judgements import Judgement, Trial
from pfo_fs.errors import PlanError, first_problem
from pfo_fs.models import PlanInputs, Target, implausible, share_text

if TYPE_CHECKING:
    from pfo_fs.autotune.model import JobModel

TIMES_THE_ERROR = 2.0
"""Figures are given with two standard errors: the true figure is within them in 95 % of all cases."""
IMPOSSIBLE = "which is impossible"
OUTSIDE_THE_JOB = -1
"""The pipeline number of a straggler that is not in this job, or whose pipeline is not known."""


@dataclass(frozen=True)
class PlanGoal:
    """What plans are made for.

    Attributes:
        target: The user's target.
        slowdowns: For each straggler, by data-parallel rank, its iteration time as a multiple of a healthy pipeline's;
            below 1.0 for a pipeline that has recovered since it was measured.
    """

    target: Target
    slowdowns: Mapping[int, float]

    @property
    def slow_pipelines(self) -> frozenset[int]:
        """The pipelines that are slower than their clocks explain."""
        return frozenset(pipeline for pipeline, slowdown in self.slowdowns.items() if slowdown > 1.0)


def goal_of(plan_inputs: PlanInputs, default_target: Target) -> PlanGoal:
    """Returns the goal that follows from plan inputs; the default target is that of the scheduler's arguments."""
    slowdowns = dict(plan_inputs.slow_pipelines)
    announced = plan_inputs.straggler
    if announced is not None:
        pipeline = OUTSIDE_THE_JOB if announced.pipeline is None else announced.pipeline
        slowdowns[pipeline] = max(slowdowns.get(pipeline, 1.0), announced.slowdown)
    return PlanGoal(plan_inputs.target or default_target, slowdowns)


def target_of(slowdown: float | None, deadline: float | None, power: float | None) -> Target:
    """Returns the target that scheduler arguments describe; if none is given, no slowdown.

    Raises:
        PlanError: More than one is given, or a value is out of range.
    """
    given = {"slowdown": slowdown, "deadline": deadline, "power": power}
    asked = {name: value for name, value in given.items() if value is not None} or {"slowdown": 1.0}
    try:
        target = Target.model_validate(asked)
    except ValidationError as error:
        where, wrong = first_problem(error)
        raise PlanError(f"{where or 'target'}: {wrong}") from None
    if problem := implausible(target.slowdown):
        raise PlanError(f"slowdown: {problem}")
    return target


def goal_text(goal: PlanGoal, impossibility: str, reasons: Mapping[int, str]) -> str:
    """Returns the text about the goal of the plans.

    Args:
        impossibility: Why no plan keeps to the target; empty if one does.
        reasons: For each pipeline that was found to straggle, how that was noticed.
    """
    text = f"target: {goal.target}"
    if impossibility:
        text += f", {IMPOSSIBLE}: {impossibility}"
    if slow := sorted(goal.slow_pipelines):
        told = {each: f"pipeline {each} ({reasons.get(each, 'announced')})" for each in slow}
        names = ", ".join("announced" if each == OUTSIDE_THE_JOB else told[each] for each in slow)
        text += f"; pace of a straggler, {max(goal.slowdowns.values()):.2f} times as slow: {names}"
    return text


def measured_text(believed: Judgement, trial: Trial | None) -> str:
    """Returns what was measured of a plan beside default clocks, each figure with its error.

    The text tells only what was measured; `trial` is None if nothing was measured yet.
    """
    if not believed.saved and not believed.saved_error:
        return "all at max clocks"
    if trial is None:
        return "not measured yet"
    energy = "energy not measured yet"
    if trial.saved.is_known:
        verb = "saves" if believed.saved >= 0 else "takes more energy, by"
        energy = f"{verb} {share_text(abs(believed.saved), TIMES_THE_ERROR * believed.saved_error, 1)}"
    word = "slower" if believed.slower >= 0 else "faster"
    time = f"{share_text(abs(believed.slower), TIMES_THE_ERROR * believed.late_error, 2)} {word}"
    steps = f"against {trial.default_steps:,} steps at default clocks" if trial.default_steps else "beside the model"
    return f"{energy}, {time}, {steps}"


def figures_of(model: JobModel, believed: Judgement, trial: Trial | None) -> dict[str, float]:
    """Returns the figures of a model, by the names in `model.json`, and what was measured of the plan in force."""
    measured: dict[str, float] = {}
    if trial is not None:
        measured = {"more_time": believed.slower, "off_target": believed.late, "more_time_error": believed.late_error}
        measured["default_steps"] = trial.default_steps
        if trial.saved.is_known:
            measured |= {"energy_saved": believed.saved, "energy_saved_error": believed.saved_error}
    delay_s = model.calibration.delay_s if model.calibration else 0.0
    measured |= {"shortest_s": model.full_s + model.tail_s, "lowest_power_w": model.lowest_power_w}
    return {"blocking_power_w": model.problem.blocking_power_w, "delay_s": delay_s, **measured}
