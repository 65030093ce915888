"""Clocks of one step from the loads of all pipelines, and the time that they may lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_ranks import TOP_MHZ, Ranks

from pfo_fs.loads.choice import LOST_TIME
from pfo_fs.planner import make_pipeline

TWO_STAGES, FOUR_STAGES = (make_pipeline("1f1b", stages, 4) for stages in (2, 4))
ZERO_BUBBLE = make_pipeline("zb-h1", 2, 4)
INTERLEAVED = make_pipeline("interleaved", 4, 4, num_ranks=2)


def of_step(job: Ranks, loads: Any) -> Any:
    """Loads of pipelines as the model takes them, (micro-batches, pipelines, features)."""
    return np.array(loads, float).T[:, :, None] if job.shape.micro_batches > 1 else np.array([loads], float)


@pytest.mark.parametrize("pipeline", [None, TWO_STAGES, FOUR_STAGES, ZERO_BUBBLE, INTERLEAVED])
def test_pipelines_with_less_work_run_slower_and_what_their_ends_tell_is_learned(pipeline: Any) -> None:
    job = Ranks(range(6), pipeline=pipeline)
    assert job.steps_with_lower_clocks(100) > 60
    assert job.late < LOST_TIME
    assert job.choice.durations.slope == pytest.approx(0.9, abs=0.05)
    if pipeline is not None:
        loads = job.loads(job.step)
        expected = job.shape.ends_s(job.times_s())
        assert job.choice.durations.ends_s(of_step(job, loads)) == pytest.approx(expected, rel=0.02)


def test_pipelines_that_wait_for_a_slow_worker_run_slower_whatever_their_loads_say() -> None:
    job = Ranks(range(6), pipeline=TWO_STAGES)
    job.heavy = 1.5  # pipeline 0 has a slow GPU: no load tells that
    job.run(60)
    mhz = job.choice.choose(of_step(job, np.ones((6, 4))))
    assert mhz[0] == TOP_MHZ
    assert len({*mhz[1:]}) == 1
    assert mhz[1] < TOP_MHZ
    assert job.late < LOST_TIME


def test_loads_that_say_nothing_leave_all_clocks_alone_and_the_status_says_so() -> None:
    job, drawn = Ranks(range(6)), np.random.default_rng(0)
    for _ in range(50):
        assert min(job.run(loads=[[load] for load in drawn.uniform(0.5, 1.5, 6)])) == TOP_MHZ
    assert "all ranks are at default clocks" in job.choice.status_text()


def test_the_margin_grows_at_once_with_time_that_was_lost_and_shrinks_slowly() -> None:
    job = Ranks(range(6))
    job.run(200)
    before = job.choice.margin
    while job.choice.margin <= before:
        before, job.heavy = job.choice.margin, 1.05  # one rank has more work than its loads say
        job.run()
    job.heavy = 1.0
    job.run()  # the end of a step is known when the next one has begun
    grown = job.choice.margin
    job.run(60)
    assert before < job.choice.margin < grown


@settings(max_examples=12)
@given(st.floats(0.0, 0.05), st.integers(1, 1000))
def test_lost_time_stays_within_twice_its_bound_however_exact_loads_are(noise: float, seed: int) -> None:
    job = Ranks(range(6), noise=noise, seed=seed)
    job.run(150)
    assert job.late < 2 * LOST_TIME


def test_after_twice_the_allowed_time_was_lost_all_clocks_stay_the_highest_until_it_has_evened_out() -> None:
    job = Ranks(range(6))
    job.run(60)
    job.heavy = 1.5  # a rank has become slow: what its loads say is not what it takes
    job.run(8)
    assert job.choice.has_lost_too_much
    assert "seem to have held up the others" in job.choice.status_text()
    job.heavy = 1.0
    assert min(job.run()) == TOP_MHZ
    while job.choice.has_lost_too_much:
        job.run(100)
    assert job.steps_with_lower_clocks(10) > 0


def test_a_stall_of_all_pipelines_is_not_taken_for_time_that_clocks_have_lost() -> None:
    job = Ranks(range(6), pipeline=TWO_STAGES)
    job.run(60)
    before, loads = job.choice.margin, of_step(job, np.outer([0.5, 0.6, 0.7, 0.8, 0.9, 1.4], np.ones(4)))
    mhz = job.choice.choose(loads)
    job.choice.learn(loads, job.choice.durations.ends_s(loads, TOP_MHZ / np.array(mhz) - 1) + 10.0, mhz, 0.0)
    assert min(mhz) < TOP_MHZ
    assert job.choice.margin <= before
