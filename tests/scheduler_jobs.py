"""Jobs to schedule for, and the plans and orders that go with them."""

from collections.abc import Callable, Sequence

import jobs
import pytest
from jobs import rank_infos

from pfo_fs.models import FrequencySchedule, InstructionOrders, JobInfo, ProfilingResult, RankInfo
from pfo_fs.schedule_yaml import OrderUnknown, ScheduleProblems, parse_schedule_yaml

CLOCKS = list(range(210, 1411, 15))
PLANS = [f"freqs_pipeline_gpt3-175b_a100_pp8_mb12_{number}.py" for number in ("00000", "00704", "01408")]

Order = list[tuple[str, int | None]]


def make_job(pp: int, dp: int = 1, tp: int = 1, clocks: list[int] | None = None) -> tuple[JobInfo, list[RankInfo]]:
    """A job whose ranks are numbered stage by stage."""
    job = JobInfo(pp_degree=pp, dp_degree=dp, tp_degree=tp, world_size=pp * dp * tp)
    return job, rank_infos(pp, dp, tp, CLOCKS if clocks is None else clocks)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[str]:
    return [name for name, _ in jobs.one_f_one_b(stage, stages, microbatches, 0)]


def order_of(names: list[str]) -> Order:
    return [(name, None) for name in names]


def schedule_of(rank: int, names: list[str], mhz: Callable[[str], int]) -> FrequencySchedule:
    return FrequencySchedule(rank=rank, frequencies=[(name, mhz(name)) for name in names])


def result_of(rank: int, time: float = 1.0, energy: float = 100.0, iterations: int = 2) -> ProfilingResult:
    return ProfilingResult(rank=rank, iter_time=[time] * iterations, iter_energy=[energy] * iterations)


def problems_of(
    text: str | bytes,
    job: JobInfo | None = None,
    infos: Sequence[RankInfo] = (),
    orders: InstructionOrders | None = None,
) -> list[tuple[int, str]]:
    """What parsing complains of, or, with a job, resolving, as (line, reason)."""
    document = parse_schedule_yaml(text) if job is not None else None
    with pytest.raises(ScheduleProblems) as caught:
        document.resolve(job, infos, orders or {}) if document and job else parse_schedule_yaml(text)
    return [(problem.line, problem.reason) for problem in caught.value.problems]


def unknown_of(text: str, job: JobInfo, infos: list[RankInfo], orders: dict[int, Order] | None = None) -> OrderUnknown:
    document = parse_schedule_yaml(text)
    with pytest.raises(OrderUnknown) as caught:
        document.resolve(job, infos, orders or {})
    return caught.value
