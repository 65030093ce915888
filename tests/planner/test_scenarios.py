"""Plans for scenarios: on time on average, and never worse than simple plans."""

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import measured_mhz, problems, random_profile

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner import Plan, Planner, Problem, Profile, SwitchCosts, all_maximum, make_pipeline
from pfo_fs.planner.rank_runs import cheapest, nodes_needed
from pfo_fs.planner.relaxation import Relaxation
from pfo_fs.planner.scenario_descent import ScenarioDescent
from pfo_fs.planner.scenario_relaxation import ScenarioRelaxation
from pfo_fs.planner.scenarios import ScenarioPlanner, Scenarios

COSTS = [SwitchCosts(), SwitchCosts(driver_time_s=0.004, latency_s=0.01, timing_error_s=0.001, hosts=((0, 1),))]


def nominal_s(problem: Problem) -> Any:
    """Duration of each node at its highest clock, in s."""
    return np.array(all_maximum(problem).times_s)


def scenarios_of(problem: Problem, seed: int, iterations: int, groups: list[int], spread: float = 0.1) -> Scenarios:
    rng = np.random.default_rng(seed)
    varied = np.exp(spread * rng.standard_normal((iterations, len(problem.pipeline.instructions), len(groups))))
    return Scenarios(problem, nominal_s(problem)[None, :, None] * varied, groups)


def random_clocks(problem: Problem, groups: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.choice(row) for row in measured_mhz(problem)] for _ in range(groups)]


def small_problem(seed: int, costs: SwitchCosts = COSTS[0], clocks: int = 5) -> Problem:
    pipeline = make_pipeline("1f1b", 2, 4).with_delay(0.001)
    profile = random_profile(random.Random(seed), pipeline, clocks)
    return Problem(pipeline, profile, 60.0, overhead_s=0.03, switch_costs=costs)


@settings(max_examples=15)
@given(st.integers(0, 10**9), st.sampled_from(COSTS))
def test_each_pipeline_is_as_long_as_its_instructions_make_it(seed: int, costs: SwitchCosts) -> None:
    problem = small_problem(seed, costs)
    scenarios = scenarios_of(problem, seed, 3, [0, 1, 0])
    clocks = random_clocks(problem, 2, seed)
    spans = scenarios.spans_s(clocks)
    for pipeline, group in enumerate([0, 1, 0]):
        alone = Scenarios(problem, scenarios.full_s[:, :, [pipeline]], [0])
        assert spans[:, [pipeline]] == pytest.approx(alone.spans_s([clocks[group]]), rel=1e-12)
    assert scenarios.iteration_times_s(clocks) == pytest.approx(spans.max(axis=1) + problem.overhead_s)


@settings(max_examples=15)
@given(problems(), st.integers(0, 10**9), st.integers(1, 3))
def test_weights_are_by_how_much_the_mean_time_grows(problem: Problem, seed: int, pipelines: int) -> None:
    groups = list(range(pipelines))
    scenarios = scenarios_of(problem, seed, 4, groups)
    clocks = random_clocks(problem, pipelines, seed)
    _, weights = scenarios.mean_makespan(scenarios.play(scenarios.numbers(clocks)).times_s, weights=True)
    of_nodes = weights.reshape(scenarios.nodes, 4, pipelines).sum(axis=1)
    mean_s = scenarios.iteration_times_s(clocks).mean()
    more_s = 1e-7
    for node in random.Random(seed).sample(range(scenarios.nodes), 2):
        for pipeline in groups:
            longer = scenarios.full_s.copy()
            ratio = problem.table.ratio[problem.table.kind[node], problem.table.number[clocks[pipeline][node]]]
            longer[:, node, pipeline] += more_s / ratio
            grown_s = Scenarios(problem, longer, groups).iteration_times_s(clocks).mean() - mean_s
            assert grown_s / more_s == pytest.approx(of_nodes[node, pipeline], abs=1e-6)


@settings(max_examples=15)
@given(problems(), st.integers(0, 10**9))
def test_an_instruction_that_takes_its_slack_longer_delays_nothing(problem: Problem, seed: int) -> None:
    scenarios = scenarios_of(problem, seed, 2, [0, 0])
    played = scenarios.play(scenarios.max_clocks)
    latest = scenarios.paths.latest(played.times_s, played.spans_s.max(axis=1).repeat(2))
    slack = (latest - played.ends_s).reshape(scenarios.nodes, 2, 2).transpose(1, 0, 2)
    node = random.Random(seed).randrange(scenarios.nodes)
    times = scenarios.iteration_times_s()
    for more_s, later in ((0.0, 0.0), (0.01, 0.01)):
        longer = scenarios.full_s.copy()
        longer[:, node, 0] += slack[:, node, 0] + more_s
        assert Scenarios(problem, longer, [0, 0]).iteration_times_s() == pytest.approx(times + later, abs=1e-9)


@settings(max_examples=12)
@given(st.integers(0, 10**9), st.sampled_from(COSTS), st.sampled_from([0.99, 1.0, 1.002, 1.05]), st.booleans())
def test_plans_are_on_time_and_beat_one_clock(seed: int, costs: SwitchCosts, slowdown: float, grouped: bool) -> None:
    problem = small_problem(seed, costs)
    scenarios = scenarios_of(problem, seed, 3, [0, 1] if grouped else [0, 0])
    planner = ScenarioPlanner(scenarios)
    highest_s, highest_j = scenarios.iteration_times_s().mean(), scenarios.energy_j()
    plan, simple = planner.at(slowdown * highest_s), planner.one_clock_per_rank(slowdown * highest_s)
    for clocks in (plan, simple):
        mean_s = scenarios.iteration_times_s(clocks).mean()
        assert mean_s <= slowdown * highest_s * (1 + 1e-9) or scenarios.energy_j(clocks) == highest_j
        assert scenarios.energy_j(clocks) <= highest_j * (1 + 1e-9)
    assert scenarios.energy_j(plan) <= scenarios.energy_j(simple) * (1 + 1e-9)
    for number in np.flatnonzero(problem.table.offered.all(axis=0)):
        common = scenarios.play(np.full((scenarios.nodes, scenarios.count), number))
        assert common.mean_s > slowdown * highest_s or scenarios.energy_j(simple) <= common.energy_j * (1 + 1e-9)
    for group in range(scenarios.count):
        for first, end in ((0, 8), (8, 16)):
            assert len(set(simple[group][first:end])) == 1


@settings(max_examples=5)
@given(problems(), st.floats(1.0005, 1.2))
def test_for_one_scenario_the_relaxation_is_that_of_the_linear_program(problem: Problem, slowdown: float) -> None:
    scenarios = Scenarios(problem, nominal_s(problem)[None, :, None], [0])
    longest_s = slowdown * Planner(problem).fastest_s - problem.overhead_s
    relaxation = ScenarioRelaxation(scenarios)
    answer = relaxation.solve(longest_s + problem.overhead_s)
    makespan_s = relaxation.mean_s(answer.ratios)
    assert makespan_s <= longest_s * (1 + 1e-3)
    found_j = relaxation.energy_j(answer.ratios) + problem.waiting_power_w * makespan_s
    exact = Relaxation(problem.alike).solve(max(longest_s, makespan_s), problem.waiting_power_w)
    assert found_j >= exact.lower_bound_j * (1 - 1e-6)
    assert found_j <= exact.lower_bound_j * (1 + 3e-3)


@settings(max_examples=6)
@given(st.integers(0, 10**9), st.floats(1.0, 1.3), st.sampled_from([[0], [0, 1], [0, 1, 0]]))
def test_no_plan_takes_less_than_the_bound_of_the_linear_program(seed: int, slowdown: float, groups: list[int]) -> None:
    problem = small_problem(seed)
    scenarios = scenarios_of(problem, seed, 3, groups)
    mean_s = slowdown * float(scenarios.iteration_times_s(None).mean())
    bound_j = Relaxation(scenarios).solve(mean_s - problem.overhead_s, scenarios.waiting_power_w).lower_bound_j
    bound_j += scenarios.waiting_power_w * problem.overhead_s
    planned_j = scenarios.energy_j(ScenarioPlanner(scenarios).at(mean_s))
    assert bound_j <= planned_j * (1 + 1e-9)
    assert planned_j < 1.1 * bound_j, "the bound is close"


@settings(max_examples=4)
@given(st.integers(0, 10**9))
def test_a_plan_uses_no_clock_that_is_known_but_not_offered(seed: int) -> None:
    whole = small_problem(seed, COSTS[1])
    table = {kind: rows[:2] for kind, rows in whole.profile.measurements.items()}
    problem = replace(whole, profile=Profile(table, "two clocks"), wider=whole.profile)
    scenarios = scenarios_of(problem, seed, 2, [0])
    (clocks,) = ScenarioPlanner(scenarios).at(1.1 * scenarios.iteration_times_s().mean())
    for instruction, mhz in zip(problem.pipeline.instructions, clocks, strict=True):
        assert mhz in [row.frequency_mhz for row in table[instruction.stage, instruction.name]]


def test_a_clock_that_acts_late_is_kept_for_longer_than_others() -> None:
    costs = SwitchCosts(latency_s=0.01, latencies_s={900: 0.08})
    assert costs.shortest_run_s(False, 900) == 0.08
    assert costs.shortest_run_s(False, 1200) == costs.shortest_run_s(False) == 0.01


@settings(max_examples=6)
@given(st.integers(0, 10**9))
def test_the_drivers_can_make_the_changes_of_a_plan(seed: int) -> None:
    problem = small_problem(seed, SwitchCosts(driver_time_s=0.02, latency_s=0.05, hosts=((0, 1),)))
    scenarios = scenarios_of(problem, seed, 4, [0], spread=0.05)
    clocks = ScenarioPlanner(scenarios).at(1.02 * scenarios.iteration_times_s().mean())
    assert scenarios.play(scenarios.numbers(clocks)).violations == 0


def test_a_slow_pipeline_lets_the_others_run_at_low_clocks() -> None:
    problem = small_problem(4, clocks=20)
    scenarios = scenarios_of(problem, 4, 6, [0, 1], spread=0.02)
    slow = Scenarios(problem, scenarios.full_s * np.array([1.0, 2.0]), [0, 1])
    fast_clocks, slow_clocks = ScenarioPlanner(slow).at(1.001 * slow.iteration_times_s().mean())
    assert np.mean(fast_clocks) < np.mean(slow_clocks) - 50


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("costs", COSTS)
def test_a_clock_that_an_instruction_lacks_is_not_used_for_it(costs: SwitchCosts) -> None:
    problem = small_problem(6, clocks=8)
    rows = problem.profile.measurements
    fewer = {kind: measured[: 8 - 3 * (kind[1] == "forward")] for kind, measured in rows.items()}
    problem = replace(problem, profile=Profile(fewer), switch_costs=costs)
    scenarios = scenarios_of(problem, 6, 4, [0])
    (clocks,) = ScenarioPlanner(scenarios).at(1.1 * scenarios.iteration_times_s().mean())
    for instruction, mhz in zip(problem.pipeline.instructions, clocks, strict=True):
        assert mhz in {m.frequency_mhz for m in fewer[instruction.stage, instruction.name]}
    assert scenarios.energy_j([clocks]) < scenarios.energy_j()


def test_scenarios_say_what_is_wrong_with_them() -> None:
    problem = small_problem(5)
    full_s = nominal_s(problem)[None, :, None]
    with pytest.raises(ConfigError, match="shape"):
        Scenarios(problem, full_s, [0, 0])
    with pytest.raises(ConfigError, match="not above zero"):
        Scenarios(problem, 0 * full_s, [0])
    with pytest.raises(ConfigError, match="without gaps"):
        Scenarios(problem, full_s, [1])
    with pytest.raises(PlanError, match="not measured"):
        Scenarios(problem, full_s, [0]).energy_j([[1] * full_s.shape[1]])


@pytest.mark.parametrize("shorter", [0.775, 0.78, 0.785])
def test_a_pipeline_that_surely_waits_for_another_wins_no_time_by_higher_clocks(shorter: float) -> None:
    problem = small_problem(3)
    full_s = np.repeat(nominal_s(problem)[None, :, None], 2, axis=2)
    scenarios = Scenarios(problem, full_s * np.array([1.0, shorter]), [0, 1])
    lowest = [clocks_mhz[-1] for clocks_mhz in measured_mhz(problem)]
    mean_s = float(scenarios.iteration_times_s().mean())
    found = ScenarioDescent(scenarios).improve(scenarios.numbers([lowest, lowest]), 1.05 * mean_s)
    assert found.mean_s <= 1.05 * mean_s


@pytest.mark.parametrize(("driver_s", "late_s", "seed"), [(0.05, 0.01, 6), (0.0, 0.1, 2)])
def test_a_plan_saves_most_of_what_there_is_where_calls_take_long(driver_s: float, late_s: float, seed: int) -> None:
    pipeline = make_pipeline("1f1b", 4, 8)
    costs = SwitchCosts(driver_time_s=driver_s, latency_s=late_s, timing_error_s=late_s / 2)
    problem = Problem(pipeline, random_profile(random.Random(seed), pipeline, 12), 60.0, switch_costs=costs)
    highest = all_maximum(problem)
    longest_s = 1.0005 * highest.iteration_time_s
    scenarios = Scenarios(problem, nominal_s(problem)[None, :, None], [0])
    (clocks,) = ScenarioPlanner(scenarios).at(longest_s)
    saved_j = highest.energy_j - Plan(problem, tuple(clocks), "", longest_s).energy_j
    assert saved_j > 0.9 * (highest.energy_j - Planner(problem).at(deadline=longest_s).energy_j)


# ---- runs of one clock


COUNT, CLOCKS = 5, 3


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 1.5, 2.5, 9.0]))
def test_the_cheapest_of_all_clocks_is_found(seed: int, missing: float, shortest_s: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((COUNT, CLOCKS)) < missing, np.inf, rng.normal(size=(COUNT, CLOCKS)))
    values[:, -1] = np.abs(rng.normal(size=COUNT))  # the highest clock was measured
    changes = rng.random((COUNT - 1, CLOCKS, CLOCKS))
    needed = nodes_needed(np.ones((COUNT, CLOCKS)), np.array([[shortest_s] * CLOCKS, [1.5 * shortest_s] * CLOCKS]))

    def cost(clocks: tuple[int, ...]) -> float:
        first = 0
        for clock, run in itertools.groupby(clocks):
            length, lowered = len(list(run)), first > 0 and clock < clocks[first - 1]
            if length < needed[int(lowered), first, clock]:
                return np.inf
            first += length
        total = sum(values[k, clock] for k, clock in enumerate(clocks))
        pairs = enumerate(itertools.pairwise(clocks))
        return float(total + sum(changes[k, old, new] for k, (old, new) in pairs if old != new))

    least = min(map(cost, itertools.product(range(CLOCKS), repeat=COUNT)))
    assert cost(tuple(cheapest(values, needed, changes).tolist())) == pytest.approx(least)


def test_none_is_found_where_each_clock_lacks_an_instruction_and_runs_are_long() -> None:
    values = np.array([[1.0, np.inf], [np.inf, 1.0]])
    needed = np.array([[[2, 2], [1, 1]]] * 2)
    assert cheapest(values, needed, np.zeros((1, 2, 2))) is None


def test_a_run_needs_as_many_instructions_as_last_until_the_next_change_or_all_that_are_left() -> None:
    times_s = np.array([[1.0, np.inf], [1.0, 2.0], [1.0, 2.0]])
    needed = nodes_needed(times_s, np.array([[1.5, 1.5], [2.5, 4.5]]))
    assert needed[0].tolist() == [[2, 2], [2, 1], [1, 1]]
    assert needed[1].tolist() == [[3, 3], [2, 2], [1, 1]]
