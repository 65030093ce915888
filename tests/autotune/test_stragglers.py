"""Which pipelines are slower than the plan promises."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pfo_fs.autotune.question_backoff import QuestionBackoff
from pfo_fs.autotune.stragglers import Disturbances, StragglerDetector
from pfo_fs.scheduler.base import IterationTime

EXPECTED = dict.fromkeys(range(4), 10.0)


def iteration_times(
    step: int, spans: list[float], number: int = 5, throttled: dict[int, str] | None = None
) -> list[IterationTime]:
    return [IterationTime(p, step, number, span, (throttled or {}).get(p, "")) for p, span in enumerate(spans)]


def test_two_slow_iterations_make_a_straggler_and_one_does_not() -> None:
    watch = StragglerDetector()
    assert watch.slowdowns(iteration_times(0, [10, 10, 10, 12]), EXPECTED, {}) == {}
    assert watch.slowdowns(iteration_times(1, [10, 10, 10, 12.02]), EXPECTED, {}) == {3: pytest.approx(1.2, abs=0.01)}


def test_a_single_pause_makes_no_straggler() -> None:
    watch = StragglerDetector()
    for step, span in enumerate([10, 15, 10, 15, 10]):
        assert watch.slowdowns(iteration_times(step, [10, 10, 10, span]), EXPECTED, {}) == {}


def test_one_slow_iteration_is_enough_where_the_gpu_says_that_it_is_throttled() -> None:
    watch = StragglerDetector()
    hot = {3: "rank 12: thermal slowdown"}
    assert watch.slowdowns(iteration_times(0, [10, 10, 10, 12], throttled=hot), EXPECTED, {}) == {3: pytest.approx(1.2)}
    assert watch.reasons[3] == "rank 12: thermal slowdown"


def test_a_straggler_that_is_healthy_again_is_one_no_more_after_one_iteration() -> None:
    watch = StragglerDetector()
    known, expected = {3: 1.2}, {0: 12.0, 1: 12.0, 2: 12.0, 3: 12.0}
    assert watch.slowdowns(iteration_times(0, [12, 12, 12, 12]), expected, known) == known
    assert watch.slowdowns(iteration_times(1, [12, 12, 12, 10]), expected, known) == {}


def test_a_straggler_that_gets_worse_or_better_is_followed() -> None:
    watch = StragglerDetector()
    expected = dict.fromkeys(range(4), 12.0)
    watch.slowdowns(iteration_times(0, [12, 12, 12, 15]), expected, {3: 1.2})
    assert watch.slowdowns(iteration_times(1, [12, 12, 12, 15]), expected, {3: 1.2}) == {3: pytest.approx(1.5)}
    watch.forget()
    assert watch.slowdowns(iteration_times(2, [12, 12, 12, 11]), expected, {3: 1.2}) == {3: pytest.approx(1.1)}


def test_noise_is_no_straggler() -> None:
    watch = StragglerDetector(noise=0.02)
    for step in range(5):
        assert watch.slowdowns(iteration_times(step, [10, 10, 10, 10.6]), EXPECTED, {}) == {}


def test_iterations_of_another_schedule_start_afresh() -> None:
    watch = StragglerDetector()
    watch.slowdowns(iteration_times(0, [10, 10, 10, 12], number=5), EXPECTED, {})
    assert watch.slowdowns(iteration_times(1, [10, 10, 10, 12], number=6), EXPECTED, {}) == {}


def test_a_job_whose_pipelines_are_often_slow_for_a_moment_has_no_straggler_before_more_iterations_are_slow() -> None:
    watch = StragglerDetector()
    step, found = 0, 0
    for _ in range(30):
        for span in [10.0] * 50 + [12.0] * 3:
            found += bool(watch.slowdowns(iteration_times(step, [10, 10, 10, span]), EXPECTED, {}))
            step += 1
    assert found <= 4, "iterations of the first moment, before any was known"
    assert 3 < watch.disturbances.iterations_to_confirm(4) < 20


def test_a_straggler_of_hundreds_of_iterations_does_not_make_the_next_one_harder_to_find() -> None:
    disturbances = Disturbances(iterations=1000)
    disturbances.add(400)
    assert disturbances.iterations_to_confirm(4) == 2


def questions_of(backoff: QuestionBackoff, steps: range) -> list[int]:
    """The steps at which a plan is measured again that looks wrong at every step."""
    asked = []
    for step in steps:
        backoff.note(iteration_times(step, [10.0]))
        if backoff.is_over():
            asked.append(step)
    return asked


def test_windows_that_measure_a_plan_in_vain_get_rarer_and_rarer() -> None:
    asked = questions_of(QuestionBackoff(), range(20_000))
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert len(asked) < 14, "or schedules would be numbered without end"


def test_a_change_that_is_confirmed_after_a_long_calm_makes_the_next_pause_short_again() -> None:
    confirmed, vain = QuestionBackoff(), QuestionBackoff()
    for backoff in (confirmed, vain):
        questions_of(backoff, range(1000))
        questions_of(backoff, range(50_000, 50_001))
    confirmed.confirm()
    assert questions_of(confirmed, range(50_001, 50_100)) == [50_016, 50_048]
    assert questions_of(vain, range(50_001, 50_100)) == []
