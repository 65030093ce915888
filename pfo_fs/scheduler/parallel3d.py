"""Lets a policy that knows stages only run a job with data and tensor parallelism."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.scheduler.base import FrequencyScheduler
from pfo_fs.settings import PFOSettings

_Combine = Callable[[Iterable[float]], float]


def make_3d_parallel(cls: type[FrequencyScheduler], name: str | None = None) -> type[FrequencyScheduler]:
    """Returns a scheduler class that shows `cls` pure pipeline parallelism and runs its schedules on all ranks.

    What `cls` sees: dp_degree and tp_degree 1, world_size pp_degree, and one rank per stage whose number is the
    stage's `pp_rank` and whose `available_frequencies` are those that all ranks of the stage offer. Results arrive
    per stage (`stage_results`), and the schedule of a stage is copied to all its ranks.

    Args:
        cls: The scheduler to wrap.
        name: Name of the new class; None: that of `cls` with `3D` behind it.
    """

    class Wrapper(cls):  # type: ignore[valid-type,misc]
        def __init__(
            self,
            job_info: JobInfo,
            rank_infos: Sequence[RankInfo],
            pfo_settings: PFOSettings,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            self._stage_of = {info.rank: info.pp_rank for info in rank_infos}
            self._copied: list[FrequencySchedule] | None = None
            # model_copy assigns at once: one after another would pass through a world size that is no product.
            stages_only = job_info.model_copy(
                update={"dp_degree": 1, "tp_degree": 1, "world_size": job_info.pp_degree},
            )
            super().__init__(stages_only, stage_infos(job_info, rank_infos), pfo_settings, *args, **kwargs)

        def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
            super().observe(stage_results(profiling_results, self._stage_of, self.job_info.pp_degree))
            self._copied = None

        def next_schedule(self) -> list[FrequencySchedule]:
            if self._copied is None:
                self._copied = _for_all_ranks(super().next_schedule(), self._stage_of, type(self).__name__)
            return self._copied

    Wrapper.__name__ = Wrapper.__qualname__ = name or f"{cls.__name__}3D"
    Wrapper.__module__ = cls.__module__
    Wrapper.__doc__ = f"{(cls.__doc__ or '').rstrip()}\n\n    Made by `make_3d_parallel`: ranks are stages here.\n    "
    Wrapper.__signature__ = inspect.signature(cls)
    return Wrapper


def stage_infos(job_info: JobInfo, rank_infos: Sequence[RankInfo]) -> list[RankInfo]:
    """Returns one rank per stage, numbered by `pp_rank`, with the clocks (MHz) that all ranks of the stage offer.

    Ranks that offer no clock at all cannot be set and do not count.

    Raises:
        PlanError: A stage has no rank, a rank is on a stage that the job does not have, or the ranks of a stage have
            no clock in common.
    """
    stages: list[list[RankInfo]] = [[] for _ in range(job_info.pp_degree)]
    for info in sorted(rank_infos, key=lambda info: info.rank):
        if info.pp_rank >= job_info.pp_degree:
            raise PlanError(f"rank {info.rank} has pp_rank {info.pp_rank}, but pp_degree is {job_info.pp_degree}")
        stages[info.pp_rank].append(info)
    merged = []
    for stage, infos in enumerate(stages):
        if not infos:
            raise PlanError(f"no rank has pp_rank {stage}, but pp_degree is {job_info.pp_degree}")
        offers = [set(info.available_frequencies) for info in infos if info.available_frequencies]
        common = reduce(set.intersection, offers) if offers else set()
        if offers and not common:
            ranks = ", ".join(str(info.rank) for info in infos[:8])
            raise PlanError(
                f"the GPUs of stage {stage} (ranks {ranks}) offer no clock in common; plan per rank instead"
            )
        ordered = dict.fromkeys(mhz for info in infos for mhz in info.available_frequencies)
        available = [mhz for mhz in ordered if mhz in common]
        merged.append(RankInfo(rank=stage, dp_rank=0, pp_rank=stage, tp_rank=0, available_frequencies=available))
    return merged


def stage_results(
    results: Sequence[ProfilingResult], stage_of: dict[int, int], pp_degree: int
) -> list[ProfilingResult]:
    """Returns one result per stage: the largest of the times (s) and the sum of the energies (J) over its ranks.

    Element by element, over iterations and over micro-batches. Where ranks report lists of different lengths, the
    part that all of them have counts, and so do only the instructions that all of them report.

    Args:
        results: Of the job's ranks, in any order.
        stage_of: pp_rank of each rank.
        pp_degree: Number of stages.

    Raises:
        PlanError: A result is of a rank that the job does not have, a rank has two, or a stage has none.
    """
    by_stage: list[dict[int, ProfilingResult]] = [{} for _ in range(pp_degree)]
    for result in results:
        stage = stage_of.get(result.rank)
        if stage is None:
            raise PlanError(f"a profiling result of rank {result.rank}, which the job does not have")
        if result.rank in by_stage[stage]:
            raise PlanError(f"two profiling results of rank {result.rank}")
        by_stage[stage][result.rank] = result
    merged = []
    for stage, members in enumerate(by_stage):
        if not members:
            raise PlanError(f"no profiling result of any rank of stage {stage}")
        group = [members[rank] for rank in sorted(members)]
        merged.append(
            ProfilingResult(
                rank=stage,
                iter_time=_combine([result.iter_time for result in group], max),
                iter_energy=_combine([result.iter_energy for result in group], sum),
                time_breakdown=_combine_breakdowns([result.time_breakdown for result in group], max),
                energy_breakdown=_combine_breakdowns([result.energy_breakdown for result in group], sum),
            )
        )
    return merged


def _combine(lists: Sequence[Sequence[float]], combine: _Combine) -> list[float]:
    return [combine(values) for values in zip(*lists, strict=False)]


def _combine_breakdowns(
    breakdowns: Sequence[dict[str, list[list[float]]]], combine: _Combine
) -> dict[str, list[list[float]]]:
    return {
        name: [
            _combine(iterations, combine)
            for iterations in zip(*(breakdown[name] for breakdown in breakdowns), strict=False)
        ]
        for name in breakdowns[0]
        if all(name in breakdown for breakdown in breakdowns)
    }


def _for_all_ranks(
    schedules: Sequence[FrequencySchedule], stage_of: dict[int, int], who: str
) -> list[FrequencySchedule]:
    by_stage: dict[int, FrequencySchedule] = {}
    stages = set(stage_of.values())
    for schedule in schedules:
        if schedule.rank not in stages:
            raise PlanError(f"{who} made a schedule for stage {schedule.rank}; the job has {len(stages)} stages")
        if schedule.rank in by_stage:
            raise PlanError(f"{who} made two schedules for stage {schedule.rank}")
        by_stage[schedule.rank] = schedule
    # Shallow copies: the ranks of a stage share one list, or 10,000 ranks would hold 10,000 equal ones.
    return [
        by_stage[stage].model_copy(update={"rank": rank})
        for rank, stage in sorted(stage_of.items())
        if stage in by_stage
    ]
