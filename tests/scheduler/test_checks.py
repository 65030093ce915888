"""The check that every schedule passes, whoever made it, and which results of which steps policies get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_jobs import make_job, order_of

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionOrders, ProfilingResult
from pfo_fs.scheduler import check_schedules
from pfo_fs.scheduler.checks import plausible_results

JOB, INFOS = make_job(pp=2, dp=2)


def schedule(rank: int, *steps: tuple[str, int], stages: list[int] | None = None) -> FrequencySchedule:
    return FrequencySchedule(rank=rank, frequencies=list(steps), stages=stages)


@pytest.mark.parametrize(
    ("ranks", "orders"),
    [(range(4), {rank: order_of(["forward", "backward"]) for rank in range(4)}), ([3], None), ([3], {3: None})],
    ids=["all", "some", "an unknown order"],
)
def test_schedules_that_fit_pass(ranks: Sequence[int], orders: InstructionOrders | None) -> None:
    check_schedules([schedule(rank, ("forward", 885), ("backward", 0)) for rank in ranks], JOB, INFOS, orders)


def test_ranks_that_offer_no_clocks_are_not_checked_for_them() -> None:
    job, infos = make_job(pp=1, clocks=[])
    check_schedules([schedule(0, ("forward", 123))], job, infos)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ([schedule(4, ("forward", 885))], "a schedule for rank 4, but the job has ranks 0 to 3"),
        ([schedule(1), schedule(1)], "two schedules for rank 1"),
        (
            [schedule(2, ("forward", 885), ("backward", 886))],
            "position 1 (backward) of the schedule: the GPU of rank 2 does not offer 886 MHz; nearest: 885 and 900",
        ),
        ([schedule(0, ("forward", 5000))], "nearest: 1395 and 1410"),
        ([schedule(0, ("forward", 1))], "nearest: 210 and 225"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_named(schedules: list[FrequencySchedule], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_schedules(schedules, JOB, INFOS)
    assert message in str(caught.value)


def test_stages_are_compared_where_both_sides_give_them() -> None:
    planned = schedule(0, ("forward", 885), ("forward", 885), stages=[0, 2])
    check_schedules([planned], JOB, INFOS, {0: [("forward", 0), ("forward", None)]})
    with pytest.raises(PlanError, match="expected forward@3, got forward@2"):
        check_schedules([planned], JOB, INFOS, {0: [("forward", 0), ("forward", 3)]})


def test_ranks_that_share_one_list_are_still_checked_for_their_own_gpu() -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[1].available_frequencies = [1200]
    first = schedule(0, ("forward", 885))
    with pytest.raises(PlanError, match="rank 1 does not offer 885"):
        check_schedules([first, first.model_copy(update={"rank": 1})], job, infos)


# ---- ranks may begin to measure a step apart, and leave steps out


def result(rank: int, steps: list[int]) -> ProfilingResult:
    """In each of these steps, everything lasts as long as the number of the step says."""
    of_step = [float(step) for step in steps]
    return ProfilingResult(
        rank=rank,
        iter_step=steps,
        iter_time=of_step,
        iter_energy=of_step,
        iter_span=of_step,
        time_breakdown={"forward": [[each, each] for each in of_step]},
        energy_breakdown={"forward": [[each, each] for each in of_step]},
        clock_breakdown={"forward": [[step, step] for step in steps]},
    )


def taken(*results: ProfilingResult) -> list[ProfilingResult]:
    return plausible_results(results, range(len(results)))


@given(
    st.lists(st.integers(100, 103), min_size=1, max_size=5),
    st.lists(st.integers(104, 130), max_size=2),
)
def test_iterations_of_all_ranks_are_of_the_same_steps(firsts: list[int], left_out: list[int]) -> None:
    steps = [list(range(first, first + 20)) for first in firsts]
    steps[0] = [step for step in steps[0] if step not in left_out]
    found = taken(*(result(rank, each) for rank, each in enumerate(steps)))
    common = sorted(set.intersection(*map(set, steps)))
    assert found == [result(rank, common) for rank in range(len(steps))]


@pytest.mark.parametrize(
    "odd",
    [
        {"iter_step": [6, 6, 7]},
        {"iter_step": [8, 7, 6]},
        {"iter_step": [6, 7, 8, 9, 10]},
        {"iter_energy": [1.0]},
        {"iter_span": [1.0]},
        {"time_breakdown": {"forward": [[1.0]]}},
    ],
)
def test_nothing_is_left_out_by_steps_that_cannot_be(odd: dict[str, object]) -> None:
    results = [result(0, [6, 7, 8]).model_copy(update=odd), result(1, [7, 8, 9])]
    assert taken(*results) == results
