"""How much time profiling may take from training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.autotune.profiling_budget import ProfilingBudget
from pfo_fs.errors import PlanError
from pfo_fs.models import ProfilingResult


def window(*iter_s: Sequence[float]) -> list[ProfilingResult]:
    """The results of ranks whose iterations took so long."""
    return [
        ProfilingResult(rank=rank, iter_time=list(of_rank), iter_energy=[1.0] * len(of_rank))
        for rank, of_rank in enumerate(iter_s)
    ]


def budget_after(reference: list[ProfilingResult], *windows: list[ProfilingResult]) -> ProfilingBudget:
    budget = ProfilingBudget(0.01)
    budget.use_reference(reference)
    for each in windows:
        budget.add_window(each)
    return budget


def test_time_beyond_the_highest_clocks_counts_for_the_iterations_of_a_window_and_those_until_its_results() -> None:
    budget = budget_after(window([10.0] * 5, [10.0] * 5), window([12.0] * 5, [12.0] * 5))
    assert budget.lost_s == pytest.approx(14.0)
    assert budget.text() == "profiling took 14 s longer than the highest clocks"


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 9)), min_size=1, max_size=6),
    st.floats(1.0, 3.0),
    st.randoms(use_true_random=False),
)
def test_each_rank_is_compared_with_itself_however_different_ranks_are(
    ranks: list[tuple[float, int]], slower: float, chance: random.Random
) -> None:
    reference = window(*([iter_s] * count for iter_s, count in ranks))
    measured = window(*([slower * iter_s] * 7 for iter_s, _ in ranks))
    chance.shuffle(measured)
    longer_s = (slower - 1) * median(iter_s for iter_s, _ in ranks)
    assert budget_after(reference, measured).lost_s == pytest.approx(9 * longer_s, abs=1e-9)


def test_an_iteration_in_which_a_process_was_stopped_is_no_part_of_what_profiling_takes() -> None:
    stopped = [10.0, 10.0, 35.0, 10.0, 10.0]
    assert budget_after(window([10.0] * 5, [10.0] * 5), window(stopped, stopped)).lost_s == 0.0
    assert budget_after(window(stopped, stopped), window([12.0] * 5, [12.0] * 5)).lost_s == pytest.approx(14.0)


@pytest.mark.parametrize(
    ("reference", "measured"),
    [([10.0] * 5, [9.9] * 5), ([], [10.0] * 5), ([10.0] * 5, [])],
    ids=["as fast", "the highest clocks are not known", "nothing measured"],
)
def test_windows_that_are_as_fast_as_the_highest_clocks_cost_nothing(
    reference: list[float], measured: list[float]
) -> None:
    budget = budget_after(window(reference), window(measured))
    assert budget.lost_s == 0.0
    assert budget.text() == ""


def test_more_profiling_has_to_wait_until_all_so_far_is_within_its_share_of_the_time() -> None:
    budget = budget_after(window([10.0] * 5), window([12.0] * 5))
    assert not budget.allows(1399.0)
    assert budget.allows(1401.0)


@pytest.mark.parametrize("share", [-0.1, 1.5, "much"])
def test_a_share_that_cannot_be_is_refused(share: object) -> None:
    with pytest.raises(PlanError, match="max_profiling_share"):
        ParetoScheduler.check_args(max_profiling_share=share)
