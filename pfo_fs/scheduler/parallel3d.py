"""Lets a policy that knows only stages schedule jobs with data and tensor parallelism."""

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar

from pfo_fs.errors import PlanError
from pfo_fs.models import (
    PER_INSTRUCTION,
    PER_ITERATION,
    FrequencySchedule,
    InstructionOrder,
    InstructionPower,
    JobInfo,
    PlanInputs,
    ProfilingResult,
    RankInfo,
)
from pfo_fs.scheduler.base import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest
from pfo_fs.scheduler.checks import plausible_results
from pfo_fs.settings import PFOSettings

log = logging.getLogger(__name__)

_Combine = Callable[[Iterable[float]], float]


def make_3d_parallel(cls: type[FrequencyScheduler], name: str | None = None) -> type[FrequencyScheduler]:
    """Returns a scheduler class that shows a job to `cls` as one pipeline, and runs its schedules on all ranks.

    `cls` gets a job with dp_degree and tp_degree 1, world_size pp_degree, and one rank per stage, whose number is the
    stage's `pp_rank` and whose `available_frequencies` are those that all ranks of the stage offer. It gets results
    per stage (`stage_results`), and the schedule of a stage is copied to all its ranks. All pipelines run the same
    plan, so `cls` gets them as one pipeline, number 0, with the times of the slowest of them.

    Args:
        name: Name of the new class; None: that of `cls` with `3D` appended.
    """

    class Adapter(StageAdapter):
        watches_iteration_times = cls.watches_iteration_times
        stage_policy = cls

    Adapter.__name__ = Adapter.__qualname__ = name or f"{cls.__name__}3D"
    Adapter.__module__ = cls.__module__
    Adapter.__doc__ = f"{(cls.__doc__ or '').rstrip()}\n\n    Made by `make_3d_parallel`: ranks are stages here.\n    "
    Adapter.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]
    cls.register(
        Adapter
    )  # for `issubclass` and `isinstance`, as in Zeus, though the adapter inherits nothing from `cls`
    return Adapter


class StageAdapter(FrequencyScheduler):
    """Translates between a job and `inner`, a policy with one rank per stage; made by `make_3d_parallel`."""

    stage_policy: ClassVar[type[FrequencyScheduler]]

    def __init__(
        self, job_info: JobInfo, rank_infos: Sequence[RankInfo], pfo_settings: PFOSettings, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self._stage_of = {info.rank: info.pp_rank for info in self.rank_infos}
        # model_copy sets all fields at once: set one by one, the world size would differ from the product meanwhile.
        stages_only = job_info.model_copy(update={"dp_degree": 1, "tp_degree": 1, "world_size": job_info.pp_degree})
        infos = stage_infos(job_info, self.rank_infos)
        self.inner = self.stage_policy(stages_only, infos, pfo_settings, *args, **kwargs)
        self._for_stages: list[FrequencySchedule] | None = None  # what `inner` asked for last, and the copies of it
        self._for_ranks: list[FrequencySchedule] = []

    def _run(self) -> ScheduleGenerator:
        raise NotImplementedError(f"{type(self).__name__} passes everything to {self.stage_policy.__name__}")

    @classmethod
    def check_args(cls, **args: Any) -> None:
        cls.stage_policy.check_args(**args)

    @property
    def done(self) -> bool:
        return self.inner.done

    def request(self) -> ScheduleRequest:
        """Returns the request of the wrapped policy, its schedules copied to all ranks of their stages."""
        asked = self.inner.request()
        if self._for_stages is not asked.schedules:
            self._for_stages = asked.schedules
            self._for_ranks = _for_all_ranks(asked.schedules, self._stage_of, type(self).__name__)
        return replace(asked, schedules=self._for_ranks)

    def was_published(self, schedules: list[FrequencySchedule], stays: bool = False) -> None:
        """Passes on what was published for the first rank of each stage."""
        by_stage: dict[int, FrequencySchedule] = {}
        for schedule in schedules:
            stage = self._stage_of[schedule.rank]
            by_stage.setdefault(stage, schedule.model_copy(update={"rank": stage}))
        self.inner.was_published(list(by_stage.values()), stays)
        self._for_stages = None

    def close(self) -> None:
        self.inner.close()

    def continue_from(self, revision: int) -> None:
        self.inner.continue_from(revision)
        self.request()

    def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
        self._share_orders()
        results = plausible_results(profiling_results, self._stage_of)
        self.inner.observe(stage_results(results, self._stage_of, self.job_info.pp_degree))

    def react(self, plan_inputs: PlanInputs) -> None:
        """Passes the plan inputs on; slow pipelines and an announced straggler become pipeline 0."""
        super().react(plan_inputs)
        self._share_orders()
        self.inner.react(_for_one_pipeline(plan_inputs))

    def export_profile(self) -> str:
        return self.inner.export_profile()

    def model(self) -> dict[str, float]:
        return self.inner.model()

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Passes on the slowest pipeline's time of each iteration, and translates what the wrapped policy concludes."""
        slowest: dict[tuple[int, int], IterationTime] = {}
        for time in iteration_times:
            known = slowest.get((time.step, time.number))
            if known is None or time.span_s > known.span_s:
                slowest[time.step, time.number] = time
        before = self.inner.plan_inputs
        after = self.inner.assess([time._replace(pipeline=0) for time in slowest.values()])
        changes: dict[str, object] = {
            field: getattr(after, field)
            for field in PlanInputs.model_fields
            if getattr(after, field) != getattr(before, field)
        }
        if changes.get("slow_pipelines"):
            pipeline = max(slowest.values(), key=lambda time: time.step).pipeline if slowest else 0
            changes["slow_pipelines"] = {pipeline: max(after.slow_pipelines.values())}
        return self.plan_inputs.model_copy(update=changes)

    def _share_orders(self) -> None:
        """Gives the wrapped policy the order of one rank of each stage."""
        orders: dict[int, InstructionOrder | None] = {}
        for rank, stage in self._stage_of.items():
            if orders.get(stage) is None:
                orders[stage] = self.orders.get(rank)
        self.inner.orders = orders


def _for_one_pipeline(plan_inputs: PlanInputs) -> PlanInputs:
    """Returns the plan inputs with all pipelines of the job as pipeline 0."""
    changes: dict[str, object] = {}
    if plan_inputs.slow_pipelines:
        changes["slow_pipelines"] = {0: max(plan_inputs.slow_pipelines.values())}
    if plan_inputs.straggler is not None and plan_inputs.straggler.pipeline is not None:
        changes["straggler"] = plan_inputs.straggler.model_copy(update={"pipeline": 0})
    return plan_inputs.model_copy(update=changes)


def stage_infos(job_info: JobInfo, rank_infos: Sequence[RankInfo]) -> list[RankInfo]:
    """Returns one rank per stage, numbered by `pp_rank`, with the clocks (MHz) that all ranks of the stage offer.

    Ranks that offer no clocks are left out: their clocks cannot be set.

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
    results: Sequence[ProfilingResult], stage_of: Mapping[int, int], pp_degree: int
) -> list[ProfilingResult]:
    """Returns one result per stage: the largest of the times (s), the sum of energies (J) and powers (W) of its ranks.

    Lists are combined element by element, over iterations and over micro-batches. Elements, instructions and clocks
    that a rank of the stage lacks are left out, and so is a stage without any result.
    """
    by_stage: list[list[ProfilingResult]] = [[] for _ in range(pp_degree)]
    for result in results:
        by_stage[stage_of[result.rank]].append(result)
    merged = []
    for stage, group in enumerate(by_stage):
        if not group:
            log.warning("no rank of stage %d has a profiling result", stage)
            continue
        figures: dict[str, Any] = {
            name: combine([getattr(result, name) for result in group], together)
            for combine, fields in ((_combine, PER_ITERATION), (_combine_breakdowns, PER_INSTRUCTION))
            for name, together in fields.items()
            if together is not None
        }
        powers = _combine_powers([result.powers for result in group])
        merged.append(ProfilingResult(rank=stage, powers=powers, **figures))
    return merged


def _combine_powers(lists: Sequence[Sequence[InstructionPower]]) -> list[InstructionPower]:
    """Returns the powers of all GPUs of a stage together; their errors are independent of each other."""
    by_rank = [{(power.instruction, power.frequency): power for power in powers} for powers in lists]
    groups = [[powers.get(key) for powers in by_rank] for key in by_rank[0]]
    return [
        known[0].model_copy(
            update={
                "power": sum(power.power for power in known),
                "error": math.hypot(*(power.error for power in known)),
                "seconds": max(power.seconds for power in known),
            }
        )
        for group in groups
        if len(known := [power for power in group if power is not None]) == len(by_rank)
    ]


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
    schedules: Sequence[FrequencySchedule], stage_of: Mapping[int, int], who: str
) -> list[FrequencySchedule]:
    by_stage = {schedule.rank: schedule for schedule in schedules}
    if len(by_stage) < len(schedules) or not by_stage.keys() <= set(stage_of.values()):
        made, stages = sorted(schedule.rank for schedule in schedules), len(set(stage_of.values()))
        raise PlanError(f"{who} made schedules for the stages {made}; the job has {stages} stages, with one each")
    # Shallow copies: the ranks of a stage share one list; otherwise 10,000 ranks would hold 10,000 equal ones.
    return [
        by_stage[stage].model_copy(update={"rank": rank})
        for rank, stage in sorted(stage_of.items())
        if stage in by_stage
    ]
