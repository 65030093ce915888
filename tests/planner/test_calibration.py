"""Calibration: what was put into iterations is found, and real iterations are predicted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import random_profile

from pfo_fs.errors import PlanError
from pfo_fs.planner import (
    MeasuredIteration,
    Pipeline,
    Planner,
    Problem,
    calibrate,
    make_pipeline,
)


def iterations_of(
    pipeline: Pipeline, delay_s: float, overhead_s: float, count: int = 6, seed: int = 1
) -> list[MeasuredIteration]:
    """Iterations of random plans with a delay and an overhead put in."""
    rng = random.Random(seed)
    real = pipeline.with_delay(delay_s)
    profile = random_profile(rng, pipeline, 8)
    problem = Problem(real, profile, 50.0, overhead_s=overhead_s)
    found = []
    for _ in range(count):
        times = [rng.choice(choices.times_s) for choices in problem.choices]
        length_s = problem.iteration_time_s(times)
        found.append(MeasuredIteration(dict(zip(pipeline.instructions, times, strict=True)), length_s, {}))
    return found


@pytest.mark.parametrize(("delay_s", "overhead_s"), [(0.0, 0.0), (0.0, 0.3), (0.004, 0.1)])
def test_what_was_put_in_is_found(delay_s: float, overhead_s: float) -> None:
    pipeline = make_pipeline("1f1b", 4, 8)
    found = calibrate(pipeline, iterations_of(pipeline, delay_s, overhead_s))
    assert found.delay_s == pytest.approx(delay_s, abs=0.001)
    assert found.overhead_s == pytest.approx(overhead_s, abs=0.02)


@given(seed=st.integers(0, 1000), noise=st.floats(-0.002, 0.002))
@settings(max_examples=20)
def test_two_plans_that_are_alike_invent_no_delay_that_predicts_others_wrongly(seed: int, noise: float) -> None:
    # The second plan only takes all times longer by the same share: any delay fits, and noise would choose one.
    pipeline = make_pipeline("1f1b", 4, 8)
    first, other = iterations_of(pipeline, 0.0, 0.2, 2, seed)
    longer = MeasuredIteration(
        {instruction: 1.01 * time_s for instruction, time_s in first.times_s.items()},
        (first.iteration_time_s - 0.2) * 1.01 + 0.2 + noise,
        {},
    )
    found = calibrate(pipeline, [first, longer])
    assert found.predict(pipeline, other) == pytest.approx(other.iteration_time_s, rel=0.003)


def test_equal_iterations_determine_nothing_but_their_own_length() -> None:
    pipeline = make_pipeline("1f1b", 2, 4)
    (iteration,) = iterations_of(pipeline, 0.0, 0.2, 1)
    found = calibrate(pipeline, [iteration, iteration])
    assert found.predict(pipeline, iteration) == pytest.approx(iteration.iteration_time_s)


def test_an_iteration_that_is_shorter_than_its_instructions_say_gets_neither_delay_nor_overhead() -> None:
    pipeline = make_pipeline("1f1b", 2, 4)
    iterations = [
        MeasuredIteration(it.times_s, 0.99 * it.iteration_time_s, {}) for it in iterations_of(pipeline, 0.0, 0.0)
    ]
    found = calibrate(pipeline, iterations)
    assert found.delay_s == pytest.approx(0, abs=1e-6)
    assert found.overhead_s == pytest.approx(0, abs=1e-6)


def test_a_calibrated_problem_plans_with_the_delay_and_the_overhead() -> None:
    pipeline = make_pipeline("1f1b", 2, 4)
    found = calibrate(pipeline, iterations_of(pipeline, 0.0, 0.25))
    problem = Problem(pipeline, random_profile(random.Random(2), pipeline, 5), 50.0)
    difference = Planner(found.problem(problem)).fastest_s - Planner(problem).fastest_s
    assert difference == pytest.approx(found.overhead_s + 4 * found.delay_s, abs=0.02)


def test_data_loading_goes_before_the_forwards_of_its_stage() -> None:
    pipeline = make_pipeline("1f1b", 2, 3)
    iterations = [
        MeasuredIteration(it.times_s, it.iteration_time_s, {0: 0.05}) for it in iterations_of(pipeline, 0.0, 0.0)
    ]
    loaded = calibrate(pipeline, iterations).pipeline(pipeline)
    delays = {(before, after): delay_s for before, after, delay_s in loaded.edges}
    assert delays[0, 1] == pytest.approx(0.05)


def test_one_iteration_is_too_few() -> None:
    pipeline = make_pipeline("1f1b", 2, 2)
    with pytest.raises(PlanError, match="at least two"):
        calibrate(pipeline, iterations_of(pipeline, 0, 0, 1))


def measured_iterations(path: Path) -> tuple[Pipeline, list[MeasuredIteration]]:
    """The pipeline of a job that was measured, and the medians of its iterations under each plan."""
    document = json.loads(path.read_text())
    pipeline = make_pipeline("1f1b", document["pp"], document["num_microbatches"])
    return pipeline, [
        MeasuredIteration(
            {i: plan[f"{i.name}_s"][i.stage][i.microbatch] for i in pipeline.instructions},
            plan["iteration_time_s"],
            {stage: fmean(loads_s) for stage, loads_s in enumerate(plan.get("load_s", ()))},
        )
        for plan in document["plans"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert-huge-uncased", "bloom-3b", "gpt3-xl", "t5-3b", "wide-resnet101_8"])
def test_real_iterations_that_were_left_out_of_the_fit_are_predicted_within_one_percent(
    shared_data: Path, model: str
) -> None:
    (file,) = (shared_data / "measured").glob(f"{model}+*.json")
    pipeline, iterations = measured_iterations(file)
    fitted = calibrate(pipeline, iterations[::2])
    for iteration in iterations[1::2]:
        assert fitted.predict(pipeline, iteration) == pytest.approx(iteration.iteration_time_s, rel=0.01)


@pytest.mark.parametrize("pair", [(5, 6), (0, 1)])
def test_two_real_plans_that_are_alike_predict_the_others(shared_data: Path, pair: tuple[int, int]) -> None:
    (file,) = (shared_data / "measured").glob("gpt3-xl+*.json")
    pipeline, iterations = measured_iterations(file)
    fitted = calibrate(pipeline, [iterations[number] for number in pair])
    for iteration in iterations:
        assert fitted.predict(pipeline, iteration) == pytest.approx(iteration.iteration_time_s, rel=0.001)
