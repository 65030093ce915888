"""Whether schedules fit a job: who they are for, what the GPUs offer, what the ranks really run.

One place for everybody: the coordinator checks with `check_schedules` whatever any scheduler made, and the YAML
resolver builds its messages with line numbers from the same two complaints.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo

Order: TypeAlias = Sequence[tuple[str, "int | None"]]
"""The instructions of one iteration of one rank, in order: (name, stage or None)."""
Orders: TypeAlias = Mapping[int, "Order | None"]
"""Each rank's order; None, or no entry, where it is not known yet."""


def order_hash(names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that stand for an order of instructions."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:16]


def nearest_clocks(mhz: int, available: Collection[int], count: int = 2) -> list[int]:
    """Returns the offered clocks next to `mhz`, one below and one above where there are, ascending."""
    clocks = sorted(set(available))
    at = bisect.bisect_left(clocks, mhz)
    return sorted(sorted(clocks[max(0, at - count) : at + count], key=lambda clock: abs(clock - mhz))[:count])


def clock_complaint(mhz: int, available: Collection[int], who: str) -> str:
    """Returns what is wrong with setting `mhz` on a GPU, or nothing.

    0 MHz (leave alone) is always right, and so is everything where `available` is empty: there the clocks cannot be
    set at all, which is no fault of the schedule.
    """
    if mhz == 0 or not available or mhz in available:
        return ""
    nearest = " and ".join(str(clock) for clock in nearest_clocks(mhz, available))
    return f"the GPU of {who} does not offer {mhz} MHz; nearest: {nearest}"


def describe(name: str, stage: int | None) -> str:
    """Returns `forward`, or `forward@3` where the stage is known."""
    return name if stage is None else f"{name}@{stage}"


def order_complaint(
    names: Sequence[str], stages: Sequence[int | None] | None, order: Order, who: str
) -> tuple[int, str] | None:
    """Compares the instructions of a schedule with those that a rank runs.

    Stages are compared where both sides give them.

    Returns:
        The 0-based position of the first difference and what differs, or None if the two agree.
    """
    position = next(
        (
            i
            for i, (name, (expected, stage)) in enumerate(zip(names, order, strict=False))
            if name != expected or _differ(stages[i] if stages else None, stage)
        ),
        min(len(names), len(order)),
    )
    if position == len(names) == len(order):
        return None
    counts = f"; {len(order)} instructions expected, got {len(names)}" if len(order) != len(names) else ""
    expected = f"expected {describe(*order[position])}" if position < len(order) else "expected the end"
    got = "the list ends"
    if position < len(names):
        got = f"got {describe(names[position], stages[position] if stages else None)}"
    return position, f"at position {position} (counted from 0) of {who}: {expected}, {got}{counts}"


def _differ(ours: int | None, theirs: int | None) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def check_schedules(
    schedules: Sequence[FrequencySchedule],
    job_info: JobInfo,
    rank_infos: Sequence[RankInfo],
    orders: Orders | None = None,
) -> None:
    """Checks schedules against the job, whoever made them. Ranks without a schedule are fine: they are left alone.

    Args:
        schedules: At most one per rank.
        job_info: The job.
        rank_infos: Its ranks; those that offer no clocks are not checked for clocks.
        orders: What the ranks run, as far as it is known.

    Raises:
        PlanError: A rank is out of range or there twice, its GPU does not offer a clock, or it runs other instructions.
            The message names rank, position, value and the nearest clocks.
    """
    offers = {info.rank: info.available_frequencies for info in rank_infos}
    seen: set[int] = set()
    # Ranks of a stage share schedules, clocks and orders: what was found right once need not be looked at again.
    # The value keeps the order alive, so that its id stays its own.
    right: dict[tuple[int, int, int, int], Order | None] = {}
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


def _check_one(schedule: FrequencySchedule, available: frozenset[int], order: Order | None) -> None:
    who = f"rank {schedule.rank}"
    for mhz in {mhz for _, mhz in schedule.frequencies}:
        complaint = clock_complaint(mhz, available, who)
        if complaint:
            position, name = next((i, name) for i, (name, clock) in enumerate(schedule.frequencies) if clock == mhz)
            raise PlanError(f"position {position} ({name}) of the schedule: {complaint}")
    if order is not None:
        difference = order_complaint([name for name, _ in schedule.frequencies], schedule.stages, order, who)
        if difference is not None:
            raise PlanError(f"the schedule does not fit what runs: {difference[1]}")
