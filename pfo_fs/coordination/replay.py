"""Replays to a new scheduler what an earlier one of the job has received."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pfo_fs.models import FrequencySchedule, PlanInputs
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.store import bodies


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
