"""Plans as schedules: stretches that share a clock, and how often clocks change."""

from __future__ import annotations

import pytest

from pfo_fs.autotune.job_layout import ClockPlan, stretches_of


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
