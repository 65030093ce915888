"""Reads what earlier coordinators of a job have published, and replays it to a new scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pfo_fs.coordination.bounds import MOST_REPLAYED
from pfo_fs.errors import RecordError
from pfo_fs.models import FrequencySchedule, PlanInputs
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.store import JobFolder, bodies

_MOST_UNLISTED = 8
"""A network file system may list a folder as it was some seconds ago, without at most so many of the newest names."""


@dataclass
class History:
    """The committed schedules of a job.

    Attributes:
        number: The newest schedule's number; -1 for none.
        source: The newest schedule's source; None if there is none, or if it cannot be read any more.
        start_step: The newest schedule's first step.
        steps: The newest schedule holds for at most this many steps; 0: for ever.
        made: The schedules that the policy made since it started from nothing, ascending. Empty if it cannot go on
            from them.
        plan_inputs: The inputs of the newest schedule of any policy.
        problems: Texts for the log about schedules that cannot be read any more.
    """

    number: int = -1
    source: bodies.Source | None = None
    start_step: int = 0
    steps: int = 0
    made: dict[int, bodies.Source] = field(default_factory=dict)
    plan_inputs: PlanInputs | None = None
    problems: list[str] = field(default_factory=list)


def read_history(folder: JobFolder, policy: str, announced: int = -1) -> History:
    """Reads what was committed.

    Args:
        folder: The job.
        policy: The scheduler and its arguments, as sources name them. Schedules of another policy are left out.
        announced: The schedule that ranks were told to follow; -1 for none. It counts even if it is not listed.
    """
    history, kept = History(), 0
    listed = folder.schedule_numbers()
    after = listed[-1] + 1 if listed else 0
    for number in [*listed, *range(after, min(announced + 1, after + _MOST_UNLISTED))]:
        try:
            index = folder.read_index(number)
        except RecordError as error:  # its number is used anyway; the next schedule replaces it
            history.problems.append(f"schedule {number} cannot be read any more: {error}")
            history.number, history.source = number, None
            history.made.clear()
            continue
        if index is None:
            continue
        history.number, history.source = number, index.source
        history.start_step, history.steps = index.start_step, index.steps
        if index.source.kind == "scheduler":
            history.plan_inputs = index.source.plan_inputs
            if index.source.policy != policy or index.source.revision == 0:
                history.made.clear()  # revision 0: a scheduler started from nothing
            if index.source.policy == policy:
                history.made[number] = index.source
                inputs = (index.source.plan_inputs, index.source.observed_with or PlanInputs())
                kept += 1 + sum(len(each.slow_pipelines) for each in inputs)
                if kept > MOST_REPLAYED:
                    history.problems.append(f"more than {MOST_REPLAYED} schedules: the scheduler starts afresh")
                    history.made.clear()
                    kept = 0
    if next((source.revision for source in history.made.values()), 0) > 0:
        # The beginning is lost, and a replay from the middle would bring the scheduler to another state.
        history.made.clear()
    return history


def replay(
    scheduler: FrequencyScheduler,
    made: dict[int, bodies.Source],
    observe: Callable[[FrequencyScheduler, int], object],
    published: Callable[[int], list[FrequencySchedule] | None],
) -> None:
    """Gives a new scheduler what an earlier one of this job received, in the same order.

    The new one may plan otherwise, as another release does. What was published has run, so it counts, and the last of
    it stays in force.

    Args:
        scheduler: A scheduler that has received nothing yet.
        made: The schedules that the earlier one has made, ascending.
        observe: Lets a scheduler observe the results of the schedule with this number.
        published: Returns the schedules that were published with this number; None if they cannot be read any more.

    Raises:
        PlanError: The scheduler does not do what it did before.
    """
    before, revision = -1, -1
    for number, source in made.items():
        if source.revision < 0:
            continue  # an earlier scheduler failed here, and clocks were at their default
        if before >= 0 and source.observed == before:
            _accept(scheduler, published(before))
            tell(scheduler, source.observed_with or scheduler.plan_inputs)
            observe(scheduler, before)
        tell(scheduler, source.plan_inputs)
        before, revision = number, source.revision
    if revision >= 0:
        _accept(scheduler, published(before))
        scheduler.continue_from(revision)


def keep_in_force(scheduler: FrequencyScheduler, revision: int, published: list[FrequencySchedule]) -> None:
    """Lets a scheduler keep what an earlier one had measured and kept, though it would go on otherwise.

    Args:
        scheduler: A scheduler that has just observed the results of what is in force.
        revision: The revision of what is in force.
        published: The schedules in force.
    """
    request = scheduler.request()
    if request.revision != revision or _by_rank(request.schedules) != _by_rank(published):
        scheduler.was_published(published, True)
        scheduler.continue_from(revision)


def _accept(scheduler: FrequencyScheduler, published: list[FrequencySchedule] | None) -> None:
    """Lets a scheduler go on from what was published for its present request, if it would have planned otherwise."""
    if published is not None and _by_rank(scheduler.request().schedules) != _by_rank(published):
        scheduler.was_published(published)


def _by_rank(schedules: Sequence[FrequencySchedule]) -> dict[int, FrequencySchedule]:
    return {schedule.rank: schedule for schedule in schedules}


def tell(scheduler: FrequencyScheduler, plan_inputs: PlanInputs) -> None:
    """Gives a scheduler its plan inputs, if they have changed."""
    if plan_inputs != scheduler.plan_inputs:
        scheduler.react(plan_inputs)
