"""The policy of the scenarios in a whole job: real store, coordinator, planner and meter, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfo_fs.device.physics import A100
from pfo_fs.errors import PlanError
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.planner import make_pipeline
from pfo_fs.scenario_policy.scenario_scheduler import ScenarioScheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Play, summarize


@pytest.mark.timeout(300)
def test_an_unknown_job_gets_a_plan_that_saves_energy_and_costs_no_time(tmp_path: Path) -> None:
    cluster = Cluster(make_pipeline("1f1b", 4, 8), ModelTruth(A100, 4, slowest_mhz=600), seed=1)
    play = Play(cluster, tmp_path, PFOSettings(scheduler="ScenarioScheduler", profile_steps=4))
    played = list(play.run(60))
    summary = summarize(play, played)
    assert summary.energy_saved > 0.03
    assert summary.slowdown < 0.006, "a plan that is only tried may be half a percent late"
    assert summary.run_late < 0.004
    assert "less energy (±" in summary.status_text


def test_an_argument_that_no_release_has_had_is_named() -> None:
    job = JobInfo(pp_degree=1, dp_degree=1, tp_degree=1, world_size=1)
    rank = RankInfo(rank=0, dp_rank=0, pp_rank=0, tp_rank=0, available_frequencies=[1410])
    with pytest.raises(PlanError, match="no argument nonsense"):
        ScenarioScheduler(job, [rank], PFOSettings(), nonsense=1)
