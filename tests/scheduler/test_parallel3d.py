"""A policy for stages on a job with data and tensor parallelism."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from scheduler_jobs import make_job, result_of

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.scheduler import FrequencyScheduler, Manual, ScheduleGenerator, make_3d_parallel
from pfo_fs.settings import PFOSettings


class PerStage(FrequencyScheduler):
    """A clock per stage, faster after each result; remembers what it was told."""

    def __init__(self, job_info: Any, rank_infos: Any, pfo_settings: Any, step: int = 15) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self.step = step
        self.heard: list[list[ProfilingResult]] = []

    def _run(self) -> ScheduleGenerator:
        mhz = 900
        while True:
            schedules = [
                FrequencySchedule(rank=info.rank, frequencies=[("forward", mhz + 100 * info.rank)])
                for info in self.rank_infos
            ]
            self.heard.append((yield list(reversed(schedules))))
            mhz += self.step


def make(pp: int = 2, dp: int = 2, tp: int = 2, cls: type[FrequencyScheduler] = PerStage, **args: Any) -> Any:
    job, infos = make_job(pp, dp, tp)
    return make_3d_parallel(cls)(job, list(reversed(infos)), PFOSettings(), **args)


def test_the_wrapped_class_sees_pure_pipeline_parallelism() -> None:
    scheduler = make(pp=3)
    job = scheduler.job_info
    assert (job.pp_degree, job.dp_degree, job.tp_degree, job.world_size, scheduler.world_size) == (3, 1, 1, 3, 3)


def test_the_wrapped_class_sees_one_rank_per_stage_numbered_by_stage() -> None:
    infos = make(pp=3).rank_infos
    assert [(info.rank, info.pp_rank, info.dp_rank, info.tp_rank) for info in infos] == [
        (0, 0, 0, 0),
        (1, 1, 0, 0),
        (2, 2, 0, 0),
    ]


def test_the_job_that_was_given_is_not_changed() -> None:
    job, infos = make_job(2, 2, 2)
    make_3d_parallel(PerStage)(job, infos, PFOSettings())
    assert (job.world_size, job.dp_degree, len(infos), infos[7].rank) == (8, 2, 8, 7)


def test_a_stage_offers_the_clocks_that_all_its_ranks_offer() -> None:
    job, infos = make_job(pp=2, dp=2)
    infos[0].available_frequencies = [1400, 1200, 1000]
    infos[1].available_frequencies = [1300, 1200, 1000]
    scheduler = make_3d_parallel(PerStage)(job, infos, PFOSettings())
    assert scheduler.rank_infos[0].available_frequencies == [1200, 1000]


def test_a_rank_that_cannot_set_clocks_does_not_narrow_its_stage() -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[0].available_frequencies = []
    infos[1].available_frequencies = [1200, 1000]
    scheduler = make_3d_parallel(PerStage)(job, infos, PFOSettings())
    assert scheduler.rank_infos[0].available_frequencies == [1200, 1000]


def test_ranks_of_a_stage_without_a_common_clock_are_named() -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[0].available_frequencies = [1200]
    infos[1].available_frequencies = [1305]
    with pytest.raises(PlanError, match=r"stage 0 \(ranks 0, 1\) offer no clock in common"):
        make_3d_parallel(PerStage)(job, infos, PFOSettings())


def test_a_stage_without_ranks_is_named() -> None:
    job, infos = make_job(pp=2, dp=2)
    with pytest.raises(PlanError, match="no rank has pp_rank 1, but pp_degree is 2"):
        make_3d_parallel(PerStage)(job, infos[:2], PFOSettings())


def test_the_schedule_of_a_stage_goes_to_all_its_ranks() -> None:
    schedules = make().next_schedule()
    assert [(s.rank, s.frequencies[0][1]) for s in schedules] == [(r, 900 if r < 4 else 1000) for r in range(8)]


def test_schedules_of_a_stage_are_equal_but_for_the_rank() -> None:
    first, second = make().next_schedule()[:2]
    assert first.model_dump(exclude={"rank"}) == second.model_dump(exclude={"rank"})


def test_new_results_give_new_copies() -> None:
    scheduler = make()
    scheduler.next_schedule()
    scheduler.observe([result_of(rank) for rank in range(8)])
    assert scheduler.next_schedule()[0].frequencies == [("forward", 915)]


def test_times_of_a_stage_are_the_largest_of_its_ranks() -> None:
    scheduler = make()
    scheduler.next_schedule()
    scheduler.observe([result_of(rank, time=1.0 + rank) for rank in reversed(range(8))])
    assert [result.iter_time for result in scheduler.heard[0]] == [[4.0, 4.0], [8.0, 8.0]]


def test_energies_of_a_stage_are_the_sum_over_its_ranks() -> None:
    scheduler = make()
    scheduler.next_schedule()
    scheduler.observe([result_of(rank, energy=1.0 + rank) for rank in range(8)])
    assert [result.iter_energy for result in scheduler.heard[0]] == [[10.0, 10.0], [26.0, 26.0]]


def breakdown(rank: int, times: list[list[float]], energies: list[list[float]]) -> ProfilingResult:
    return ProfilingResult(
        rank=rank,
        iter_time=[1.0],
        iter_energy=[1.0],
        time_breakdown={"forward": times},
        energy_breakdown={"forward": energies},
    )


def test_breakdowns_are_combined_per_iteration_and_microbatch() -> None:
    scheduler = make(pp=1, dp=2, tp=1)
    scheduler.next_schedule()
    scheduler.observe(
        [breakdown(0, [[1, 5], [2, 2]], [[10, 20], [30, 40]]), breakdown(1, [[3, 4], [1, 9]], [[1, 2], [3, 4]])]
    )
    (result,) = scheduler.heard[0]
    assert result.time_breakdown == {"forward": [[3, 5], [2, 9]]}
    assert result.energy_breakdown == {"forward": [[11, 22], [33, 44]]}


def test_lists_of_different_lengths_count_as_far_as_all_ranks_have_them() -> None:
    scheduler = make(pp=1, dp=2, tp=1)
    scheduler.next_schedule()
    scheduler.observe([breakdown(0, [[1, 5], [2]], [[1]]), breakdown(1, [[3]], [[1, 2], [3]])])
    (result,) = scheduler.heard[0]
    assert (result.time_breakdown, result.energy_breakdown) == ({"forward": [[3]]}, {"forward": [[2]]})


def test_an_instruction_that_one_rank_does_not_report_is_left_out() -> None:
    scheduler = make(pp=1, dp=2, tp=1)
    scheduler.next_schedule()
    scheduler.observe([breakdown(0, [[1]], [[1]]), result_of(1)])
    assert scheduler.heard[0][0].time_breakdown == {}


def test_a_missing_rank_does_not_hinder_its_stage() -> None:
    scheduler = make(pp=1, dp=2, tp=1)
    scheduler.next_schedule()
    scheduler.observe([result_of(1, time=3.0)])
    assert scheduler.heard[0][0].iter_time == [3.0, 3.0]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 1, 2, 3], "no profiling result of any rank of stage 1"),
        ([0, 4, 8], "a profiling result of rank 8, which the job does not have"),
        ([0, 4, 4], "two profiling results of rank 4"),
    ],
)
def test_results_that_do_not_fit_the_job_are_named(ranks: list[int], message: str) -> None:
    scheduler = make()
    scheduler.next_schedule()
    with pytest.raises(PlanError, match=message):
        scheduler.observe([result_of(rank) for rank in ranks])


def test_a_stage_without_schedule_leaves_its_ranks_alone() -> None:
    assert make(cls=Manual).next_schedule() == []


def test_a_schedule_for_a_stage_that_does_not_exist_is_named() -> None:
    class Beyond(FrequencyScheduler):
        def _run(self) -> ScheduleGenerator:
            yield [FrequencySchedule(rank=2, frequencies=[])]

    with pytest.raises(PlanError, match="Beyond3D made a schedule for stage 2; the job has 2 stages"):
        make(cls=Beyond).next_schedule()


def test_arguments_reach_the_wrapped_class() -> None:
    assert make(step=30).step == 30


def test_the_signature_is_that_of_the_wrapped_class() -> None:
    assert inspect.signature(make_3d_parallel(PerStage)) == inspect.signature(PerStage)


def test_the_name_is_that_of_the_wrapped_class_with_3d() -> None:
    assert make_3d_parallel(PerStage).__name__ == "PerStage3D"


def test_the_name_can_be_given() -> None:
    assert make_3d_parallel(PerStage, "Mine").__name__ == "Mine"


def test_done_is_that_of_the_wrapped_scheduler() -> None:
    scheduler = make(cls=Manual)
    scheduler.next_schedule()
    scheduler.observe([result_of(rank) for rank in range(8)])
    assert scheduler.done
