"""The parts of the default policy that are not measuring: goals, noise, corrections, what people are told."""

from __future__ import annotations

import math

import pytest
from scheduler_jobs import make_job, one_f_one_b, order_of, schedule_of

from pfo_fs.autotune.corrections import Corrections
from pfo_fs.autotune.iteration_watch import IterationWatch, PlanChanges
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.noise import IterationNoise
from pfo_fs.autotune.plan_goal import OUTSIDE_THE_JOB, PlanGoal, goal_of, target_of
from pfo_fs.autotune.status_text import compared, goal_text, measured_text
from pfo_fs.autotune.window_results import (
    FullSpeed,
    full_speed_of,
    iteration_spans,
    measured_results,
    pooled,
    relative_noise,
)
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, PlanInputs, ProfilingResult, Straggler, Target
from pfo_fs.scheduler.base import IterationTime

NO_SLOWDOWN = Target(slowdown=1.0)
PLAN: list[FrequencySchedule] = []


def layout(pp: int = 2, dp: int = 1) -> JobLayout:
    job, infos = make_job(pp, dp)
    orders = {info.rank: order_of(one_f_one_b(info.pp_rank, pp, 3)) for info in infos}
    return JobLayout(job, infos, lambda: orders)


def result(rank: int, iter_s: float = 2.0, span_s: float = 1.5, joules: float = 100.0) -> ProfilingResult:
    return ProfilingResult(rank=rank, iter_time=[iter_s] * 2, iter_energy=[joules] * 2, iter_span=[span_s] * 2)


# ---- goals


def test_an_announced_straggler_and_a_found_one_are_one_pipeline_with_the_larger_slowdown() -> None:
    inputs = PlanInputs(straggler=Straggler(slowdown=1.3, pipeline=1), slow_pipelines={1: 1.1, 2: 1.2})
    goal = goal_of(inputs, NO_SLOWDOWN)
    assert goal.slowdowns == {1: 1.3, 2: 1.2}
    assert goal.slowest == 1.3


def test_a_straggler_without_a_pipeline_is_outside_of_the_job() -> None:
    assert goal_of(PlanInputs(straggler=Straggler(slowdown=1.3)), NO_SLOWDOWN).slowdowns == {OUTSIDE_THE_JOB: 1.3}


def test_the_target_of_a_person_wins_over_the_one_that_the_scheduler_was_started_with() -> None:
    assert goal_of(PlanInputs(target=Target(power=900)), NO_SLOWDOWN).target == Target(power=900)
    assert goal_of(PlanInputs(), NO_SLOWDOWN).target == NO_SLOWDOWN


def test_an_announced_straggler_that_is_not_slower_leaves_its_pipeline_healthy() -> None:
    inputs = PlanInputs(straggler=Straggler(slowdown=1.0, pipeline=1), slow_pipelines={2: 1.2})
    assert goal_of(inputs, NO_SLOWDOWN).slow_pipelines == {2}


@pytest.mark.parametrize(
    ("given", "message"),
    [((1.1, 5.0, None), "exactly one"), ((0.5, None, None), "slowdown: .* not 0.5"), ((None, None, -1.0), "power: ")],
)
def test_a_target_that_cannot_be_is_refused(given: tuple[float | None, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        target_of(*given)


# ---- noise


def test_a_window_that_scatters_far_more_than_usual_tells_nothing() -> None:
    noise = IterationNoise()
    assert not any(noise.judge(0.004) for _ in range(3))
    assert noise.judge(0.2)
    assert not noise.judge(0.004)


def test_a_job_that_always_scatters_is_not_noisy() -> None:
    noise = IterationNoise()
    for _ in range(3):
        noise.add(0.06)
    assert not noise.judge(0.08)


def test_noise_is_that_of_the_pipeline_that_scatters_most() -> None:
    assert relative_noise({0: [1.0, 1.0], 1: [1.0, 1.2]}) == pytest.approx(0.1286, abs=1e-4)
    assert relative_noise({}) == 0.0


# ---- corrections


def test_counting_anew_keeps_what_corrections_have_led_to() -> None:
    corrections = Corrections(count=5, power_scale=0.9, full_speed_only=True)
    corrections.count_anew()
    assert (corrections.count, corrections.power_scale, corrections.full_speed_only) == (0, 0.9, True)


# ---- windows


def test_full_speed_is_that_of_the_healthy_one_of_two_pipelines() -> None:
    job = layout(pp=1, dp=2)
    full_speed = full_speed_of([result(0, 2.5, 2.0), result(1, 2.0, 1.5)], job)
    assert full_speed == FullSpeed(span_s=1.5, energy_j=200.0, tail_s=0.5)


def test_the_rank_of_a_pipeline_that_ends_last_ends_its_iteration() -> None:
    results = [result(0, 2.0, 1.5), result(1, 2.0, 1.8)]
    assert iteration_spans(results, layout(pp=2)) == {0: [1.8, 1.8]}
    full_speed = full_speed_of(results, layout(pp=2))
    assert full_speed is not None
    assert full_speed.tail_s == pytest.approx(0.2)


def test_two_windows_at_full_speed_count_together_unless_one_took_another_time() -> None:
    first = FullSpeed(10.0, 1000.0, 1.0)
    both = pooled(first, 10.02, 0.004)
    assert both == FullSpeed(10.01, 1000.0, 1.0, windows=2)
    assert pooled(both, 10.04, 0.004) == FullSpeed(10.02, 1000.0, 1.0, windows=3)
    assert pooled(first, 10.02, 0.001) == first


def test_without_the_first_stage_of_any_pipeline_there_is_no_full_speed() -> None:
    assert full_speed_of([result(1)], layout(pp=2)) is None


def test_gpus_without_a_result_are_taken_for_average_ones() -> None:
    full_speed = full_speed_of([result(0, joules=100), result(1, joules=300)], layout(pp=2, dp=2))
    assert full_speed is not None
    assert full_speed.energy_j == 800


@pytest.mark.parametrize("odd", [{"iter_time": []}, {"iter_time": [0.0, 1.0]}, {"iter_span": [0.0, 1.0]}])
def test_results_without_iterations_or_with_endless_speed_tell_nothing(odd: dict[str, list[float]]) -> None:
    assert measured_results([result(0), result(1).model_copy(update=odd)]) == [result(0)]


def test_a_schedule_of_another_length_than_the_order_is_not_what_ran() -> None:
    short = FrequencySchedule(rank=0, frequencies=[("forward", 1200)])
    assert layout().run_by(0, short) == [("forward", 0, 1200)]


def test_a_slow_pipeline_is_not_measured() -> None:
    measurements = JobMeasurements(layout(pp=1, dp=2))
    measurements.slow_pipelines = frozenset({0})
    assert [measurements.is_taken(rank) for rank in (0, 1)] == [False, True]
    assert measurements.healthy_pipeline({0, 1}) == [1]


def test_ranks_that_compute_together_tell_no_more_than_one_of_them_and_pipelines_do() -> None:
    def error(dp: int, tp: int) -> float:
        job, infos = make_job(1, dp, tp)
        measurements = JobMeasurements(
            JobLayout(job, infos, lambda: dict.fromkeys(range(dp * tp), order_of(["forward"])))
        )
        durations_s = [[0.1 + 0.001 * math.sin(number)] for number in range(40)]
        results = [
            ProfilingResult(
                rank=rank, iter_time=[1.0] * 40, iter_energy=[300.0] * 40, time_breakdown={"forward": durations_s}
            )
            for rank in range(dp * tp)
        ]
        measurements.take(results, [schedule_of(rank, ["forward"], lambda _: 1200) for rank in range(dp * tp)])
        return measurements.samples.points[0, "forward"][1200].time_error

    alone = error(1, 1)
    assert error(1, 4) == pytest.approx(alone)
    assert error(4, 1) == pytest.approx(alone / 2)


# ---- iterations between windows


def watched(spans: list[list[float]], noise: IterationNoise | None = None) -> list[PlanInputs]:
    """What follows from iterations of two pipelines that should take 10 s, step by step."""
    watch = IterationWatch(2, noise or IterationNoise())
    inputs, found = PlanInputs(), []
    for step, both in enumerate(spans):
        times = [IterationTime(pipeline, step, 1, span_s) for pipeline, span_s in enumerate(both)]
        inputs = watch.assess(times, inputs, goal_of(inputs, NO_SLOWDOWN), PLAN, 10.0, 10.0, 10.0)
        found.append(inputs)
    return found


def test_one_slow_pipeline_of_two_is_a_straggler() -> None:
    assert watched([[10, 12], [10, 12]])[-1].slow_pipelines == {1: 1.2}


def test_two_slow_pipelines_of_two_put_the_plan_in_question() -> None:
    assert watched([[12, 12]] * 2)[-1] == PlanInputs(remeasure_epoch=1)


def test_a_noisy_window_is_measured_again_whatever_iterations_take() -> None:
    noise = IterationNoise()
    noise.noisy_window = True
    assert watched([[10, 10]], noise)[-1] == PlanInputs(remeasure_epoch=1)
    assert not noise.noisy_window


def test_pipelines_that_all_get_slower_put_the_plan_in_question_and_one_question_is_enough_for_a_while() -> None:
    inputs = watched([[10, 10]] * 40 + [[10.15, 10.15]] * 35)
    assert [one.remeasure_epoch for one in inputs][39] == 0
    assert inputs[-1] == PlanInputs(remeasure_epoch=1)


def test_all_pipelines_slower_than_the_model_predicted_from_the_start_is_no_change() -> None:
    """They should take 10 s, but never did."""
    assert watched([[10.15, 10.15]] * 60)[-1] == PlanInputs()


def test_a_plan_that_comes_back_is_compared_with_its_own_first_iterations() -> None:
    changes, usual, other = PlanChanges(), [FrequencySchedule(rank=0, frequencies=[("forward", 1200)])], PLAN

    def alarms(plan: list[FrequencySchedule], steps: range, span_s: float) -> int:
        return sum(changes.add([IterationTime(0, step, 1, span_s)], plan, 1) for step in steps)

    assert alarms(usual, range(40), 10.0) == 0
    assert alarms(other, range(40, 80), 12.0) == 0
    assert alarms(list(usual), range(80, 120), 10.3) > 0


def test_a_plan_that_is_to_be_compared_anew_is_compared_with_its_next_iterations() -> None:
    watch, inputs = IterationWatch(1, IterationNoise()), PlanInputs()

    def run(steps: range, span_s: float) -> PlanInputs:
        goal = goal_of(inputs, NO_SLOWDOWN)
        return [
            watch.assess([IterationTime(0, step, 1, span_s)], inputs, goal, PLAN, 10.0, 10.0, 10.0) for step in steps
        ][-1]

    assert run(range(40), 10.0) == inputs
    watch.compare_anew(PLAN)
    assert run(range(40, 120), 10.15) == inputs


def test_how_long_iterations_under_the_last_plan_take_is_known_after_some() -> None:
    watch, inputs = IterationWatch(1, IterationNoise()), PlanInputs()

    def run(plan: list[FrequencySchedule], steps: range, span_s: float) -> None:
        for step in steps:
            times = [IterationTime(0, step, 1, span_s)]
            watch.assess(times, inputs, goal_of(inputs, NO_SLOWDOWN), plan, 10.0, 10.0, 10.0)

    other = [FrequencySchedule(rank=0, frequencies=[("forward", 1200)])]
    run(PLAN, range(15), 10.0)
    assert watch.usual_time(PLAN) is None
    run(PLAN, range(15, 60), 10.0)
    found = watch.usual_time(PLAN)
    assert found is not None
    assert found.time_s == pytest.approx(10.0)
    assert found.iterations == 32
    run(other, range(60, 110), 11.0)
    assert watch.usual_time(PLAN) is None
    found = watch.usual_time(other)
    assert found is not None
    assert found.time_s == pytest.approx(11.0)


@pytest.mark.parametrize("span_s", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_iteration_times_that_cannot_be_are_not_looked_at(span_s: float) -> None:
    assert watched([[10, span_s]] * 9)[-1] == PlanInputs()


# ---- what people are told


def test_a_target_that_is_impossible_and_stragglers_are_named() -> None:
    goal = PlanGoal(Target(power=100), {OUTSIDE_THE_JOB: 1.1, 3: 1.25})
    assert goal_text(goal, "250 W is the least", {3: "rank 12: thermal slowdown"}) == (
        "target: at most 100 W, which is impossible: 250 W is the least; "
        "pace of a straggler, 1.25 times as slow: announced, pipeline 3 (rank 12: thermal slowdown)"
    )


def test_what_a_plan_saves_is_compared_with_full_speed_at_the_power_of_now() -> None:
    full_speed = FullSpeed(span_s=10.0, energy_j=1000.0, tail_s=1.0)
    assert measured_text(compared(full_speed, 10.1, 945.0, 1.05, 0.01)) == (
        "measured: 10.0% less energy at +1.00% time than at the highest clocks"
    )
    assert measured_text(compared(full_speed, 10.0, 1100.0, 1.0, 0.0), 85.0) == (
        "measured: 10.0% more energy at +0.00% time than at the highest clocks, 85 W"
    )
    assert measured_text(compared(FullSpeed(10.0, 0.0, 1.0), 10.0, 0.0, 1.0, 0.0)) == ""
