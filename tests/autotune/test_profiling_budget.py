"""How much time profiling may take from training."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.autotune.profiling_budget import ProfilingBudget
from pfo_fs.errors import PlanError
from pfo_fs.models import ProfilingResult


def window(iter_s: Sequence[float]) -> list[ProfilingResult]:
    return [ProfilingResult(rank=rank, iter_time=list(iter_s), iter_energy=[1.0] * len(iter_s)) for rank in (0, 1)]


def test_time_beyond_the_highest_clocks_counts_for_the_iterations_of_a_window_and_those_until_its_results() -> None:
    budget = ProfilingBudget(0.01)
    budget.add_window(window([12.0] * 5), 10.0)
    assert budget.lost_s == pytest.approx(14.0)
    assert budget.text() == "profiling took 14 s longer than the highest clocks"


def test_windows_that_are_as_fast_as_the_highest_clocks_cost_nothing() -> None:
    budget = ProfilingBudget(0.01)
    for iter_s, highest_s in (([9.9] * 5, 10.0), ([10.0] * 5, 0.0), ([], 10.0)):
        budget.add_window(window(iter_s), highest_s)
    assert budget.lost_s == 0.0
    assert budget.text() == ""


def test_more_profiling_has_to_wait_until_all_so_far_is_within_its_share_of_the_time() -> None:
    budget = ProfilingBudget(0.01)
    budget.add_window(window([12.0] * 5), 10.0)
    assert not budget.allows(1399.0)
    assert budget.allows(1401.0)


@pytest.mark.parametrize("share", [-0.1, 1.5, "much"])
def test_a_share_that_cannot_be_is_refused(share: object) -> None:
    with pytest.raises(PlanError, match="max_profiling_share"):
        ParetoScheduler.check_args(max_profiling_share=share)
