"""What the monitor of a job notices, and what it does not."""

import random
from collections.abc import Callable, Mapping

import pytest

from pfo_fs.autotune.monitor import Monitor
from pfo_fs.scheduler.base import IterationTime

MEAN_S = 10.0
Slowdown = Callable[[int, int], float]
"""Returns by how many times a pipeline is slower in a step."""


def in_all_turns(expected_s: Mapping[int, float]) -> dict[tuple[int, int], float]:
    return {(turn, pipeline): mean_s for turn in range(4) for pipeline, mean_s in expected_s.items()}


def monitor_of(pipelines: int, scatter: float) -> Monitor:
    monitor = Monitor(pipelines)
    monitor.expect(in_all_turns(dict.fromkeys(range(pipelines), MEAN_S)), scatter)
    return monitor


def times_of(
    step: int, pipelines: int, scatter: float, rng: random.Random, slowdown: Slowdown = lambda *_: 1.0
) -> list[IterationTime]:
    """Iterations of all pipelines in a step."""
    return [
        IterationTime(pipeline, step, 1, MEAN_S * slowdown(pipeline, step) * max(0.1, rng.gauss(1, scatter)))
        for pipeline in range(pipelines)
    ]


def first_alarm(
    pipelines: int,
    scatter: float,
    slowdown: Slowdown,
    known: Mapping[int, float] | None = None,
    expected_s: Mapping[int, float] | None = None,
    most: int = 200,
    seed: int = 1,
) -> tuple[int, Mapping[int, float]] | None:
    """The first step after which something has changed, and the stragglers then; None if nothing has."""
    monitor, rng = monitor_of(pipelines, scatter), random.Random(seed)
    if expected_s is not None:
        monitor.expect(in_all_turns(expected_s), scatter)
    for step in range(most):
        stragglers = monitor.add(times_of(step, pipelines, scatter, rng, slowdown), known or {})
        if stragglers is not None:
            return step, stragglers
    return None


@pytest.mark.parametrize("pipelines", [1, 2, 8])
@pytest.mark.parametrize("scatter", [0.0, 0.003, 0.02, 0.08])
def test_independent_noise_is_no_change(pipelines: int, scatter: float) -> None:
    assert first_alarm(pipelines, scatter, lambda *_: 1.0, most=8_000 // pipelines, seed=pipelines) is None


@pytest.mark.parametrize("pipelines", [2, 3, 8])
@pytest.mark.parametrize(("scatter", "steps"), [(0.0, 5), (0.003, 5), (0.01, 5), (0.02, 30)])
def test_a_slow_pipeline_is_found_within_a_few_iterations(pipelines: int, scatter: float, steps: int) -> None:
    step, stragglers = first_alarm(pipelines, scatter, lambda pipeline, _: 1.2 if pipeline == 1 else 1.0)
    assert step < steps
    assert stragglers == {1: pytest.approx(1.2, abs=0.03)}


def test_one_slow_iteration_is_no_straggler_unless_the_gpu_reports_that_it_is_throttled() -> None:
    def stragglers(reason: str, slower: float = 1.3) -> tuple[object, object]:
        spans_s = [MEAN_S, MEAN_S, MEAN_S * slower]
        times = [IterationTime(pipeline, 0, 1, span_s) for pipeline, span_s in enumerate(spans_s)]
        times[2] = times[2]._replace(throttled=reason)
        monitor = monitor_of(3, 0.002)
        return monitor.add(times, {}), monitor.reasons

    assert stragglers("") == stragglers("", 0.7) == (None, {})
    assert stragglers("thermal slowdown") == ({2: pytest.approx(1.3, abs=0.01)}, {2: "thermal slowdown"})


def test_single_pauses_of_the_machine_are_no_change() -> None:
    def pauses(pipeline: int, step: int) -> float:
        return 1.5 if step % 10 == 9 and step // 10 % 4 == pipeline else 1.0

    assert first_alarm(4, 0.003, pauses, most=400, seed=3) is None


@pytest.mark.parametrize("change", [0.95, 1.05])
@pytest.mark.parametrize("pipelines", [1, 2, 8])
def test_a_change_of_all_pipelines_is_found_and_none_of_them_is_a_straggler(pipelines: int, change: float) -> None:
    step, stragglers = first_alarm(pipelines, 0.004, lambda *_: change)
    assert step < 10
    assert stragglers == {}


@pytest.mark.parametrize("scatter", [0.003, 0.008])
def test_a_straggler_is_let_go_after_its_first_healthy_iteration(scatter: float) -> None:
    monitor = monitor_of(2, scatter)
    monitor.expect(in_all_turns({0: 1.2 * MEAN_S, 1: 1.2 * MEAN_S}), scatter)
    times = [IterationTime(0, 0, 1, 1.2 * MEAN_S), IterationTime(1, 0, 1, MEAN_S)]
    assert monitor.add(times, {1: 1.2}) == {}


def test_a_pipeline_that_takes_as_long_as_expected_is_no_straggler_beside_one_that_became_faster() -> None:
    _, stragglers = first_alarm(2, 0.003, lambda pipeline, _: 0.85 if pipeline == 1 else 1.0)
    assert stragglers == {1: pytest.approx(0.85, abs=0.02)}


def test_a_straggler_as_slow_as_expected_is_no_alarm_and_one_that_becomes_slower_is_followed() -> None:
    def alarm(slower: float) -> tuple[int, Mapping[int, float]] | None:
        expected_s = {0: MEAN_S, 1: MEAN_S, 2: 1.2 * MEAN_S}
        return first_alarm(3, 0.003, lambda pipeline, _: slower if pipeline == 2 else 1.0, {2: 1.2}, expected_s, 1000)

    assert alarm(1.2) is None
    assert alarm(1.4)[1] == {2: pytest.approx(1.4, abs=0.03)}


def test_a_pipeline_that_reports_nothing_does_not_keep_stragglers_from_being_found() -> None:
    monitor, rng = monitor_of(4, 0.003), random.Random(5)
    times = [times_of(step, 4, 0.003, rng, lambda pipeline, _: 1.2 if pipeline == 1 else 1.0) for step in range(30)]
    found = [monitor.add(of_step[:3], {}) for of_step in times]
    assert [each for each in found if each is not None][-1] == {1: pytest.approx(1.2, abs=0.03)}
    assert monitor.add([IterationTime(3, step, 1, 2 * MEAN_S) for step in range(22)], {}) is None, "it is too late"


@pytest.mark.parametrize("span_s", [float("nan"), float("inf"), 0.0, -1.0])
def test_iteration_times_that_cannot_be_are_not_looked_at(span_s: float) -> None:
    monitor = monitor_of(1, 0.002)
    assert [monitor.add([IterationTime(0, step, 1, span_s)], {}) for step in range(20)] == [None] * 20


def test_in_turns_each_pipeline_is_expected_to_take_what_its_ranks_make_of_it() -> None:
    """A pipeline that uses its slack is no straggler beside one that has no turn."""
    expected_s = {
        (turn, pipeline): MEAN_S * (1.2 if turn >> pipeline & 1 else 1) for turn in range(4) for pipeline in (0, 1)
    }
    monitor = Monitor(2)
    monitor.expect(expected_s, 0.003)
    for step in range(40):
        turn = (1, 2, 3, 0)[step % 4]
        times = [IterationTime(each, step, 1, expected_s[turn, each], turn=turn) for each in (0, 1)]
        assert monitor.add(times, {}) is None


def test_where_nothing_is_expected_nothing_is_a_change() -> None:
    for monitor, turn in ((Monitor(2), 3), (monitor_of(2, 0.01), 61_297_949)):
        for step in range(20):
            times = [IterationTime(each, step, 1, 2.0 * step + 9, turn=turn) for each in range(2)]
            assert monitor.add(times, {}) is None
