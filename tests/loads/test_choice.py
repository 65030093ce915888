"""Clocks of one step from the loads of all pipelines, and the time that they may lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.loads.choice import LOST_TIME, Clocks, LoadChoice
from pfo_fs.loads.step_shape import StepShape
from pfo_fs.planner import make_pipeline

Array = Any
CLOCKS = Clocks(tuple(range(1410, 600, -30)), least_mhz=810)
TOP_MHZ = CLOCKS.offered_mhz[0]
MICRO_BATCHES, PIPELINES = 4, 6
SLOPE = 0.85
FORWARD_S = {"forward": 0.1, "backward": 0.22}
ONE_STAGE, TWO_STAGES, FOUR_STAGES = (make_pipeline("1f1b", stages, MICRO_BATCHES) for stages in (1, 2, 4))
ZERO_BUBBLE = make_pipeline("zb-h1", 2, MICRO_BATCHES)
INTERLEAVED = make_pipeline("interleaved", 4, MICRO_BATCHES, num_ranks=2)


class Job:
    """Steps whose micro-batches differ in their work.

    Args:
        noise: Relative: by how much durations differ from what loads make of them.
        wrong: Whether loads say nothing of the work.
        pipeline: What the ranks run.
    """

    def __init__(self, noise: float = 0.005, wrong: bool = False, seed: int = 0, pipeline: Any = ONE_STAGE) -> None:
        self.shape = StepShape.of(pipeline)
        self.choice = LoadChoice(self.shape, CLOCKS)
        self._rng, self._noise, self._wrong = np.random.default_rng(seed), noise, wrong
        self._forward_s = np.array([[FORWARD_S.get(i.name, 0.11) * (1 + 0.1 * i.stage)] for i in pipeline.instructions])
        self.lower, self.time_s, self.full_s = 0, 0.0, 0.0

    def ends_s(self, work: Array, mhz: Any = TOP_MHZ) -> Array:
        """When ranks end at micro-batches' work, (ranks, pipelines)."""
        slower = TOP_MHZ / np.array(mhz) - 1
        noise = np.exp(self._noise * self._rng.standard_normal((len(self.shape.rank), work.shape[1])))
        return self.shape.ends_s(self._forward_s * (0.2 + work[self.shape.micro_batch]) * noise * (1 + SLOPE * slower))

    def step(self, heavy: float = 1.0) -> list[int]:
        """Runs a step; work is `heavy` times as much as its load says. Returns the clocks."""
        work = self._rng.uniform(0.5, 1.5, (MICRO_BATCHES, PIPELINES)) * self._rng.uniform(0.6, 1.4, PIPELINES)
        told = self._rng.uniform(0.5, 1.5, work.shape) if self._wrong else work
        told = told[:, :, None]
        mhz = self.choice.choose(told)
        factor = np.where(np.arange(PIPELINES) == 0, heavy, 1.0)
        state = self._rng.bit_generator.state
        full_s = self.ends_s(work) * factor
        self._rng.bit_generator.state = state  # the same noise
        ends_s = self.ends_s(work, mhz) * factor
        self.choice.learn(told, ends_s, mhz)
        self.lower += min(mhz) < TOP_MHZ
        self.time_s, self.full_s = self.time_s + ends_s.max(), self.full_s + full_s.max()
        return mhz

    @property
    def late(self) -> float:
        return float(self.time_s / self.full_s - 1)


@pytest.mark.parametrize("pipeline", [ONE_STAGE, TWO_STAGES, FOUR_STAGES, ZERO_BUBBLE, INTERLEAVED])
def test_pipelines_with_less_work_run_slower_and_no_step_takes_longer(pipeline: Any) -> None:
    job = Job(pipeline=pipeline)
    for _ in range(60):
        job.step()
    assert job.lower > 40
    assert job.late < LOST_TIME


def test_the_pipeline_with_most_work_keeps_the_highest_clock() -> None:
    job = Job(noise=0.0)
    for _ in range(20):
        job.step()
    loads = np.full((MICRO_BATCHES, PIPELINES, 1), 0.6)
    loads[:, 2] = 1.4
    mhz = job.choice.choose(loads)
    assert mhz[2] == TOP_MHZ
    assert all(each == mhz[0] < TOP_MHZ for number, each in enumerate(mhz) if number != 2)


def test_pipelines_that_wait_for_a_slow_worker_run_slower_whatever_their_loads_say() -> None:
    job = Job()
    for _ in range(60):
        job.step(heavy=1.5)  # pipeline 0 has a slow GPU: no load tells that
    equal = np.ones((MICRO_BATCHES, PIPELINES, 1))
    mhz = job.choice.choose(equal)
    assert mhz[0] == TOP_MHZ
    assert max(mhz[1:]) < TOP_MHZ
    assert job.late < LOST_TIME


def test_loads_that_say_nothing_leave_all_clocks_alone_and_the_status_says_so() -> None:
    job = Job(wrong=True)
    for _ in range(50):
        job.step()
    assert not job.lower
    assert "all clocks stay the highest" in job.choice.status_text()


def test_the_margin_grows_at_once_with_time_that_was_lost_and_shrinks_slowly() -> None:
    job = Job()
    for _ in range(200):
        job.step()
    before = job.choice.margin
    while job.choice.margin <= before:
        before = job.choice.margin
        job.step(heavy=1.05)  # one pipeline has more work than its loads say
    grown = job.choice.margin
    for _ in range(60):
        job.step()
    assert before < job.choice.margin < grown


@settings(max_examples=20)
@given(st.floats(0.0, 0.05), st.integers(0, 1000))
def test_lost_time_stays_within_twice_its_bound_however_exact_loads_are(noise: float, seed: int) -> None:
    job = Job(noise=noise, seed=seed)
    for _ in range(150):
        job.step()
    assert job.late < 2 * LOST_TIME


def test_after_twice_the_allowed_time_was_lost_all_clocks_stay_the_highest_until_it_has_evened_out() -> None:
    job = Job()
    for _ in range(60):
        job.step()
    for _ in range(6):
        job.step(heavy=1.5)  # a pipeline has become slow: what its loads say is not what it takes
    assert job.choice.has_lost_too_much
    assert "more than twice what is allowed" in job.choice.status_text()
    assert min(job.step()) == TOP_MHZ
    for _ in range(2000):
        job.step()
    assert not job.choice.has_lost_too_much
    assert min(job.step()) < TOP_MHZ


def test_a_stall_of_all_pipelines_is_not_taken_for_time_that_clocks_have_lost() -> None:
    job = Job()
    for _ in range(60):
        job.step()
    before = job.choice.margin
    unequal = np.repeat(np.array([[0.5, 0.6, 0.7, 0.8, 0.9, 1.4]]), MICRO_BATCHES, axis=0)
    mhz = job.choice.choose(unequal[:, :, None])
    job.choice.learn(unequal[:, :, None], job.ends_s(unequal, mhz) + 10.0, mhz)
    assert min(mhz) < TOP_MHZ
    assert job.choice.margin <= before


@pytest.mark.parametrize("pipeline", [ONE_STAGE, TWO_STAGES, FOUR_STAGES])
def test_how_much_work_follows_the_clock_is_learned_although_less_work_has_lower_clocks(pipeline: Any) -> None:
    job = Job(noise=0.002, pipeline=pipeline)
    for _ in range(120):
        job.step()
    assert job.choice.durations.slope == pytest.approx(SLOPE, abs=0.05)


@pytest.mark.parametrize("pipeline", [TWO_STAGES, FOUR_STAGES, ZERO_BUBBLE, INTERLEAVED])
def test_when_a_pipeline_ends_is_learned_from_the_ends_of_its_ranks_alone(pipeline: Any) -> None:
    job = Job(noise=0.0, pipeline=pipeline)
    for _ in range(60):
        job.step()
    work = np.random.default_rng(9).uniform(0.3, 2.0, (MICRO_BATCHES, PIPELINES))
    assert job.choice.durations.ends_s(work[:, :, None]) == pytest.approx(job.ends_s(work), rel=0.02)
