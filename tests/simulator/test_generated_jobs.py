"""Jobs drawn from a seed are physically sound and differ from each other."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pfo_fs.simulator import SimulatedJob, generated_job

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


def test_the_same_seed_gives_the_same_job() -> None:
    one, again = generated_job(7), generated_job(7)
    assert one == again
    assert one != generated_job(8)


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
