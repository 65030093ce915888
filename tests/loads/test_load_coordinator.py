"""Rank 0's decisions: rows of all ranks in, a clock for each rank out."""

from functools import cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_ranks import CLOCKS, TOP_MHZ, WAIT_W, Ranks

from pfo_fs.loads import step_rows
from pfo_fs.loads.choice import LOST_TIME
from pfo_fs.loads.coordinator import SHOWN_LANES, LoadCoordinator, last_step
from pfo_fs.loads.turns import ControlSteps
from pfo_fs.planner import make_pipeline


@pytest.mark.parametrize("ahead", [0, 3])
def test_ranks_with_less_work_run_slower_no_step_is_longer_and_the_saving_is_told_with_its_error(ahead: int) -> None:
    job = Ranks(range(8), ahead)
    job.run(120)
    assert job.saved > 0.08
    assert job.late < 1e-3
    assert abs(job.state.saved - job.saved) < max(0.01, 3 * (job.state.saved_error or 0))
    assert job.state.explained > 0.95
    assert f"saves {100 * job.state.saved:.1f} ± " in job.state.text
    assert abs(job.state.late - job.late) < 3 * job.state.late_error < 0.01
    assert f"against {job.state.controls} control steps" in job.state.text
    assert "Batches of equal work" in job.state.text


def test_the_last_step_is_told_as_it_ran_and_as_it_would_have_at_the_highest_clocks() -> None:
    job = Ranks(range(4), noise=0.0)
    mhz = job.run(40)
    while min(mhz) == TOP_MHZ or job.step < 40:
        mhz = job.run()
    number = job.step - 1
    job.tell(job.step)
    last = job.state.last
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
    turns = ControlSteps()
    at_top = [turns.take([900, 1410], 1410, 0.05)[0] == [1410, 1410] for _ in range(40_000)]
    blocks = [len(list(block)) for is_control, block in groupby(at_top) if is_control]
    assert blocks[0] == 1
    assert min(blocks[-5:]) * 0.05 >= 5.0
    assert sum(at_top[20_000:]) < 0.04 * 20_000


@pytest.mark.parametrize("before", [0, 64])
@pytest.mark.parametrize("every", [2, 8])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_wait_rarely_are_soon_at_default_clocks_and_told_why(before: int, every: int, ranks: int) -> None:
    job = Ranks(range(ranks))
    job.run(before)
    job.every = every
    assert before or not job.steps_with_lower_clocks(20)
    job.run(20)
    assert not job.steps_with_lower_clocks(40)
    assert "do not wait for each other in each step" in job.state.problem
    assert job.state.problem in job.state.text
    job.every = 1
    assert not before or job.steps_with_lower_clocks(60), "all wait again"


def test_a_rank_that_begins_late_keeps_the_default_clock_since_the_others_wait_for_it() -> None:
    job = Ranks(range(4), noise=0.0)
    checkpoint_s = np.array([30.0, 0.0, 0.0, 0.0])
    job.beside = lambda step, mhz: (0.2 + (step % 5 == 4) * checkpoint_s, WAIT_W)
    mhz_of_rank_0 = [job.run()[0] for _ in range(100)]
    assert {*mhz_of_rank_0[::5]} == {TOP_MHZ}
    assert job.late < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_rare_work_that_is_in_no_control_step_makes_no_exact_figure_wrong(seed: int) -> None:
    job, drawn = Ranks(range(8), seed=seed), np.random.default_rng(seed)
    for _ in range(300):
        job.heavy = 4.0 if drawn.random() < 0.01 else 1.0
        job.run()
    assert job.state.late is None or abs(job.state.late - job.late) < 3 * (job.state.late_error or 0)


def test_time_that_lower_clocks_cost_beside_the_work_is_told_though_no_model_knows_it() -> None:
    job = Ranks(range(8))
    job.beside = lambda step, mhz: (0.2 if mhz == TOP_MHZ else 0.22, WAIT_W)  # such as collectives at a low clock
    job.run(400)
    assert job.state.late > 3 * job.state.late_error
    assert abs(job.state.late - job.late) < 2 * job.state.late_error


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
    assert lowered or "slower" in job.state.text or "cost" in job.state.text


@pytest.mark.parametrize("every", [0, 5])
def test_the_saving_that_is_told_is_the_true_one_also_beside_evaluations(every: int) -> None:
    job = Ranks(range(8))
    if every:
        job.beside = lambda step, mhz: (2.0, 300.0) if step % every == 0 else (0.2, WAIT_W)
    job.run(250)
    assert abs(job.state.saved - job.saved) < 3 * job.state.saved_error


def test_no_clock_is_lower_than_that_of_least_energy_nor_than_three_fifths() -> None:
    job = Ranks(range(8), noise=0.0)
    least = min(min(job.run()) for _ in range(100))
    assert least >= 0.6 * TOP_MHZ


def test_a_step_whose_loads_cannot_be_used_has_the_highest_clocks_and_a_rank_without_any_is_named() -> None:
    job = Ranks(range(4))
    job.run(40)
    unusable: list[list[Any]] = [[load] * 4 for load in (None, [float("nan")], ["x"], [(1.0,) * 9])]
    unusable += [[[1.0]] * 3 + [last] for last in ([(1.0, 2.0)], None)]
    for loads in unusable:
        assert job.run(loads=loads) == [TOP_MHZ] * 4
        assert min(min(job.run()) for _ in range(5)) < TOP_MHZ
    assert "data-parallel rank 3 gives no loads in some steps" in job.state.problem


def test_loads_of_another_form_are_learned_anew() -> None:
    job = Ranks(range(4))
    job.run(40)
    for _ in range(10):
        assert job.run(loads=[[(1.0, 2.0, float(rank), job.step)] for rank in range(4)]) == [TOP_MHZ] * 4
    assert "explain" not in job.state.text or "unexplained" in job.state.text


@cache
def learned_before(pipeline: Any = None) -> dict[str, Any]:
    """What an earlier start of a job of six ranks or pipelines has learned."""
    before = Ranks(range(6), pipeline=pipeline)
    before.run(60)
    return before.coordinator.state.learned


@pytest.mark.parametrize("pipeline", [None, make_pipeline("1f1b", 2, 6)])
def test_the_next_start_of_a_job_begins_from_what_was_learned_before(pipeline: Any) -> None:
    job = Ranks(range(6), pipeline=pipeline, seed=2, learned=learned_before(pipeline))
    assert min(job.run()) < TOP_MHZ
    assert job.steps_with_lower_clocks(12) > 8
    assert job.late < 1e-3


def test_what_was_learned_before_and_is_not_true_now_is_dropped_after_one_step() -> None:
    learned = learned_before()
    job = Ranks(range(6), seed=2, learned={**learned, "_mean_s": [2 * learned["_mean_s"][0]]})
    assert min(job.run()) < TOP_MHZ
    job.run()  # the end of a step is known when the next one has begun
    assert not job.steps_with_lower_clocks(6)
    assert "learning" in job.state.text
    job.run(4)
    assert job.steps_with_lower_clocks(10) > 4


def test_what_a_job_of_other_ranks_clocks_or_features_has_learned_is_not_used() -> None:
    learned = learned_before()
    assert not Ranks(range(4), learned=learned).steps_with_lower_clocks(9)
    wrong = {"clocks_mhz": [1980.0, 1000.0], "_scale": [1.0], "pace": [0.0] * 6, "explained": [7.0]}
    for odd in (*({**learned, key: value} for key, value in wrong.items()), {"pace": []}, {}):
        assert not Ranks(range(6), learned=odd).steps_with_lower_clocks(9)


def test_ranks_at_different_steps_are_an_error() -> None:
    rows = [step_rows.make_row(step, (1.0, 1.0, 1.0), step_rows.Reading(step), []) for step in (3, 4)]
    with pytest.raises(ValueError, match="step 4"):
        LoadCoordinator([(0, 0), (1, 0)], CLOCKS, 0.0, 5e-4).receive(rows)


def test_an_end_that_got_lost_does_not_stop_what_is_learned() -> None:
    job = Ranks(range(4))
    job.run(40)
    job.ended[2].pop()  # that rank's last end never arrives
    before = job.state.steps
    job.run(10)
    assert job.state.steps >= before + 8


def test_all_ranks_of_a_pipeline_get_one_clock_from_loads_that_one_of_them_knows() -> None:
    job = Ranks(range(6), pipeline=make_pipeline("1f1b", 2, 6))
    for _ in range(120):
        mhz = job.run()
        assert mhz[:6] == mhz[6:]
    assert job.saved > 0.08
    assert job.late < 1e-3
    assert abs(job.state.saved - job.saved) < max(0.01, 3 * (job.state.saved_error or 0))
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


@pytest.mark.parametrize(("heavy", "spread", "saves"), [(1.3, 0.05, 0.04), (1.0, 0.5, 0.0)])
def test_power_limits_are_held_and_save_where_one_rank_is_last(heavy: float, spread: float, saves: float) -> None:
    """A limit acts late, so a rank keeps its own for many steps: where each step has another last rank, none is low."""
    ranks = Ranks(range(8), holds=True, spread=spread)
    ranks.heavy = heavy
    clocks = [tuple(ranks.run()) for _ in range(400)]
    changes = sum(before != after for before, after in pairwise(clocks))
    assert changes < 60
    assert ranks.saved >= saves
    assert ranks.late < 1e-3


# ---- clocks of one step from the loads of all pipelines, and the time that they may lose


TWO_STAGES, FOUR_STAGES = (make_pipeline("1f1b", stages, 4) for stages in (2, 4))
OTHERS = [make_pipeline("zb-h1", 2, 4), make_pipeline("interleaved", 4, 4, num_ranks=2)]


def of_step(job: Ranks, loads: Any) -> Any:
    """Loads of pipelines as the model takes them, (micro-batches, pipelines, features)."""
    return np.array(loads, float).T[:, :, None] if job.shape.micro_batches > 1 else np.array([loads], float)


@pytest.mark.parametrize("pipeline", [None, TWO_STAGES, FOUR_STAGES, *OTHERS])
def test_pipelines_with_less_work_run_slower_and_what_their_ends_tell_is_learned(pipeline: Any) -> None:
    job = Ranks(range(6), pipeline=pipeline)
    assert job.steps_with_lower_clocks(100) > 60
    assert job.late < LOST_TIME
    assert job.choice.durations.slope == pytest.approx(0.9, abs=0.05)
    if pipeline is not None:
        ends_s = job.choice.durations.ends_s(of_step(job, job.loads(job.step)))
        assert ends_s == pytest.approx(job.shape.ends_s(job.times_s()), rel=0.02)


def test_pipelines_that_wait_for_a_slow_worker_run_slower_whatever_their_loads_say() -> None:
    job = Ranks(range(6), pipeline=TWO_STAGES)
    job.heavy = 1.5  # pipeline 0 has a slow GPU: no load tells that
    job.run(60)
    mhz = job.choice.choose(of_step(job, np.ones((6, 4))))
    assert mhz[0] == TOP_MHZ > mhz[1]
    assert len({*mhz[1:]}) == 1
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


@settings(max_examples=8)
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
