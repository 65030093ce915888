"""Whether schedules fit a job: the ranks they are for, the clocks that the GPUs offer, the instructions that run."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionOrder, InstructionOrders, JobInfo, RankInfo
from pfo_fs.schedule_yaml.problems import clock_problem, order_problem


def check_schedules(
    schedules: Sequence[FrequencySchedule],
    job_info: JobInfo,
    rank_infos: Sequence[RankInfo],
    orders: InstructionOrders | None = None,
) -> None:
    """Checks schedules of a policy or a user against the job. Ranks may have no schedule: their clocks are left alone.

    Args:
        schedules: At most one per rank.
        job_info: The job.
        rank_infos: Its ranks; those that offer no clocks are not checked for clocks.
        orders: The instructions that the ranks run, as far as they are known.

    Raises:
        PlanError: A rank is out of range or appears twice, its GPU does not offer a clock, or it runs other
            instructions. The message names rank, position, value and the nearest clocks.
    """
    offers = {info.rank: info.available_frequencies for info in rank_infos}
    seen: set[int] = set()
    # Ranks of a stage share schedules, clocks and orders: what was found right once is not checked again.
    # The value keeps the order alive, so that no other object gets its id.
    right: dict[tuple[int, int, int, int], InstructionOrder | None] = {}
    offer_sets: dict[tuple[int, ...], frozenset[int]] = {}
    for schedule in schedules:
        rank = schedule.rank
        if rank >= job_info.world_size:
            raise PlanError(f"a schedule for rank {rank}, but the job has ranks 0 to {job_info.world_size - 1}")
        if rank in seen:
            raise PlanError(f"two schedules for rank {rank}")
        seen.add(rank)
        offer = tuple(offers.get(rank, ()))
        available = offer_sets.setdefault(offer, frozenset(offer))
        order = orders.get(rank) if orders else None
        key = (id(schedule.frequencies), id(schedule.stages), id(available), id(order))
        if key not in right:
            _check_one(schedule, available, order)
            right[key] = order


def _check_one(schedule: FrequencySchedule, available: frozenset[int], order: InstructionOrder | None) -> None:
    who = f"rank {schedule.rank}"
    for mhz in {mhz for _, mhz in schedule.frequencies}:
        problem = clock_problem(mhz, available, who)
        if problem:
            position, name = next((i, name) for i, (name, clock) in enumerate(schedule.frequencies) if clock == mhz)
            raise PlanError(f"position {position} ({name}) of the schedule: {problem}")
    if order is not None:
        difference = order_problem([name for name, _ in schedule.frequencies], schedule.stages, order, who)
        if difference is not None:
            raise PlanError(f"the schedule does not fit what runs: {difference[1]}")
