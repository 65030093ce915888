"""Which pipelines are slower than the plan promises."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pfo_fs.autotune.stragglers import RemeasureBackoff, StragglerDetector
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


def test_all_pipelines_off_by_the_same_is_drift_and_one_is_not() -> None:
    watch = StragglerDetector()
    for step in range(8):
        watch.slowdowns(iteration_times(step, [10.3, 10.3, 10.3, 10.3]), EXPECTED, {})
    assert watch.drifted() == pytest.approx(0.03)
    watch.forget()
    for step in range(8):
        watch.slowdowns(iteration_times(step, [10, 10, 10, 10.15]), EXPECTED, {})
    assert watch.drifted() == 0.0


def test_drift_is_told_only_after_several_iterations() -> None:
    watch = StragglerDetector()
    for step in range(7):
        watch.slowdowns(iteration_times(step, [10.5] * 4), EXPECTED, {})
        assert watch.drifted() == 0.0


def test_windows_that_measure_a_plan_that_is_always_off_get_rarer_and_rarer() -> None:
    backoff = RemeasureBackoff()
    windows = []
    for step in range(5000):
        backoff.note(iteration_times(step, [10.0]))
        if backoff.is_over():
            windows.append(step)
    gaps = [later - earlier for earlier, later in pairwise(windows)]
    assert gaps == sorted(gaps)
    assert len(windows) < 12, "or schedules would be numbered without end"


def test_after_a_long_time_without_drift_the_next_pause_is_short_again() -> None:
    backoff = RemeasureBackoff()
    for step in (0, 16, 48, 112, 5000):
        backoff.note(iteration_times(step, [10.0]))
        assert backoff.is_over()
    backoff.note(iteration_times(5016, [10.0]))
    assert backoff.is_over()
