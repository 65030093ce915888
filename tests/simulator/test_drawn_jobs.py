"""Jobs that are drawn from a seed: physically sound, unlike each other, and varied as production traces are."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfo_fs.errors import PlanError
from pfo_fs.planner import make_pipeline
from pfo_fs.simulator import (
    QUIET,
    DrawnVariation,
    Mixture,
    SimulatedJob,
    generated_job,
    read_step_factors,
    varied_job,
)

PIPELINE = make_pipeline("1f1b", 3, 5)


def drawn(**what: Any) -> DrawnVariation:
    return DrawnVariation(PIPELINE, pipelines=2, seed=1, **what)


def factors(variation: DrawnVariation, count: int = 400, first: int = 0) -> Any:
    """(iterations, nodes, pipelines)."""
    return np.array([variation.factors(iteration, 0) for iteration in range(first, first + count)])


def test_a_varied_job_is_the_generated_one_with_variation_that_its_seed_repeats() -> None:
    job, again = varied_job(7), varied_job(7)
    assert job.pipeline.orders == generated_job(7).pipeline.orders
    assert job.nuisances == generated_job(7).nuisances
    assert generated_job(7) == generated_job(7) != generated_job(8)
    assert np.array_equal(job.variation.factors(30, 2), again.variation.factors(30, 2))
    assert not np.array_equal(job.variation.factors(30, 2), again.variation.factors(30, 3))


def test_a_micro_batch_is_equally_long_on_all_stages_and_another_one_is_not() -> None:
    once = factors(drawn(mixture=Mixture(1.0, 0.3)), 1)[0]
    for pipeline in range(2):
        lengths = {
            (one.microbatch, float(factor))
            for one, factor in zip(PIPELINE.instructions, once[:, pipeline], strict=True)
        }
        assert len(lengths) == 5


def test_after_a_change_of_the_mixture_micro_batches_are_of_its_lengths() -> None:
    variation = drawn(mixture=Mixture(1.0, 0.02), later_mixture=Mixture(1.2, 0.3), changes_at=200)
    before, after = factors(variation, 200), factors(variation, 200, first=200)
    assert before.mean() == pytest.approx(1.0, rel=0.02)
    assert before.std() == pytest.approx(0.02, rel=0.1)
    assert after.mean() == pytest.approx(1.2, rel=0.05)
    assert after.std() > 0.25


def test_a_slow_worker_is_one_permanently_slow_rank_of_one_pipeline() -> None:
    means = factors(drawn(slow_worker=0.5, own=0.01)).mean(axis=0)
    slow = means > 1.25
    assert len({PIPELINE.instructions[node].stage for node in np.flatnonzero(slow.any(axis=1))}) == 1
    assert slow.any(axis=0).sum() == 1
    assert means[slow] == pytest.approx(1.5, rel=0.01)


JOBS = [generated_job(seed) for seed in range(60)]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_generated_job_is_physically_sound(job: SimulatedJob) -> None:
    truth = job.truth
    assert 8 <= len(truth.clocks_mhz) <= 120
    for kind in {(i.stage, i.name) for i in job.pipeline.instructions}:
        rows = [truth.measurement(*kind, mhz) for mhz in truth.clocks_mhz]
        powers_w = [row.energy_j / row.time_s for row in rows]
        assert min(powers_w) > truth.blocking_power_w
        assert rows[-1].time_s > 1.05 * min(row.time_s for row in rows), "the lowest clock is slower"
        for (high_w, low_w), (high, low) in zip(pairwise(powers_w), pairwise(rows), strict=True):
            assert high_w > 0.98 * low_w, "power grows with the clock, roughness apart"
            assert low.time_s > 0.98 * high.time_s or high.time_s > rows[0].time_s * 0.95


def test_generated_jobs_cover_what_real_ones_may_be() -> None:
    instructions = {job.pipeline.name for job in JOBS}
    assert instructions == {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "early-recomputation"}
    nodes = {None if job.nodes is None else job.nodes.physics.name for job in JOBS}
    assert nodes == {None, "none", "A100 node", "H100 node"}
    slower_on_top = 0
    for job in JOBS:
        rows = [job.truth.measurement(0, "forward", mhz) for mhz in job.truth.clocks_mhz]
        slower_on_top += rows[0].time_s > 1.005 * min(row.time_s for row in rows)
    assert slower_on_top >= 3, "a board's power limit makes the highest clock slower than a lower one"


# ---- factors of whole steps


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def times(count: int, run: str = "a", **odd: float) -> list[str]:
    """Rows of a run whose steps take 2 s each, except those of the numbers in `odd`."""
    return [f"{run},{odd.get(f'step{number}', 2.0)}" for number in range(count)]


def test_a_series_of_step_factors_repeats_without_a_jump() -> None:
    variation = generated_job(7).with_step_factors([1.0, 2.0, 3.0]).variation
    assert [float(variation.factors(step, 0).max()) for step in range(8)] == [1, 2, 3, 3, 2, 1, 1, 2]
    judged = [float(factors.max()) for factors in variation.judged(4, 0)[:3]]
    assert judged == [2, 1, 1], "plans are judged by the steps that follow"


def test_the_same_iteration_at_max_clocks_has_the_same_step_factor() -> None:
    calm = replace(QUIET, delay_s=0.0, overhead_s=0.0, switch_s=0.0)
    job = replace(generated_job(7), nodes=None, nuisances=calm).with_step_factors([1.0, 1.3, 0.8])
    cluster = job.cluster()
    lowest = job.truth.clocks_mhz[-1]
    clocks = cluster.clocks_of([{0: [(one.name, lowest) for one in job.pipeline.orders[0]]}])
    played = [cluster.run(clocks) for _ in range(3)]
    assert [each.full_time_s / played[0].full_time_s for each in played] == pytest.approx([1.0, 1.3, 0.8])
    assert [each.time_s / played[0].time_s for each in played] == pytest.approx([1.0, 1.3, 0.8])


def test_step_factors_of_times_are_relative_to_their_median_without_the_warm_up(tmp_path: Path) -> None:
    path = table(tmp_path, "run,iteration_time_s", *times(14, step0=40.0, step12=3.0))
    assert read_step_factors(path) == ([1.0, 1.0, 1.5, 1.0], "a")


def test_step_factors_are_those_of_the_run_that_was_named_or_of_the_first(tmp_path: Path) -> None:
    path = table(tmp_path, "run,file,iteration,factor", "a,1.json,1,1.1", "b,1.json,1,1.2", "b,2.json,1,1.3")
    assert read_step_factors(path) == ([1.1], "a/1.json")
    assert read_step_factors(path, "b") == ([1.2], "b/1.json")
    assert read_step_factors(path, "b/2.json") == ([1.3], "b/2.json")


@pytest.mark.parametrize(
    ("lines", "run", "words"),
    [
        (["run,step_time", "a,1"], None, "one of the columns factor and iteration_time_s"),
        (["factor,iteration_time_s", "1,1"], None, "one of the columns factor and iteration_time_s"),
        (["run,factor", "a,1", "a,0"], None, "row 3, column factor: '0' is not a number from 0.01"),
        (["run,iteration_time_s", "a,nan"], None, "row 2, column iteration_time_s: 'nan'"),
        (["run,iteration_time_s", *times(14, step12=2000.0)], None, "row 14: 2000 s is not from 0.01 to 100 times"),
        (["run,iteration_time_s", *times(10)], None, "has 10 rows, and the first 10 are its warm-up"),
        (["run,factor", "a,1", "b,1"], "c", "no rows of run c; runs: a, b"),
        (["factor"], None, "has no rows"),
    ],
)
def test_a_table_of_step_factors_that_cannot_be_true_is_refused_with_its_row(
    tmp_path: Path, lines: list[str], run: str | None, words: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        read_step_factors(table(tmp_path, *lines), run)
