"""What has changed between two windows of the same plan, and what follows for the samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scheduler_jobs import make_job, order_of

from pfo_fs.autotune.drift import (
    Change,
    PlanBaselines,
    PlanWindow,
    change_between,
    keep_highest_only,
    odd_kinds,
    restore_missing,
    shift_samples,
)
from pfo_fs.autotune.informed_sweep import InformedSweep
from pfo_fs.autotune.iteration_watch import IterationWatch
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.noise import IterationNoise
from pfo_fs.autotune.plan_goal import goal_of
from pfo_fs.autotune.reprofiling import Reprofiling
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.models import FrequencySchedule, PlanInputs, ProfilingResult, Switching, Target
from pfo_fs.scheduler.base import IterationTime

FORWARD, BACKWARD = (0, "forward"), (0, "backward")
LAST = (1, "forward")


def window(
    span_s: float = 2.0,
    scatter: float = 0.0,
    seed: int = 0,
    late_s: Sequence[float | None] = (0.0, 0.0),
    **slower: float,
) -> PlanWindow:
    """Five iterations of two ranks that run the forward of their stage, the first one with these changes."""
    noise = 1 + scatter * np.random.default_rng(seed).standard_normal(5)
    times = {
        kind: [s * slower.get(f"stage{kind[0]}", 1.0) * x for x in noise] for kind, s in ((FORWARD, 0.1), (LAST, 0.2))
    }
    times_s = {kind: {kind[0]: values} for kind, values in times.items()}
    return PlanWindow({0: [span_s * x for x in noise]}, times_s, {0: late_s, 1: []})


def test_of_two_stages_the_one_that_got_slower_is_named() -> None:
    change = change_between(window(), window(2.1, stage1=1.05), 0.001)
    assert change is not None
    assert change.iterations == pytest.approx(1.05)
    assert change.shifts == {LAST: pytest.approx(1.05)}
    assert str(change) == "iterations take +5.0% time under the same plan (forward of stage 1 +5.0%)"


def test_iterations_that_are_longer_though_no_instruction_is_have_a_change_without_instructions() -> None:
    assert change_between(window(), window(2.1), 0.001) == Change(pytest.approx(1.05), {})


def test_an_instruction_whose_change_does_not_reach_the_iterations_is_no_change() -> None:
    assert change_between(window(), window(2.0, stage1=1.05), 0.001) is None


def test_a_difference_within_the_noise_of_five_iterations_is_no_change() -> None:
    assert change_between(window(), window(2.04), 0.02) is None
    assert change_between(window(), window(2.04), 0.001) is not None


def test_windows_of_the_same_job_with_other_noise_hardly_ever_differ() -> None:
    differ = sum(
        change_between(window(scatter=0.01, seed=seed), window(scatter=0.01, seed=seed + 1), 0.01) is not None
        for seed in range(0, 2000, 2)
    )
    assert differ <= 3


def test_pipelines_without_a_common_window_are_not_compared() -> None:
    assert change_between(PlanWindow({}, {}), window(), 0.001) is None
    assert change_between(PlanWindow({1: [1.0] * 5}, {}), window(), 0.001) is None


@pytest.mark.parametrize(("late_s", "is_of_clocks"), [((0.06, 0.06), True), ((0.0, -0.04), False)])
def test_clocks_that_act_at_other_moments_by_as_much_as_iterations_differ_may_be_the_reason(
    late_s: Sequence[float], is_of_clocks: bool
) -> None:
    change = change_between(window(), window(2.1, late_s=late_s), 0.001)
    assert change is not None
    assert change.is_of_clocks == is_of_clocks


@pytest.mark.parametrize(("slower", "is_of_clocks"), [({"stage0": 1.1}, True), ({"stage0": 1.1, "stage1": 1.1}, False)])
def test_where_only_ranks_have_changed_whose_latencies_are_unknown_clocks_may_be_the_reason(
    slower: dict[str, float], is_of_clocks: bool
) -> None:
    change = change_between(window(), window(2.1, late_s=(None, 0.0), **slower), 0.001)
    assert change is not None
    assert change.is_of_clocks == is_of_clocks


def test_where_clocks_are_set_at_launch_no_latency_is_unknown() -> None:
    job, infos = make_job(1, 1)
    measurements = JobMeasurements(JobLayout(job, infos, lambda: {0: order_of(["forward"] * 3)}))
    baselines = PlanBaselines(measurements)
    for mode, is_of_clocks in (("launch", False), ("device", True)):
        baselines.forget()
        assert baselines.change(measured(2.0, {}, mode), PLAN, 0.001) is None
        change = baselines.change(measured(2.1, {}, mode), PLAN, 0.001)
        assert change is not None
        assert change.is_of_clocks == is_of_clocks


PLAN = [FrequencySchedule(rank=0, frequencies=[("forward", 1400), ("forward", 1000), ("forward", 1200)])]


def measured(span_s: float, known_s: dict[int, float], mode: str = "device") -> list[ProfilingResult]:
    """The result of a window of a job with one rank, whose clock process knows these latencies."""
    five = [span_s] * 5
    times = {"forward": [[0.3 * span_s] * 3] * 5}
    switching = Switching(mode=mode, latencies_s=known_s)
    return [
        ProfilingResult(
            rank=0, iter_time=five, iter_energy=five, iter_span=five, time_breakdown=times, switching=switching
        )
    ]


def test_iterations_that_differ_since_clock_processes_have_learned_their_clocks_are_no_change_of_the_job() -> None:
    job, infos = make_job(1, 1)
    measurements = JobMeasurements(JobLayout(job, infos, lambda: {0: order_of(["forward"] * 3)}))
    watch = IterationWatch(1, IterationNoise())
    reprofiling = Reprofiling(measurements, InformedSweep(measurements, 0.003, 64, bool), watch)
    assert reprofiling.change(measured(2.0, {}), PLAN, 0.001) is None
    inputs = PlanInputs()
    for step in range(40):
        goal = goal_of(inputs, Target(slowdown=1.0))
        inputs = watch.assess([IterationTime(0, step, 1, 2.0)], inputs, goal, PLAN, 2.0, 2.0, 2.0)
    assert watch.usual_time(PLAN) is not None
    assert reprofiling.change(measured(1.9, {1000: 0.01, 1200: 0.12}), PLAN, 0.001) is None
    assert watch.usual_time(PLAN) is None, "its iterations are compared with those that follow"
    assert reprofiling.change(measured(1.9, {1000: 0.01, 1200: 0.12}), PLAN, 0.001) is None, (
        "the second window is the first one now"
    )
    assert reprofiling.change(measured(2.0, {1000: 0.01, 1200: 0.12}), PLAN, 0.001) is not None, (
        "compared with the second window"
    )


# ---- samples


def samples() -> Samples:
    def point(time_s: float) -> Point:
        found = Point()
        found.add_times(20, time_s, 0.0)
        found.add_power(300.0, 1.0)
        return found

    return Samples({kind: {1400: point(1.0), 1000: point(1.3)} for kind in (FORWARD, BACKWARD)})


def times_of(found: Samples) -> dict[tuple[int, str], dict[int, float]]:
    return {kind: {mhz: round(point.time_s, 6) for mhz, point in found.curve(kind).items()} for kind in found.points}


def test_only_what_has_changed_is_scaled_and_its_highest_clock_is_to_be_measured_again() -> None:
    found = samples()
    removed = shift_samples(found, {FORWARD: 1.1})
    assert times_of(found) == {FORWARD: {1000: 1.43}, BACKWARD: {1400: 1.0, 1000: 1.3}}
    assert removed[FORWARD][0] == 1400
    assert removed[FORWARD][1].time_s == pytest.approx(1.1)


def test_a_highest_clock_that_was_not_measured_again_keeps_the_scaled_time() -> None:
    found = samples()
    assert odd_kinds(found, shift_samples(found, {FORWARD: 1.1})) == []
    assert times_of(found)[FORWARD] == {1400: 1.1, 1000: 1.43}


@pytest.mark.parametrize(("measured_s", "odd"), [(1.1, []), (1.11, []), (1.0, [FORWARD])])
def test_a_kind_that_has_changed_otherwise_at_the_highest_clock_is_odd(measured_s: float, odd: list[object]) -> None:
    found = samples()
    removed = shift_samples(found, {FORWARD: 1.1})
    found.points[FORWARD][1400] = samples().points[FORWARD][1400]
    found.points[FORWARD][1400].scale(measured_s, 1.0)
    assert odd_kinds(found, removed) == odd


def test_lower_clocks_that_were_not_measured_again_are_restored() -> None:
    found = samples()
    removed = keep_highest_only(found, [FORWARD, BACKWARD])
    assert times_of(found) == {FORWARD: {1400: 1.0}, BACKWARD: {1400: 1.0}}
    found.points[BACKWARD][1200] = Point(count=2, time_s=1.2, weight=1.0, power_w=300)
    restore_missing(found, removed)
    assert times_of(found) == {FORWARD: {1400: 1.0, 1000: 1.3}, BACKWARD: {1400: 1.0, 1200: 1.2}}
