"""How good plans are: against brute force, against a second formulation of the bound, and against random plans."""

import random

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_problems import least_energy_by_trying_all, problems, random_profile, small_problems

from pfo_fs.device.simulated.physics import A100
from pfo_fs.planner import Plan, Planner, Problem, Profile, make_pipeline, relaxation
from pfo_fs.planner.relaxation import Relaxation
from pfo_fs.simulator import Cluster, ModelTruth, Nuisances

# Where between the fastest and the slowest plan a deadline lies; the ends and a step beyond are asked for often.
shares = st.one_of(st.sampled_from([0.0, 1.0, 1.5]), st.floats(0, 1))


def deadline_of(planner: Planner, share: float) -> float:
    return planner.fastest_s + share * (planner.slowest_s - planner.fastest_s)


@settings(max_examples=40)
@given(small_problems(), shares, st.booleans())
def test_a_small_plan_is_in_time_to_the_last_bit_and_the_best_and_its_bound_is_below(
    problem: Problem, share: float, straggler: bool
) -> None:
    planner = Planner(problem)
    deadline_s = deadline_of(planner, share)
    plan = planner.at(straggler=deadline_s) if straggler else planner.at(deadline=deadline_s)
    assert plan.iteration_time_s <= max(deadline_s, planner.fastest_s)
    best_j = least_energy_by_trying_all(problem, deadline_s, straggler=straggler)
    assert plan.lower_bound_j <= best_j * (1 + 1e-9)
    assert best_j * (1 - 1e-9) <= plan.energy_j <= best_j * 1.001


@given(problems(), st.lists(st.floats(0, 10), min_size=1, max_size=5))
@settings(max_examples=25)
def test_any_duals_at_all_prove_a_valid_bound(problem: Problem, noise: list[float]) -> None:
    deadline_s = deadline_of(Planner(problem), 0.5)
    relaxation = Relaxation(problem.alike)
    best = relaxation.solve(deadline_s, 0.0)
    worse = np.resize(np.array(noise), len(relaxation._row_lower))
    assert relaxation._bound_j(worse) <= best.lower_bound_j + 1e-6 * abs(best.lower_bound_j)


@pytest.mark.parametrize("extras", [True, False])
def test_interior_points_keep_the_deadline_and_prove_the_bound(monkeypatch: pytest.MonkeyPatch, extras: bool) -> None:
    if extras:
        pytest.importorskip("highspy_extras")
    pipeline = make_pipeline("1f1b", 4, 12)
    problem = Problem(pipeline, random_profile(random.Random(4), pipeline, 12), 80.0)
    simplex = Planner(problem)
    monkeypatch.setattr(relaxation, "INTERIOR_POINT_NODES", 1)
    monkeypatch.setattr(relaxation, "_has_hipo", lambda: extras)
    interior = Planner(problem)
    for slowdown in (1.0, 1.05, 1.5):
        exact, plan = simplex.at(slowdown=slowdown), interior.at(slowdown=slowdown)
        assert plan.iteration_time_s <= plan.deadline_s
        assert exact.lower_bound_j * 0.998 <= plan.lower_bound_j <= exact.lower_bound_j * (1 + 1e-9)
        assert plan.energy_j <= exact.energy_j * 1.02


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
def test_a_plan_takes_what_the_simulator_makes_of_it(seed: int, schedule: str) -> None:
    pipeline, rng = make_pipeline(schedule, 2, 4), random.Random(seed)
    truth = ModelTruth(A100, 2)
    clocks, kinds = truth.clocks_mhz, sorted({(i.stage, i.name) for i in pipeline.instructions})
    profile = Profile({kind: [truth.measurement(*kind, mhz) for mhz in clocks] for kind in kinds})
    problem = Problem(pipeline, profile, truth.blocking_power_w)
    plan = Plan(problem, tuple(rng.choice(clocks) for _ in pipeline.instructions), "random", 0.0)
    calm = Nuisances(
        time_jitter=0.0, power_jitter=0.0, warm_up=0.0, switch_s=0.0, delay_s=0.0, overhead_s=0.0, tick_s=0.1
    )
    cluster = Cluster(pipeline, truth, calm)
    played = cluster.run(cluster.clocks_of([{s.rank: s.frequencies for s in plan.schedules()}]))
    assert plan.iteration_time_s == pytest.approx(played.time_s, rel=1e-9)
    assert plan.energy_j == pytest.approx(played.energy_j, rel=1e-9)


def test_the_solver_prints_nothing_although_its_constructor_would(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """HiGHS 1.16 prints a banner; the output of `--json` must hold nothing else."""
    plain = highspy.Highs.enableCallbacks

    def with_banner(highs: highspy.Highs) -> None:
        if highs.getOptionValue("output_flag")[1]:
            print("a banner")
        plain(highs)

    monkeypatch.setattr(highspy.Highs, "enableCallbacks", with_banner)
    highs = relaxation.silent_highs()
    highs.passModel(highspy.HighsLp())
    highs.run()
    assert capfd.readouterr().out == ""
