"""The model of a job: its DAG, from the order of instructions that its ranks report, and its plans."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from planner_problems import random_profile

from pfo_fs.autotune.job_model import JobModel, pipeline_of
from pfo_fs.autotune.measured_switching import ClockOffer
from pfo_fs.planner import Measurement, Plan, Profile, SwitchCosts, make_pipeline


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "early-recomputation"])
def test_the_dag_of_a_known_schedule_follows_from_the_orders_of_its_ranks(schedule: str) -> None:
    pipeline = make_pipeline(schedule, 8, 12, num_ranks=4 if schedule in ("interleaved", "zb-v") else None)
    found = pipeline_of([[(i.name, i.stage) for i in order] for order in pipeline.orders])
    assert found.orders == pipeline.orders
    assert set(found.dependencies) == set(pipeline.dependencies)


def test_weight_gradients_belong_to_the_backwards_that_were_split() -> None:
    names = ["forward", "forward", "backward", "backward_input", "backward_weight"]
    (order,) = pipeline_of([[(name, 0) for name in names]]).orders
    assert order[-1].microbatch == 1


# ---- plans


def rows(clocks: dict[int, tuple[float, float]], error_s: float = 0.0) -> list[Measurement]:
    return [Measurement(mhz, time_s, energy_j, error_s) for mhz, (time_s, energy_j) in clocks.items()]


TOP = {1410: (0.10, 40.0), 1200: (0.11, 33.0), 1005: (0.125, 30.0)}


def model_of(
    stage_0: dict[int, tuple[float, float]],
    offers: Sequence[ClockOffer] = (ClockOffer(),),
    error_s: float = 0.0,
    costs: SwitchCosts | None = None,
    changes_act_late: bool = False,
) -> JobModel:
    """Two stages; the second one takes twice as long, so the first has time to spare."""
    long = {mhz: (2 * time_s, 2 * energy_j) for mhz, (time_s, energy_j) in TOP.items()}
    names = ("forward", "backward")
    table = {(stage, name): rows((stage_0, long)[stage], error_s) for stage in (0, 1) for name in names}
    return JobModel(
        make_pipeline("1f1b", 2, 6),
        Profile(table),
        20.0,
        1,
        [],
        costs or SwitchCosts(),
        offers,
        scatter=0.005,
        changes_act_late=changes_act_late,
    )


def clocks_of(plan: Plan, stage: int) -> set[int]:
    nodes = zip(plan.problem.pipeline.instructions, plan.frequencies_mhz, strict=True)
    return {mhz for instruction, mhz in nodes if instruction.stage == stage}


def test_a_plan_is_not_longer_than_all_at_the_highest_clocks() -> None:
    model = model_of(TOP)
    plan = model.within(model.full_speed.iteration_time_s)
    assert plan.iteration_time_s <= model.full_speed.iteration_time_s * (1 + 1e-9)
    assert plan.energy_j < model.full_speed.energy_j


def test_a_rank_may_change_its_clock_again_before_the_driver_would_have_made_its_last_change() -> None:
    free = model_of(TOP)
    slow = model_of(TOP, costs=SwitchCosts(driver_time_s=0.15))
    plans = [model.within(model.full_speed.iteration_time_s) for model in (free, slow)]
    clocks = plans[0].frequencies_mhz
    assert slow.problem.switch_load_of(clocks, slow.problem.times_at(clocks)).too_short
    assert plans[1].frequencies_mhz == clocks


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 2])
def test_a_plan_has_no_more_changes_than_the_driver_of_a_host_can_make(seed: int, share: float) -> None:
    pipeline = make_pipeline("1f1b", 4, 8)
    profile = random_profile(random.Random(seed), pipeline, 8)
    longest_s = max(row.time_s for rows in profile.measurements.values() for row in rows)
    costs = SwitchCosts(driver_time_s=share * longest_s, hosts=((0, 1, 2, 3),))
    model = JobModel(pipeline, profile, 20.0, 1, [], costs)
    plan = model.within(1.02 * model.full_speed.iteration_time_s)
    load = model.problem.switch_load_of(plan.frequencies_mhz, model.problem.times_at(plan.frequencies_mhz))
    assert load.changes
    assert not load.overloaded


def test_a_time_of_changes_that_was_found_from_late_plans_makes_instructions_longer_and_no_gpu_stand_still() -> None:
    said, found = (model_of(TOP, costs=SwitchCosts(0.002), changes_act_late=each) for each in (False, True))
    assert (said.stands_still, found.stands_still) == (True, False)
    plan = model_of(TOP).within(said.full_speed.iteration_time_s)
    plan = plan.replace(problem=said.problem)
    assert plan.changes
    assert found.expected_s(plan) > said.expected_s(plan)


def test_clocks_that_are_as_fast_as_the_highest_one_stay_on_offer() -> None:
    """Above its board's power limit a GPU runs no faster; the clock just below the limit takes less energy."""
    flat = {1410: (0.2, 80.0), 1200: (0.2, 60.0), 1005: (0.25, 55.0)}
    model = model_of(flat)
    assert 1410 not in clocks_of(model.within(model.full_speed.iteration_time_s), 0)


def test_a_time_margin_makes_plans_shorter_and_leaves_clocks_without_a_slowdown_alone() -> None:
    flat = {1410: (0.2, 80.0), 1200: (0.2, 60.0), 1005: (0.25, 55.0)}
    model = model_of(flat)
    deadline_s = 1.05 * model.full_speed.iteration_time_s
    usual, with_margin = model.within(deadline_s), model.within(deadline_s, 0.03)
    assert with_margin.iteration_time_s < usual.iteration_time_s
    assert 1410 not in clocks_of(with_margin, 0)
    assert model.within(deadline_s, -0.03).energy_j < usual.energy_j


def test_times_that_are_not_known_well_are_counted_as_longer_and_the_plan_is_evaluated_as_measured() -> None:
    sure, unsure = model_of(TOP), model_of(TOP, error_s=0.01)
    deadline_s = 1.1 * sure.full_speed.iteration_time_s
    assert unsure.within(deadline_s).iteration_time_s < sure.within(deadline_s).iteration_time_s
    plan = unsure.within(deadline_s)
    assert plan.times_s == unsure.problem.times_at(plan.frequencies_mhz)


def test_a_clock_that_acts_late_is_used_where_a_stage_keeps_it_throughout() -> None:
    only_slow = {1410: (0.10, 40.0), 1005: (0.125, 20.0)}
    model = model_of(only_slow, (ClockOffer(frozenset({1005})), ClockOffer(latency_s=0.05)))
    plan = model.within(1.1 * model.full_speed.iteration_time_s)
    assert clocks_of(plan, 0) == {1005}


def test_clocks_that_act_late_are_changed_to_where_quick_ones_save_less() -> None:
    quick = ClockOffer(frozenset({1005}))
    plans = {
        latency_s: (model := model_of(TOP, (quick, ClockOffer(latency_s=latency_s)))).within(
            1.02 * model.full_speed.iteration_time_s
        )
        for latency_s in (0.05, 10.0)
    }
    assert 1005 in clocks_of(plans[0.05], 0) | clocks_of(plans[0.05], 1)
    assert plans[0.05].energy_j <= model_of(TOP, (quick,)).within(plans[0.05].deadline_s).energy_j
    assert not plans[10.0].changes or 1005 not in clocks_of(plans[10.0], 0) | clocks_of(plans[10.0], 1)


def test_plans_that_try_clocks_use_the_offer_that_is_best_for_the_plan() -> None:
    model = model_of(TOP, (ClockOffer(frozenset({1200, 1005})), ClockOffer(latency_s=0.01)), error_s=0.0005)
    plan, hoped_j = model.to_try(1.02 * model.full_speed.iteration_time_s, 0.0)
    assert clocks_of(plan, 0) & {1200, 1005}
    assert hoped_j < model.full_speed.energy_j


def test_a_plan_whose_clocks_are_not_known_any_more_cannot_be_evaluated() -> None:
    model = model_of(TOP)
    plan = model.within(1.1 * model.full_speed.iteration_time_s)
    assert model.as_it_is(plan) is not None
    assert model_of({1410: (0.10, 40.0)}).as_it_is(plan) is None
