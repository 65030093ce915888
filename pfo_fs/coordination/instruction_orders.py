"""The instruction order of each rank: what the rank reported, else what a schedule lists for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pfo_fs.coordination.bounds import MOST_INSTRUCTIONS
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionOrder, RankInfo
from pfo_fs.store import JobFolder


def known_orders(
    folder: JobFolder,
    rank_infos: Sequence[RankInfo],
    planned: Iterable[FrequencySchedule] = (),
    seen: dict[int, InstructionOrder] | None = None,
) -> dict[int, InstructionOrder | None]:
    """Returns each rank's order, None where nothing is known yet.

    A rank that has not written its order is assumed to run that of another rank of its stage.

    Args:
        folder: The job.
        rank_infos: The job's ranks.
        planned: Schedules whose order is used for ranks that have not reported theirs yet.
        seen: Orders that were read before; new ones are added. Each is written only once, so it is read only once.

    Raises:
        PlanError: The job has more different orders than it may have.
    """
    seen = {} if seen is None else seen
    new = [rank for rank in folder.ranks_with_order() if rank not in seen]
    # Most ranks have the order of another one: one list of them is kept, which saves most of the memory.
    known = {tuple(order): order for order in {id(order): order for order in seen.values()}.values()} if new else {}
    for rank in new:
        body = folder.read_order(rank)
        if body is not None:
            seen[rank] = known.setdefault(tuple(body.instructions), body.instructions)
            if sum(map(len, known)) > MOST_INSTRUCTIONS:
                raise PlanError(f"the different orders of ranks have more than {MOST_INSTRUCTIONS:,} instructions")
    by_stage = {info.pp_rank: seen[info.rank] for info in rank_infos if info.rank in seen}
    # The ranks of a stage share lists, so they get one order: otherwise checks and memory would grow with the ranks.
    planned = list(planned)
    shared = {_lists_of(schedule): schedule for schedule in planned}
    orders = {lists: _order_of(schedule) for lists, schedule in shared.items()}
    by_plan = {schedule.rank: orders[_lists_of(schedule)] for schedule in planned}
    return {
        info.rank: seen.get(info.rank) or by_stage.get(info.pp_rank) or by_plan.get(info.rank) for info in rank_infos
    }


def _lists_of(schedule: FrequencySchedule) -> tuple[int, int]:
    return id(schedule.frequencies), id(schedule.stages)


def _order_of(schedule: FrequencySchedule) -> InstructionOrder:
    stages: Sequence[int | None] = schedule.stages or [None] * len(schedule.frequencies)
    return [(name, stage) for (name, _), stage in zip(schedule.frequencies, stages, strict=True)]
