"""What plans are made for: a target, and pipelines that are slower than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from pfo_fs.errors import PlanError
from pfo_fs.models import PlanInputs, Target

OUTSIDE_THE_JOB = -1
"""Stands for a straggler that is not a pipeline of this job, or of which it is not known which pipeline it is."""


@dataclass(frozen=True)
class PlanGoal:
    """What plans are made for.

    Attributes:
        target: What a person asks for.
        slowdowns: Data-parallel rank of each straggler, and how many times slower than a healthy pipeline it is.
    """

    target: Target
    slowdowns: Mapping[int, float]

    @property
    def slowest(self) -> float:
        """How many times slower than a healthy pipeline the slowest straggler is; 1.0 without stragglers."""
        return max(self.slowdowns.values(), default=1.0)

    @property
    def slow_pipelines(self) -> frozenset[int]:
        """The pipelines that do not run at the speed that they are asked to."""
        return frozenset(pipeline for pipeline, slowdown in self.slowdowns.items() if slowdown != 1.0)

    @property
    def key(self) -> object:
        """Equal for goals that lead to the same plans."""
        return str(self.target), tuple(sorted(self.slowdowns.items()))


def goal_of(plan_inputs: PlanInputs, default_target: Target) -> PlanGoal:
    """Returns the goal that plan inputs stand for.

    Args:
        plan_inputs: The stragglers found and announced, and the target that a person has written, if any.
        default_target: What the scheduler was started with.
    """
    slowdowns = dict(plan_inputs.slow_pipelines)
    announced = plan_inputs.straggler
    if announced is not None:
        pipeline = OUTSIDE_THE_JOB if announced.pipeline is None else announced.pipeline
        slowdowns[pipeline] = max(slowdowns.get(pipeline, 1.0), announced.slowdown)
    return PlanGoal(plan_inputs.target or default_target, slowdowns)


def target_of(slowdown: float | None, deadline: float | None, power: float | None) -> Target:
    """Returns the target that scheduler arguments stand for; no slowdown if none is given.

    Raises:
        PlanError: More than one is given, or a value is out of range.
    """
    given = {"slowdown": slowdown, "deadline": deadline, "power": power}
    asked = {name: value for name, value in given.items() if value is not None} or {"slowdown": 1.0}
    try:
        return Target.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        what = first["loc"][0] if first["loc"] else "target"
        got = "" if what == "target" else f", not {first.get('input')}"
        raise PlanError(f"{what}: {first['msg'].removeprefix('Value error, ')}{got}") from None
