"""The goal of a plan (a target, and slow pipelines), and plans as the schedules of ranks, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import ValidationError

from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.judgements import ClockPlan
from pfo_fs.errors import PlanError, first_problem
from pfo_fs.models import FrequencySchedule, PlanInputs, Target, implausible


def schedules_of(plan: ClockPlan, layout: JobLayout, first_nodes: Sequence[int]) -> list[FrequencySchedule]:
    """Returns the schedule of each rank whose clocks can be set.

    Args:
        plan: The plan.
        layout: The job.
        first_nodes: The first node of each rank of a pipeline, and the one behind the last rank's last.
    """
    return [
        layout.schedule(info.rank, plan.of(info.dp_rank)[first_nodes[info.pp_rank] : first_nodes[info.pp_rank + 1]])
        for info in layout.rank_infos
        if info.available_frequencies
    ]


def plan_of(
    schedules: Sequence[FrequencySchedule],
    layout: JobLayout,
    first_nodes: Sequence[int],
    highest_mhz: Sequence[int],
    group_of: Mapping[int, int],
) -> ClockPlan:
    """Returns the plan that schedules run; ranks without one, or with another order, run at max clocks.

    Args:
        schedules: At most one per rank.
        layout, first_nodes: As for `schedules_of`.
        highest_mhz: The highest clock of each node, in MHz.
        group_of: The group of each pipeline that runs clocks of its own.
    """
    rows: dict[int, list[int]] = {}
    for schedule in schedules:
        info = layout.place[schedule.rank]
        first, last = first_nodes[info.pp_rank], first_nodes[info.pp_rank + 1]
        row = rows.setdefault(info.dp_rank, list(highest_mhz))
        if len(schedule.frequencies) == last - first:
            row[first:last] = [mhz or highest_mhz[first + at] for at, (_, mhz) in enumerate(schedule.frequencies)]
    members: dict[int, int] = {}
    for pipeline in sorted(rows):
        members.setdefault(group_of.get(pipeline, 0), pipeline)
    highest = tuple(highest_mhz)
    clocks = [tuple(rows[members[group]]) if group in members else highest for group in range(1 + len(group_of))]
    return ClockPlan(tuple(clocks), group_of)


def changes_of(plan: ClockPlan, first_nodes: Sequence[int]) -> int:
    """Returns the number of clock changes within an iteration of the pipeline that has most, all ranks together.

    Args:
        plan: The plan.
        first_nodes: As for `schedules_of`.
    """
    return max(
        sum(
            mhz != following for first, last in pairwise(first_nodes) for mhz, following in pairwise(clocks[first:last])
        )
        for clocks in plan.clocks_mhz
    )


def stretches_of(
    first_nodes: Sequence[int], times_s: Sequence[float], long_enough_s: float, clock_unknown_s: float
) -> list[int]:
    """Returns for each node the number of its stretch of the iteration; those of a rank begin with the rank's number.

    A stretch is one instruction, or several short ones that together last until a new clock acts; its last one begins
    when the clock is known to act.

    Args:
        first_nodes: As for `schedules_of`.
        times_s: Mean duration of each node, in s.
        long_enough_s: Least duration of a stretch, in s.
        clock_unknown_s: For how long after a change it is unknown which clock an instruction has run at, in s.
    """
    found: list[int] = []
    for rank, (first, last) in enumerate(pairwise(first_nodes)):
        number, lasted_s, last_began_s, left_s = rank, 0.0, 0.0, sum(times_s[first:last])
        for node in range(first, last):
            if lasted_s >= long_enough_s <= left_s and last_began_s >= clock_unknown_s:
                number, lasted_s = number + 1, 0.0
            found.append(number)
            last_began_s = lasted_s
            lasted_s += times_s[node]
            left_s -= times_s[node]
    return found


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
