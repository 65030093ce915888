"""Calibration: what was put into iterations is found, and real iterations are predicted."""

import json
import random
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import options_of, random_profile

from pfo_fs.arrays import Array
from pfo_fs.errors import PlanError
from pfo_fs.planner import Calibration, Pipeline, Planner, Problem, calibrate, make_pipeline
from pfo_fs.planner.calibration import makespans_s

PIPELINE = make_pipeline("1f1b", 4, 8)


class Measured(NamedTuple):
    """Durations in s of the instructions of some iterations, (nodes, iterations), and of the iterations."""

    pipeline: Pipeline
    times_s: Array
    lengths_s: Array

    def fit(self, *numbers: int) -> Calibration:
        chosen = list(numbers) or slice(None)
        return calibrate(self.pipeline, self.times_s[:, chosen], self.lengths_s[chosen])

    def predicted_s(self, found: Calibration) -> Array:
        return makespans_s(self.pipeline, self.times_s, found.delay_s) + found.overhead_s


def iterations_of(delay_s: float, overhead_s: float, count: int = 6, seed: int = 1) -> Measured:
    """Iterations of random plans with a delay and an overhead put in."""
    rng = random.Random(seed)
    real = PIPELINE.with_delay(delay_s)
    problem = Problem(real, random_profile(rng, real, 8), 50.0, overhead_s=overhead_s)
    times_s = [[rng.choice(choices.times_s) for choices in options_of(problem)] for _ in range(count)]
    lengths_s = [problem.iteration_time_s(row) for row in times_s]
    return Measured(PIPELINE, np.array(times_s).T, np.array(lengths_s))


@pytest.mark.parametrize(("delay_s", "overhead_s"), [(0.0, 0.0), (0.0, 0.3), (0.004, 0.1)])
def test_what_was_put_in_is_found(delay_s: float, overhead_s: float) -> None:
    found = iterations_of(delay_s, overhead_s).fit()
    assert found.delay_s == pytest.approx(delay_s, abs=0.001)
    assert found.overhead_s == pytest.approx(overhead_s, abs=0.02)


@given(seed=st.integers(0, 1000), noise=st.floats(-0.002, 0.002))
@settings(max_examples=20)
def test_two_plans_that_are_alike_invent_no_delay_that_predicts_others_wrongly(seed: int, noise: float) -> None:
    # The second plan only takes all times longer by the same share: any delay fits, and noise would choose one.
    measured = iterations_of(0.0, 0.2, 2, seed)
    first_s, length_s = measured.times_s[:, 0], float(measured.lengths_s[0])
    longer_s = (length_s - 0.2) * 1.01 + 0.2 + noise
    found = calibrate(PIPELINE, np.array([first_s, 1.01 * first_s]).T, np.array([length_s, longer_s]))
    assert measured.predicted_s(found)[1] == pytest.approx(measured.lengths_s[1], rel=0.003)


def test_equal_iterations_determine_nothing_but_their_own_length_and_one_is_too_few() -> None:
    measured = iterations_of(0.0, 0.2, 1)
    assert measured.predicted_s(measured.fit(0, 0)) == pytest.approx(measured.lengths_s)
    with pytest.raises(PlanError, match="at least two"):
        measured.fit()


def test_an_iteration_that_is_shorter_than_its_instructions_say_gets_neither_delay_nor_overhead() -> None:
    measured = iterations_of(0.0, 0.0)
    assert measured._replace(lengths_s=0.99 * measured.lengths_s).fit() == pytest.approx((0.0, 0.0), abs=1e-6)


def test_a_calibrated_problem_plans_with_the_delay_and_the_overhead() -> None:
    found = iterations_of(0.0, 0.25).fit()
    problem = Problem(PIPELINE, random_profile(random.Random(2), PIPELINE, 5), 50.0)
    difference = Planner(found.problem(problem)).fastest_s - Planner(problem).fastest_s
    assert difference == pytest.approx(found.overhead_s + 6 * found.delay_s, abs=0.02)


def read_measured(path: Path) -> Measured:
    """The medians of a real job's iterations under each plan; loading its data belongs to each forward."""
    document = json.loads(path.read_text())
    pipeline, times_s = make_pipeline("1f1b", document["pp"], document["num_microbatches"]), []
    for plan in document["plans"]:
        load_s = [fmean(loads_s) for loads_s in plan.get("load_s", ())] or [0.0] * document["pp"]
        own_s = [plan[f"{i.name}_s"][i.stage][i.microbatch] for i in pipeline.instructions]
        loading_s = [load_s[i.stage] * (i.name == "forward") for i in pipeline.instructions]
        times_s.append(np.add(own_s, loading_s))
    return Measured(pipeline, np.array(times_s).T, np.array([plan["iteration_time_s"] for plan in document["plans"]]))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert-huge-uncased", "bloom-3b", "gpt3-xl", "t5-3b", "wide-resnet101_8"])
def test_real_iterations_that_were_left_out_of_the_fit_are_predicted(shared_data: Path, model: str) -> None:
    (file,) = (shared_data / "measured").glob(f"{model}+*.json")
    measured = read_measured(file)
    fitted = measured.fit(*range(0, len(measured.lengths_s), 2))
    assert measured.predicted_s(fitted)[1::2] == pytest.approx(measured.lengths_s[1::2], rel=0.01)


@pytest.mark.parametrize("pair", [(5, 6), (0, 1)])
def test_two_real_plans_that_are_alike_predict_the_others(shared_data: Path, pair: tuple[int, int]) -> None:
    (file,) = (shared_data / "measured").glob("gpt3-xl+*.json")
    measured = read_measured(file)
    assert measured.predicted_s(measured.fit(*pair)) == pytest.approx(measured.lengths_s, rel=0.001)
