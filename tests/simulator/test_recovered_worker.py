"""A slow worker recovers: the other ranks were slowed down to its pace, which iterations no longer need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfo_fs.device.simulated.physics import A100, node_physics
from pfo_fs.planner import make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Play
from pfo_fs.simulator.nodes import NodeSettings

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
    late = [one.time_s / one.full_time_s - 1 for one in play.run(RECOVERS + 50)]
    assert sum(late[RECOVERS - 20 : RECOVERS]) / 20 < 0.003
    assert max(late[RECOVERS : RECOVERS + 5]) > 0.05, "the others were slowed down to the slow worker's pace"
    assert sum(late[RECOVERS + 30 :]) / 20 < 0.003
