"""Rank 0's decisions: rows of all ranks in, a clock for each rank out."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from load_ranks import CLOCKS, TOP_MHZ, WAIT_W, Ranks

from pfo_fs.loads import step_rows
from pfo_fs.loads.coordinator import SHOWN_LANES, LoadCoordinator, last_step
from pfo_fs.loads.turns import Turns
from pfo_fs.planner import make_pipeline


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_ranks_with_less_work_run_slower_no_step_is_longer_and_the_saving_is_told_with_its_error(ahead: int) -> None:
    job = Ranks(range(8), ahead)
    job.run(120)
    state = job.coordinator.state
    assert job.saved > 0.08
    assert job.late < 1e-3
    assert abs(state.saved - job.saved) < max(0.01, 3 * (state.saved_error or 0))
    assert state.explained > 0.95
    assert f"saves {100 * state.saved:.1f} ± " in state.text
    assert abs(state.late - job.late) < 3 * state.late_error < 0.01
    assert f"against {state.controls} control steps" in state.text
    assert "Batches of equal work" in state.text


def test_the_last_step_is_told_as_it_ran_and_as_it_would_have_at_the_highest_clocks() -> None:
    job = Ranks(range(4), noise=0.0)
    mhz = job.run(40)
    while min(mhz) == TOP_MHZ or job.step < 40:
        mhz = job.run()
    number = job.step - 1
    job.tell(job.step)
    last = job.coordinator.state.last
    assert (last.step, last.lanes, sorted(last.lane)) == (number, 4, [0, 1, 2, 3])
    loads = job.loads(number).sum(axis=1)
    assert list(last.lane) == sorted(range(4), key=lambda lane: -loads[lane])
    assert list(last.mhz) == [mhz[lane] for lane in last.lane]
    assert last.work_s == pytest.approx([job.ended[lane][-1].work_s for lane in last.lane], rel=1e-3)
    assert last.full_s == pytest.approx([loads[lane] for lane in last.lane], rel=0.01)


def test_of_many_lanes_a_few_are_told_among_them_those_with_most_and_least_work_and_the_one_that_ended_last() -> None:
    full_s = np.linspace(1.0, 3.0, 100)
    work_s = np.where(np.arange(100) == 50, 4.0, full_s)
    last = last_step(7, np.full(100, 1200.0), work_s, full_s)
    assert len(last.lane) <= SHOWN_LANES
    assert {0, 50, 99} <= {*last.lane}
    assert last.lanes == 100


def test_steps_that_are_shorter_than_the_ticks_of_energy_counters_are_compared_in_blocks() -> None:
    turns = Turns()
    at_top = [turns.take([900, 1410], 1410, 0.05)[0] == [1410, 1410] for _ in range(40_000)]
    blocks = [len(list(block)) for is_control, block in groupby(at_top) if is_control]
    assert blocks[0] == 1
    assert min(blocks[-5:]) * 0.05 >= 5.0
    assert sum(at_top[20_000:]) < 0.04 * 20_000


@pytest.mark.parametrize("before", [0, 64])
@pytest.mark.parametrize("every", [2, 4, 8])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_wait_more_rarely_are_back_at_default_clocks_within_twenty_steps_and_are_told_why(
    before: int, every: int, ranks: int
) -> None:
    job = Ranks(range(ranks))
    job.run(before)
    job.every = every
    assert before or not job.steps_with_lower_clocks(20)
    job.run(20)
    assert not job.steps_with_lower_clocks(40)
    state = job.coordinator.state
    assert "do not wait for each other in each step" in state.problem
    assert state.problem in state.text
    job.every = 1
    assert not before or job.steps_with_lower_clocks(60), "all wait again"


def test_a_rank_that_begins_late_keeps_the_default_clock_since_the_others_wait_for_it() -> None:
    job = Ranks(range(4), noise=0.0)
    checkpoint_s = np.array([30.0, 0.0, 0.0, 0.0])
    job.beside = lambda step, mhz: (0.2 + (step % 5 == 4) * checkpoint_s, WAIT_W)
    after = []
    for step in range(100):
        mhz = job.run()
        if step % 5 == 0:
            after.append(mhz[0])
    assert set(after) == {TOP_MHZ}
    assert job.late < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_rare_work_that_is_in_no_control_step_makes_no_exact_figure_wrong(seed: int) -> None:
    job, drawn = Ranks(range(8), seed=seed), np.random.default_rng(seed)
    for _ in range(300):
        job.heavy = 4.0 if drawn.random() < 0.01 else 1.0
        job.run()
    state = job.coordinator.state
    assert state.late is None or abs(state.late - job.late) < 3 * (state.late_error or 0)


def test_time_that_lower_clocks_cost_beside_the_work_is_told_though_no_model_knows_it() -> None:
    job = Ranks(range(8))
    job.beside = lambda step, mhz: (0.2 if mhz == TOP_MHZ else 0.22, WAIT_W)  # such as collectives at a low clock
    job.run(400)
    state = job.coordinator.state
    assert state.late_error is not None
    assert state.late > 3 * state.late_error
    assert abs(state.late - job.late) < 2 * state.late_error


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("rest_s", "lowered"), [(0.2, False), (0.4, True)])
def test_a_job_that_becomes_slower_by_lower_clocks_and_for_no_other_reason_goes_back_to_default_clocks(
    ranks: int, rest_s: float, lowered: bool
) -> None:
    job = Ranks(range(ranks))
    job.run(60)
    job.beside = lambda step, mhz: (rest_s if mhz == TOP_MHZ else 0.4, WAIT_W)  # such as collectives at a low clock
    job.run(20)
    assert (job.steps_with_lower_clocks(50) >= 10) == lowered
    assert lowered or "slower" in job.coordinator.state.text or "cost" in job.coordinator.state.text


@pytest.mark.parametrize("every", [0, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_saving_that_is_told_is_the_true_one_also_beside_evaluations(every: int, seed: int) -> None:
    job = Ranks(range(8))
    for _ in range(seed):
        job.loads(job.step)  # another course of the loads
        job.step += 1
    job.step = 0
    if every:
        job.beside = lambda step, mhz: (2.0, 300.0) if step % every == 0 else (0.2, WAIT_W)
    job.run(250)
    state = job.coordinator.state
    assert state.saved_error is not None
    assert abs(state.saved - job.saved) < 3 * state.saved_error


def test_a_rank_without_loads_in_some_steps_is_named() -> None:
    job = Ranks(range(4))
    job.run(30)
    job.run(loads=[[1.0], [1.0], None, [1.0]])
    assert "data-parallel rank 2 gives no loads in some steps" in job.coordinator.state.problem


def test_no_clock_is_lower_than_that_of_least_energy_nor_than_three_fifths() -> None:
    job = Ranks(range(8), noise=0.0)
    least = min(min(job.run()) for _ in range(100))
    assert least >= 0.6 * TOP_MHZ


@pytest.mark.parametrize(
    "loads", [[None] * 4, [[float("nan")]] * 4, [[1.0]] * 3 + [[(1.0, 2.0)]], [["x"]] * 4, [[(1.0,) * 9]] * 4]
)
def test_a_step_whose_loads_cannot_be_used_has_the_highest_clocks(loads: list[Any]) -> None:
    job = Ranks(range(4))
    job.run(40)
    assert job.run(loads=loads) == [TOP_MHZ] * 4
    assert min(min(job.run()) for _ in range(5)) < TOP_MHZ


def test_loads_of_another_form_are_learned_anew() -> None:
    job = Ranks(range(4))
    job.run(40)
    for _ in range(10):
        assert job.run(loads=[[(1.0, 2.0, float(rank), job.step)] for rank in range(4)]) == [TOP_MHZ] * 4
    assert "explain" not in job.coordinator.state.text or "unexplained" in job.coordinator.state.text


@pytest.mark.parametrize("pipeline", [None, make_pipeline("1f1b", 2, 6)])
def test_the_next_start_of_a_job_begins_from_what_was_learned_before(pipeline: Any) -> None:
    before = Ranks(range(6), pipeline=pipeline)
    before.run(60)
    job = Ranks(range(6), pipeline=pipeline, seed=2, learned=before.coordinator.state.learned)
    assert min(job.run()) < TOP_MHZ
    assert job.steps_with_lower_clocks(12) > 8
    assert job.late < 1e-3


def test_what_was_learned_before_and_is_not_true_now_is_dropped_after_one_step() -> None:
    before = Ranks(range(6))
    before.run(60)
    learned = before.coordinator.state.learned
    job = Ranks(range(6), seed=2, learned={**learned, "_mean_s": [2 * learned["_mean_s"][0]]})
    assert min(job.run()) < TOP_MHZ
    job.run()  # the end of a step is known when the next one has begun
    assert not job.steps_with_lower_clocks(6)
    assert "learning" in job.coordinator.state.text
    job.run(4)
    assert job.steps_with_lower_clocks(10) > 4


def test_what_a_job_of_other_ranks_clocks_or_features_has_learned_is_not_used() -> None:
    before = Ranks(range(6))
    before.run(60)
    learned = before.coordinator.state.learned
    others = [({**learned, "clocks_mhz": [1980.0, 1000.0]}, 6), (learned, 4), ({**learned, "_scale": [1.0]}, 6)]
    others += [({**learned, "pace": [0.0] * 6}, 6), ({**learned, "explained": [7.0]}, 6), ({"pace": []}, 6), ({}, 6)]
    for odd, ranks in others:
        assert not Ranks(range(ranks), learned=odd).steps_with_lower_clocks(9)


def test_ranks_at_different_steps_are_an_error() -> None:
    rows = [step_rows.make_row(step, (1.0, 1.0, 1.0), step_rows.Reading(step), []) for step in (3, 4)]
    with pytest.raises(ValueError, match="step 4"):
        LoadCoordinator([(0, 0), (1, 0)], CLOCKS, 0.0, 5e-4).receive(rows)


def test_an_end_that_got_lost_does_not_stop_what_is_learned() -> None:
    job = Ranks(range(4))
    job.run(40)
    job.ended[2].pop()  # that rank's last end never arrives
    before = job.coordinator.state.steps
    job.run(10)
    assert job.coordinator.state.steps >= before + 8


def test_all_ranks_of_a_pipeline_get_one_clock_from_loads_that_one_of_them_knows() -> None:
    job = Ranks(range(6), pipeline=make_pipeline("1f1b", 2, 6))
    for _ in range(120):
        mhz = job.run()
        assert mhz[:6] == mhz[6:]
    state = job.coordinator.state
    assert job.saved > 0.08
    assert job.late < 1e-3
    assert abs(state.saved - job.saved) < max(0.01, 3 * (state.saved_error or 0))
    known = list(job.loads(job.step))
    assert min(job.run(loads=[known[0], None, *known[2:]])) == TOP_MHZ, "the loads of one pipeline are not known"
    assert min(job.run()) < TOP_MHZ


class Unreadable:
    def tolist(self) -> list[float]:
        raise RuntimeError("a nested tensor has no list")


@pytest.mark.parametrize(
    "load", [10**400, 1e200, -1e200, float("inf"), float("-inf"), float("nan"), "x", [], None, Unreadable(), [1.0] * 9]
)
@pytest.mark.parametrize("others", [[], [1.0]])
def test_a_number_or_an_object_that_cannot_be_a_load_is_a_step_without_one(load: Any, others: list[float]) -> None:
    assert step_rows.load_of_step([load, *others]) == ()
    assert step_rows.load_of_step([1.7e308, 1.7e308]) == ()
