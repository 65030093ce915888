"""Ranks may begin to measure a step apart, and leave steps out; policies get what was measured in the same steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.models import ProfilingResult
from pfo_fs.scheduler.checks import plausible_results


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
