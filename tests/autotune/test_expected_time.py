"""The mean time of iterations whose durations scatter."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfo_fs.autotune.expected_time import ExpectedTime
from pfo_fs.planner import Measurement, Plan, Problem, Profile, SwitchCosts, all_maximum, make_pipeline

STAGES, MICROBATCHES = 4, 8


def balanced(overhead_s: float = 0.0) -> tuple[Problem, Plan]:
    """A pipeline of equal stages, in which many paths are equally long, at its only clock."""
    kinds = [(stage, name) for stage in range(STAGES) for name in ("forward", "backward")]
    table = {(stage, name): [Measurement(1000, 0.1 if name == "forward" else 0.2, 30.0)] for stage, name in kinds}
    problem = Problem(make_pipeline("1f1b", STAGES, MICROBATCHES), Profile(table), 80.0, overhead_s=overhead_s)
    return problem, all_maximum(problem)


def test_without_scatter_the_mean_is_the_longest_path() -> None:
    problem, plan = balanced(overhead_s=0.5)
    assert ExpectedTime(problem, 0.0).of(plan) == pytest.approx(plan.iteration_time_s)


def changing(stands_still_s: float, rnd: random.Random) -> Plan:
    """A plan of stages that wait for each other, whose ranks change between two clocks."""
    kinds = [(stage, name) for stage in range(STAGES) for name in ("forward", "backward")]
    table = {
        (stage, name): [Measurement(mhz, (1 + stage) * 100 / mhz, 30.0) for mhz in (900, 1000)] for stage, name in kinds
    }
    pipeline = make_pipeline("1f1b", STAGES, MICROBATCHES)
    costs = SwitchCosts(stands_still_s=stands_still_s)
    full = all_maximum(Problem(pipeline, Profile(table), 20.0, switch_costs=costs))
    return full.replace(frequencies_mhz=tuple(rnd.choice((900, 1000)) for _ in pipeline.instructions))


@settings(max_examples=20)
@given(st.floats(0.0, 0.2), st.randoms(use_true_random=False))
def test_the_time_for_which_a_rank_stands_still_at_a_change_costs_nothing_while_it_waits(
    stands_still_s: float, rnd: random.Random
) -> None:
    plan = changing(stands_still_s, rnd)
    expected = ExpectedTime(plan.problem, 0.0)
    assert expected.of(plan) == pytest.approx(plan.iteration_time_s)
    late_s = expected.of(plan, stands_still_s)
    assert late_s >= expected.of(plan) * (1 - 1e-9)
    assert ExpectedTime(plan.problem, 0.0, changes_act_late=True).of(plan) == pytest.approx(late_s)
    mean_s, shares = expected.critical(plan)
    assert mean_s == pytest.approx(plan.iteration_time_s)
    sources = [node for node, before in enumerate(plan.problem.before) if not before]
    assert max(shares[node] for node in sources) == 1, "the longest path begins at one of them"


@settings(max_examples=20)
@given(st.floats(0.001, 0.05))
def test_the_more_durations_scatter_the_longer_iterations_take_on_average(scatter: float) -> None:
    problem, plan = balanced()
    assert (
        plan.iteration_time_s
        < ExpectedTime(problem, scatter).of(plan)
        < ExpectedTime(problem, 2 * scatter).of(plan)
        < (1 + 10 * scatter) * plan.iteration_time_s
    )


def test_a_pipeline_with_one_long_path_is_late_by_less_than_one_of_equal_stages() -> None:
    problem, plan = balanced()
    table = dict(problem.profile.measurements)
    table[3, "forward"], table[3, "backward"] = [Measurement(1000, 0.15, 30.0)], [Measurement(1000, 0.3, 30.0)]
    unequal = Problem(problem.pipeline, Profile(table), 80.0)
    slow = all_maximum(unequal)
    late = [
        ExpectedTime(each, 0.01).of(its_plan) / its_plan.iteration_time_s - 1
        for each, its_plan in ((unequal, slow), (problem, plan))
    ]
    assert 2 * late[0] < late[1]
