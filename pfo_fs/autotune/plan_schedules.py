"""Plans as the schedules of ranks, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.judgements import ClockPlan
from pfo_fs.models import FrequencySchedule


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
