"""The goal of a plan: a target, and the pipelines that are slower than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from pfo_fs.errors import PlanError, first_problem
from pfo_fs.models import PlanInputs, Target, implausible

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
    def slowest(self) -> float:
        """Iteration time of the slowest straggler as a multiple of a healthy pipeline's; 1.0 without stragglers."""
        return max(self.slowdowns.values(), default=1.0)

    @property
    def slow_pipelines(self) -> frozenset[int]:
        """The pipelines that are slower than their clocks explain."""
        return frozenset(pipeline for pipeline, slowdown in self.slowdowns.items() if slowdown > 1.0)

    @property
    def key(self) -> object:
        """A key that is equal for goals with the same plans."""
        return str(self.target), tuple(sorted(self.slowdowns.items()))


def goal_of(plan_inputs: PlanInputs, default_target: Target) -> PlanGoal:
    """Returns the goal that follows from plan inputs.

    Args:
        plan_inputs: The stragglers found and announced, and the target that the user has written, if any.
        default_target: The target from the scheduler's arguments.
    """
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
