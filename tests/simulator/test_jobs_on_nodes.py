"""Whole jobs on simulated nodes, where a clock acts late and calls of all GPUs wait for each other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_jobs import converged

from pfo_fs.device.simulated.physics import A100, PRESETS, node_physics
from pfo_fs.planner import make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Play, summarize
from pfo_fs.simulator.nodes import NodeSettings

"""Whole jobs: with coverage, on a busy host, some take more than two minutes."""
SETTINGS = PFOSettings(scheduler="ParetoScheduler", profile_steps=4)


def job(path: Path, node: str, gpus: int = 1, stages_per_node: int = 1) -> Play:
    nodes = NodeSettings(PRESETS[node], gpus, stages_per_node)
    cluster = Cluster(make_pipeline("1f1b", 4, 8), ModelTruth(A100, 4, slowest_mhz=600), seed=1, nodes=nodes)
    return Play(cluster, path, SETTINGS)


@pytest.mark.slow
def test_a_job_with_eight_gpus_per_stage_changes_clocks_less_often_and_says_how_often(tmp_path: Path) -> None:
    plays = {gpus: job(tmp_path / str(gpus), "A100 node", gpus) for gpus in (1, 8)}
    texts, changes = {}, {}
    for gpus, play in plays.items():
        played = converged(play, 500)
        summary = summarize(play, played)
        assert summary.slowdown < 0.004
        assert summary.energy_saved > 0.04
        texts[gpus] = played[-1].status_text
        (schedules,) = play.schedules_of(played[-1].number)
        changes[gpus] = sum(before[1] != after[1] for order in schedules.values() for before, after in pairwise(order))
    assert changes[8] < changes[1]
    assert f"{changes[8]} clock changes" in texts[8]


@pytest.mark.slow
def test_a_daemon_that_is_restarted_reads_from_the_records_what_changes_cost(tmp_path: Path) -> None:
    play = job(tmp_path, "A100 node", 4)
    last = converged(play, 400)[-1]
    play.restart_daemon()
    for iteration in play.run(3):  # the next window of the plan has not been measured yet
        assert iteration.number == last.number
        assert iteration.status_text == last.status_text


# ---- a slow worker recovers: the other ranks were slowed down to its pace, which iterations no longer need


PIPELINE = make_pipeline("1f1b", 4, 8)
RECOVERS = 100


class SlowThirdStage:
    """Instructions of the third stage take 1.3 times as long up to an iteration."""

    def factors(self, iteration: int, seed: int) -> Any:
        slow = np.array([instruction.stage == 2 for instruction in PIPELINE.instructions])
        return np.where(slow & (iteration < RECOVERS), 1.3, 1.0)[:, None]

    def judged(self, iteration: int, seed: int) -> list[Any]:
        return [self.factors(iteration, seed)]


@pytest.mark.slow
def test_after_a_slow_worker_has_recovered_iterations_are_soon_as_short_as_at_max_clocks(tmp_path: Path) -> None:
    cluster = Cluster(
        PIPELINE, ModelTruth(A100, 4), variation=SlowThirdStage(), seed=0, nodes=NodeSettings(node_physics("kind"))
    )
    play = Play(cluster, tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    late = [one.time_s / one.full_time_s - 1 for one in play.run(RECOVERS + 90)]
    assert sum(late[RECOVERS - 20 : RECOVERS]) / 20 < 0.003
    assert max(late[RECOVERS : RECOVERS + 5]) > 0.05, "the others were slowed down to the slow worker's pace"
    assert sum(late[RECOVERS + 45 :]) / 45 < 0.003, "a trial may have to end first"
