"""Jobs that are drawn from a seed: physically sound, unlike each other, and varied as production traces are."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn_jobs import DrawnVariation, Mixture, generated_job, varied_job

from pfo_fs.planner import make_pipeline
from pfo_fs.simulator import SimulatedJob

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
        factors_of = zip(PIPELINE.instructions, once[:, pipeline], strict=True)
        assert len({(one.microbatch, float(factor)) for one, factor in factors_of}) == 5


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
    times_s = [[job.truth.measurement(0, "forward", mhz).time_s for mhz in job.truth.clocks_mhz] for job in JOBS]
    slower_on_top = sum(of_job[0] > 1.005 * min(of_job) for of_job in times_s)
    assert slower_on_top >= 3, "a board's power limit makes the highest clock slower than a lower one"
