"""From the results of ranks to the arrays of a window; from plans to stretches of a clock, and how often it changes."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_jobs import make_job, one_f_one_b, order_of, schedule_of

from pfo_fs.autotune.job_layout import ClockPlan, JobLayout, pipeline_of, stretches_of
from pfo_fs.autotune.windows import Window, window_of
from pfo_fs.models import FrequencySchedule, ProfilingResult, Switching

STAGES, MICROBATCHES, TOP_MHZ = 2, 3, 1410


def layout(dp: int = 1, tp: int = 1) -> JobLayout:
    job, infos = make_job(STAGES, dp, tp)
    orders = {info.rank: order_of(one_f_one_b(info.pp_rank, STAGES, MICROBATCHES)) for info in infos}
    return JobLayout(job, infos, lambda: orders)


def result(
    rank: int,
    steps: Sequence[int],
    instruction_s: float = 0.1,
    span_s: float = 1.5,
    clocks: Sequence[int] | None = None,
    switching: Switching | None = None,
) -> ProfilingResult:
    """Each instruction of step n takes n times `instruction_s`; `clocks`: those of forwards, then of backwards."""
    rows = [[step * instruction_s] * MICROBATCHES for step in steps]
    mean_mhz = {}
    if clocks is not None:
        parts = {"forward": list(clocks[:MICROBATCHES]), "backward": list(clocks[MICROBATCHES:])}
        mean_mhz = {name: [part] * len(steps) for name, part in parts.items()}
    return ProfilingResult(
        rank=rank,
        iter_step=list(steps),
        iter_time=[span_s + 0.5] * len(steps),
        iter_energy=[100.0] * len(steps),
        iter_span=[span_s] * len(steps),
        time_breakdown={"forward": rows, "backward": rows},
        clock_breakdown=mean_mhz,
        switching=switching,
    )


def window(
    job: JobLayout, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule] = ()
) -> Window | None:
    pipeline = pipeline_of([job.order(rank) for rank in job.one_pipeline()])
    return window_of(job, pipeline, results, schedules)


def at_one_clock(job: JobLayout, mhz: int, last_mhz: int = 0) -> list[FrequencySchedule]:
    """All instructions at one clock, but for the last one if that has another."""
    ranks = [info.rank for info in job.rank_infos]
    schedules = [schedule_of(rank, [name for name, _ in job.order(rank)], lambda _: mhz) for rank in ranks]
    for schedule in schedules:
        schedule.frequencies[-1] = (schedule.frequencies[-1][0], last_mhz or mhz)
    return schedules


def followed(
    schedules: Sequence[FrequencySchedule],
    clocks: Sequence[int],
    instruction_s: float = 0.04,
    steps: Sequence[int] = (1,),
    mode: str = "device",
    **latencies_s: float,
) -> Window:
    """What ranks measure whose clock processes know of some clocks, such as `at900`, when they act."""
    known = {int(name.removeprefix("at")): seconds for name, seconds in latencies_s.items()}
    switching = Switching.model_validate({"mode": mode, "call_s": 0.005, "gpus": 1, "latencies_s": known})
    results = [result(rank, steps, instruction_s, clocks=clocks, switching=switching) for rank in (0, 1)]
    return window(layout(), results, schedules)


STEPS = st.lists(st.integers(1, 12), min_size=1, max_size=10, unique=True).map(sorted)


@settings(max_examples=50)
@given(st.lists(STEPS, min_size=4, max_size=4))
def test_ranks_are_paired_by_step_and_only_steps_that_all_of_a_pipeline_measured_count(steps: list[list[int]]) -> None:
    job = layout(dp=2)
    one = window(job, [result(rank, each) for rank, each in enumerate(steps)])
    of_pipeline = [set(steps[0]) & set(steps[2]), set(steps[1]) & set(steps[3])]  # ranks are numbered stage by stage
    if not any(of_pipeline):
        assert one is None
        return
    both = set.intersection(*(each for each in of_pipeline if each))
    expected = both or max(of_pipeline, key=len)
    assert set(one.steps) == expected
    for row, step in enumerate(one.steps):
        assert one.times_s[row] == pytest.approx(0.1 * step)


def test_a_pipeline_of_which_a_stage_was_not_measured_is_left_out() -> None:
    job = layout(dp=2)
    one = window(job, [result(rank, [1, 2]) for rank in (0, 1, 3)])
    assert one.pipelines == (1,)
    assert window(job, [result(0, [1, 2])]) is None


def test_iterations_that_ran_something_else_than_the_schedule_are_left_out() -> None:
    job = layout()
    other = result(1, [1, 2, 3])
    rows = [[0.1] * 3, [0.1] * 2, [0.1] * 3]
    other = other.model_copy(update={"time_breakdown": {**other.time_breakdown, "forward": rows}})
    assert window(job, [result(0, [1, 2, 3]), other]).steps == (1, 3)


def test_the_rank_that_ends_last_ends_the_iteration_of_its_pipeline() -> None:
    one = window(layout(), [result(0, [1, 2], span_s=1.5), result(1, [1, 2], span_s=1.8)])
    assert one.spans_s[:, 0] == pytest.approx([1.8, 1.8])
    assert one.first_rank_s == pytest.approx([1.5])
    assert one.tail_s == pytest.approx(0.5)


def test_ranks_that_compute_together_are_one_with_their_mean_time_and_all_of_their_energy() -> None:
    job = layout(tp=2)
    one = window(job, [result(rank, [1, 2], instruction_s=0.1 + 0.02 * (rank % 2)) for rank in range(4)])
    assert one.pipelines == (0,)
    assert one.times_s[0] == pytest.approx(0.11)
    assert one.energies_j.sum(axis=(1, 2)) == pytest.approx([400.0, 400.0])


def test_an_energy_that_a_rank_does_not_know_stays_unknown_beside_those_of_others() -> None:
    results = [result(0, [1, 2]), result(1, [1, 2]).model_copy(update={"iter_energy": [0.0, 0.0]})]
    assert window(layout(), results).energies_j[:, :, 0].tolist() == [[100.0, 0.0]] * 2


def test_without_a_schedule_the_default_clock_counts_as_the_highest_one() -> None:
    one = window(layout(), [result(rank, [1]) for rank in (0, 1)])
    assert (one.clocks_mhz == TOP_MHZ).all()
    assert (one.ran_mhz == TOP_MHZ).all()
    assert one.at_clock.all()


def test_where_no_clock_process_knows_when_clocks_act_the_first_instructions_after_a_change_have_not_settled() -> None:
    job = layout()
    schedules = at_one_clock(job, 900)
    one = window(job, [result(rank, [1], instruction_s=0.02) for rank in (0, 1)], schedules)
    per_rank = 2 * MICROBATCHES
    assert one.at_clock[0, :per_rank, 0].tolist() == [False] * 2 + [True] * (per_rank - 2)
    assert set(one.or_mhz.ravel().tolist()) == {0.0, TOP_MHZ}, "an iteration begins at the highest clock"
    assert (one.clocks_mhz == 900).all()


@pytest.mark.parametrize(("mode", "knows"), [("launch", False), ("device", True)])
def test_mean_clocks_tell_the_clock_of_a_run_only_where_clocks_follow_the_device(mode: str, knows: bool) -> None:
    clocks = [1400, 905, 900, 900, 900, 900]
    one = followed(at_one_clock(layout(), 900), clocks, 0.1, mode=mode, at900=0.004)
    assert sorted(one.ran_mhz[0, :, 0].tolist())[-2:] == ([1400, 1400] if knows else [900, 900])
    assert not one.at_clock.all()
    if knows:
        assert ((one.ran_mhz > 1000) == ~one.at_clock).all(), "a run most of which was at another clock"


def test_a_run_soon_after_a_change_to_a_clock_whose_latency_is_unknown_tells_nothing_of_it() -> None:
    one = followed(at_one_clock(layout(), 900), [900] * 6)
    assert one.at_clock[0, :6, 0].tolist() == [False] * 3 + [True] * 3, "each takes 0.04 s"
    assert one.or_mhz[0, :6, 0].tolist() == [TOP_MHZ] * 3 + [0.0] * 3


def test_a_clock_that_stays_between_iterations_needs_no_time_to_act_in_the_next_one() -> None:
    one = followed(at_one_clock(layout(), 900), [900] * 6, 0.01, (1, 2))
    assert not one.at_clock[0].any()
    assert one.at_clock[1].all()


def test_an_iteration_after_one_that_ends_at_another_clock_may_begin_at_that_clock() -> None:
    """The highest clock is requested as soon as an iteration ends; nobody knows yet when it acts."""
    one = followed(at_one_clock(layout(), TOP_MHZ, last_mhz=900), [TOP_MHZ] * 6, at900=0.004)
    assert one.at_clock[0, :4, 0].tolist() == [False] * 3 + [True], "each takes 0.04 s"
    assert one.or_mhz[0, :4, 0].tolist() == [900] * 3 + [0]


@pytest.mark.parametrize(("mean_mhz", "tells"), [(900, True), (940, False)])
def test_a_run_in_which_the_next_clock_may_have_acted_too_early_tells_nothing(mean_mhz: int, tells: bool) -> None:
    """The next clock is requested early, so that it acts in time; the mean clock of the run before is a guess."""
    one = followed(at_one_clock(layout(), 900, last_mhz=1200), [900] * 4 + [mean_mhz, 1200], at900=0.004)
    last = 2 * MICROBATCHES - 1
    assert one.at_clock[0, last - 1, 0] == tells
    assert one.or_mhz[0, last - 1, 0] == (0 if tells else 1200)


def test_results_without_steps_are_paired_by_their_place() -> None:
    results = [result(rank, [1, 2, 3]).model_copy(update={"iter_step": []}) for rank in (0, 1)]
    assert window(layout(), results).steps == (0, 1, 2)


@pytest.mark.parametrize("clock_unknown_s", [0.0, 0.03, 0.25])
def test_the_last_instruction_of_a_stretch_begins_when_its_clock_is_known_to_act(clock_unknown_s: float) -> None:
    times_s = [0.1] * 12
    numbers = stretches_of([0, 12], times_s, 0.05, clock_unknown_s)
    for number in set(numbers):
        own = [seconds for each, seconds in zip(numbers, times_s, strict=True) if each == number]
        assert sum(own[:-1]) >= clock_unknown_s
        assert sum(own) >= 0.05
    assert len(set(numbers)) > 2, "as few instructions share a clock as it takes"


def test_changes_between_ranks_are_none_and_the_pipeline_that_has_most_counts() -> None:
    plan = ClockPlan(((1410, 1200, 1200, 900), (1410, 1200, 900, 1410)), ((1, 1),))
    assert plan.changes([0, 2, 4]) == 2
    assert plan.changes([0, 4]) == 3
