"""Which results can be true, and which schedules fit a job: results come from files that other users can write to."""

import logging
from collections.abc import Collection, Sequence
from itertools import chain, pairwise

from pfo_fs.errors import PlanError
from pfo_fs.models import (
    PER_INSTRUCTION,
    PER_ITERATION,
    FrequencySchedule,
    InstructionOrder,
    InstructionOrders,
    JobInfo,
    ProfilingResult,
    RankInfo,
)
from pfo_fs.schedule_yaml.problems import clock_problem, order_problem

log = logging.getLogger(__name__)

_SHORTEST_S, _LONGEST_S = 1e-9, 1e6
_MOST_J = 1e9
_MOST_W = 1e6
"""Times, energies and powers beyond these are errors of a counter: no window takes a billion J, no GPU a million W."""


def plausible_results(results: Sequence[ProfilingResult], ranks: Collection[int]) -> list[ProfilingResult]:
    """Returns the results that can be true, sorted by rank, at most one per rank; the log names the others.

    Iterations that not all have are left out (`_of_common_steps`): ranks may begin a step apart, or leave a step out.
    """
    found: dict[int, ProfilingResult] = {}
    for result in results:
        if result.rank not in ranks:
            log.warning("a profiling result of rank %d is left out: the job has no such rank", result.rank)
        elif result.rank in found:
            log.warning("a second profiling result of rank %d is left out", result.rank)
        elif not _is_plausible(result):
            log.warning("the profiling result of rank %d is left out: it holds impossible values", result.rank)
        else:
            found[result.rank] = result
    return _of_common_steps([found[rank] for rank in sorted(found)])


def _of_common_steps(results: list[ProfilingResult]) -> list[ProfilingResult]:
    """Leaves out iterations that not all results have; all stay if fewer than half would, or if steps are unknown."""
    if len({tuple(result.iter_step) for result in results}) <= 1:
        return results
    common = set.intersection(*(set(result.iter_step) for result in results))
    if any(not _knows_steps(result) or 2 * len(common) < len(result.iter_step) for result in results):
        return results
    return [_of_steps(result, common) for result in results]


def _knows_steps(result: ProfilingResult) -> bool:
    """Returns whether all lists of a result have one entry for each of its steps, and the steps are in order."""
    steps = result.iter_step
    breakdowns = (getattr(result, name).values() for name in PER_INSTRUCTION)
    rows = [result.iter_time, result.iter_energy, *chain.from_iterable(breakdowns)]
    in_order = all(before < after for before, after in pairwise(steps))
    return in_order and len(result.iter_span) in (0, len(steps)) and all(len(row) == len(steps) for row in rows)


def _of_steps(result: ProfilingResult, steps: Collection[int]) -> ProfilingResult:
    """Returns a result with the iterations of these steps only; its powers stay those of all iterations."""
    kept = [number for number, step in enumerate(result.iter_step) if step in steps]
    changed: dict[str, object] = {}
    for name in PER_ITERATION:
        row = getattr(result, name)
        changed[name] = [row[number] for number in kept if row]
    for name in PER_INSTRUCTION:
        rows = getattr(result, name).items()
        changed[name] = {instruction: [row[number] for number in kept] for instruction, row in rows}
    return result.model_copy(update=changed)


def _is_plausible(result: ProfilingResult) -> bool:
    """Returns whether all times, energies and powers are numbers in the range that a training job can have.

    A time of 0 s is plausible: a timer with coarse ticks measures it.
    """
    flat = chain.from_iterable
    times = chain(result.iter_time, result.iter_span, flat(flat(result.time_breakdown.values())))
    energies = chain(result.iter_energy, flat(flat(result.energy_breakdown.values())))
    return (
        all(value == 0 or _SHORTEST_S <= value <= _LONGEST_S for value in times)
        and all(abs(value) <= _MOST_J for value in energies)
        and all(
            abs(power.power) <= _MOST_W and power.error <= _MOST_W and 0 <= power.seconds <= _LONGEST_S
            for power in result.powers
        )
    )


def check_schedules(
    schedules: Sequence[FrequencySchedule],
    job_info: JobInfo,
    rank_infos: Sequence[RankInfo],
    orders: InstructionOrders | None = None,
) -> None:
    """Checks schedules of a policy or a user against the job. Ranks may have no schedule: their clocks are left alone.

    Args:
        rank_infos: The job's ranks; clocks of a rank that offers none are not checked.

    Raises:
        PlanError: A rank is out of range or appears twice, its GPU does not offer a clock, or the rank runs other
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
