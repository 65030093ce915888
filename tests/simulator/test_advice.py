"""What is advised before a clock may be set."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_jobs import generated_job
from planner_problems import published

from pfo_fs.arrays import Array, np
from pfo_fs.device.simulated.physics import A100
from pfo_fs.planner import Measurement, Pipeline, Planner, Profile, all_maximum, make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, summarize
from pfo_fs.simulator.advice import SLOWDOWNS, Advice, Interval, advise
from pfo_fs.simulator.traces import TracedStages
from pfo_fs.simulator.training_curves import Curves


def pipeline_of(stages: int, micro_batches: int = 8) -> Pipeline:
    return make_pipeline("1f1b", stages, micro_batches)


def durations(pipeline: Pipeline, pipelines: int = 1, steps: int = 1) -> Array:
    """Forwards of 50 ms and backwards of 100 ms, alike everywhere."""
    of_step = [0.05 if one.name == "forward" else 0.1 for one in pipeline.instructions]
    return np.tile(np.array(of_step)[None, :, None], (steps, 1, pipelines))


def with_a_long_stage(pipeline: Pipeline) -> Array:
    return durations(pipeline) * np.where([one.stage == 3 for one in pipeline.instructions], 1.3, 1.0)[:, None]


def shares(advice: Advice) -> Mapping[str, float]:
    return {one.cause: one.share for one in advice.waits}


def saved(advice: Advice, name: str) -> tuple[Interval, ...]:
    return next(one.saved for one in advice.remedies if one.name == name)


def test_equal_stages_wait_in_bubbles_alone_and_slower_steps_never_save_less() -> None:
    pipeline = pipeline_of(4)
    advice = advise(pipeline, durations(pipeline), "A100")
    found = shares(advice)
    assert found["pipeline bubbles"] == pytest.approx(3 / 11, abs=0.01)  # (stages - 1) / (micro-batches + stages - 1)
    assert sum(found.values()) == pytest.approx(found["pipeline bubbles"])
    for remedy in advice.remedies:
        highs = [one.high for one in remedy.saved]
        assert highs == sorted(highs)
        assert len(highs) == len(SLOWDOWNS) == 4


def test_a_long_stage_makes_the_others_wait_which_a_plan_saves() -> None:
    pipeline = pipeline_of(4)
    advice = advise(pipeline, with_a_long_stage(pipeline), "A100")
    assert shares(advice)["unequal stages"] > 0.08
    assert saved(advice, "plan")[0].low > 0.03


def test_a_slow_worker_is_named_with_the_time_that_it_costs_and_others_may_run_slower() -> None:
    pipeline = pipeline_of(2)
    advice = advise(pipeline, durations(pipeline, 4) * np.array([1.0, 1.0, 1.5, 1.0]), "A100")
    assert {one.cause: one.shorter for one in advice.waits}["slow workers"] == pytest.approx(1 / 3, abs=0.01)
    assert shares(advice)["unequal loads"] == pytest.approx(0)
    assert saved(advice, "loads")[0].low > 0.05


def test_where_each_pipeline_has_a_slow_stage_no_worker_is_named() -> None:
    pipeline = pipeline_of(2)
    is_slow = np.array([[one.stage == number for number in range(2)] for one in pipeline.instructions])
    found = shares(advise(pipeline, durations(pipeline, 2) * np.where(is_slow, 1.5, 1.0), "A100"))
    assert found["slow workers"] == 0
    assert found["unequal loads"] > 0.05


def test_unequal_loads_are_to_be_balanced_first_and_clocks_from_loads_save_the_rest_of_the_waiting() -> None:
    pipeline = pipeline_of(1)
    full_s = durations(pipeline, 8, 4) * np.random.default_rng(1).lognormal(0, 0.3, (4, 1, 8))
    advice = advise(pipeline, full_s, "A100")
    assert shares(advice)["unequal loads"] > 0.15
    assert saved(advice, "loads")[0].low > 0.05
    (left,) = [one.saved[0] for one in advice.balanced if one.name == "loads"]
    assert left.high < 0.3 * saved(advice, "loads")[0].high


def test_there_is_little_to_save_in_a_balanced_job_without_a_pipeline() -> None:
    pipeline = pipeline_of(1)
    advice = advise(pipeline, durations(pipeline, 8), "A100")
    assert advice.most < 0.01
    assert [one.name for one in advice.remedies] == ["limit"]


def curves_of(*points: tuple[float, float], held_mhz: int = 1980) -> Curves:
    """Curves by (time, energy) of the same work, relative; a power limit holds the clock at `held_mhz`."""
    clocks_mhz = list(range(1980, 830, -60))
    times_s: Array = 0.1 + 0.9 * 1980 / np.minimum(clocks_mhz, held_mhz)
    energies_j = 700 * np.interp(times_s, *np.array(points).T)
    rows = [Measurement(*of) for of in zip(clocks_mhz, times_s / times_s[0], energies_j / times_s[0], strict=True)]
    return Curves(dict.fromkeys(("forward", "backward"), rows), 120.0)


OTHERS = {
    "A100": curves_of((1.0, 1.0), (1.06, 0.89), (1.2, 0.75), (1.3, 0.74), (2.2, 0.85)),
    "B300": curves_of((1.0, 1.0), (1.06, 0.9), (1.3, 0.87), (2.2, 0.95)),
    "RTX PRO 6000": curves_of((1.0, 1.0), (1.06, 0.92), (1.2, 0.84), (1.3, 0.81), (2.2, 0.9)),
    "H100 at its power limit": curves_of((1.0, 1.0), (1.06, 0.89), (1.2, 0.78), (1.3, 0.74), (2.2, 0.8), held_mhz=1500),
}


def test_a_kind_of_gpu_of_which_nothing_is_published_gets_an_interval_that_holds_what_its_own_curve_gives() -> None:
    """Energies against time as measured on these kinds: an A100's training, others' GEMMs."""
    pipeline = pipeline_of(4, 4)
    full_s = with_a_long_stage(pipeline)
    wide = advise(pipeline, full_s, "NVIDIA H100 80GB HBM3")
    assert wide.curves == "unknown"
    told = saved(wide, "plan")[0]
    for kind, curves in OTHERS.items():
        own = advise(pipeline, full_s, kind, curves)
        assert own.curves == "measured"
        true = saved(own, "plan")[0].high / 1.05  # without what plans deliver beyond it
        assert told.low <= true <= told.high, kind


def test_the_interval_of_a_kind_holds_what_a_training_at_its_power_limit_saves() -> None:
    pipeline = pipeline_of(4, 4)
    full_s = with_a_long_stage(pipeline)
    told = saved(advise(pipeline, full_s, "A100"), "plan")[0]
    at_limit = Curves.at_limit(A100, {"forward", "backward"})
    assert told.low <= saved(advise(pipeline, full_s, "A100", at_limit), "plan")[0].high / 1.05 <= told.high


def test_where_clocks_cannot_follow_the_device_a_clock_per_rank_is_what_a_plan_has() -> None:
    pipeline = pipeline_of(4, 4)
    advice = advise(pipeline, with_a_long_stage(pipeline), "A100", follows=False)
    assert [one.name for one in advice.remedies] == ["ranks", "limit"]


def test_the_more_steps_differ_the_less_a_plan_may_save() -> None:
    pipeline = pipeline_of(4, 4)
    alike, uneven = (
        saved(advise(pipeline, with_a_long_stage(pipeline) * lengths, "A100"), "plan")[0]
        for lengths in (np.ones((2, 1, 1)), np.array([0.95, 1.05])[:, None, None])
    )
    assert uneven.low < alike.low - 0.02
    assert uneven.high == pytest.approx(alike.high, abs=0.01)


@pytest.mark.parametrize("name", ["gpt3-175b+a40_bf16", "bloom+a100_sxm_bf16"])
def test_curves_that_a_job_has_measured_itself_count(shared_data: Path, name: str) -> None:
    problem = published(shared_data, 6, name)
    highest = all_maximum(problem)
    full_s = np.array(highest.times_s)[None, :, None]
    plan = Planner(problem).at(deadline=highest.iteration_time_s)
    curves = Curves.of_profile(problem.profile, problem.blocking_power_w)
    told = saved(advise(problem.pipeline, full_s, "", curves), "plan")[0]
    assert told.low <= 1 - plan.energy_j / highest.energy_j <= told.high
    few = {kind: rows[:4] for kind, rows in problem.profile.measurements.items()}
    assert Curves.of_profile(Profile(few), 80.0) is None, "four of the highest clocks say little"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [513_154, 513_011])
def test_what_the_loop_then_saves_lies_in_the_interval(seed: int, tmp_path: Path) -> None:
    drawn = generated_job(seed)
    kinds = [(one.stage, one.name) for one in drawn.pipeline.instructions]
    lengths_s = {kind: drawn.truth.measurement(*kind, drawn.truth.clocks_mhz[0]).time_s for kind in kinds}
    job = replace(drawn, truth=TracedStages(lengths_s, A100))
    full_s = np.tile(np.array([lengths_s[kind] for kind in kinds])[None, :, None], (1, 1, job.pipelines))
    play = Play(job.cluster(1), tmp_path, PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    told = saved(advise(job.pipeline, full_s, A100.name), "plan")[0]
    delivered = summarize(play, list(play.run(150))).energy_saved
    assert told.low <= delivered <= told.high
