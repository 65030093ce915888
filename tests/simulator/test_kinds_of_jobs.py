"""As `test_closed_loop.py`: jobs of all kinds, and on nodes of all kinds."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_jobs import generated_job
from simulated_jobs import KIND, MICROBATCHES, SETTINGS, STAGES, converged, late, saved

from pfo_fs.device.simulated.physics import A40, A100, MODELS, PRESETS, GpuModel, node_physics
from pfo_fs.planner import make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import QUIET, Cluster, Iteration, ModelTruth, Play, summarize
from pfo_fs.simulator.nodes import NodeSettings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "gpu", "node", "least_saved", "most_late"),
    [
        ("1f1b", A100, "H100 node", 0.03, 0.002),
        ("zb-h1", A100, "kind", 0.05, 0.003),
        ("1f1b", A40, "kind", 0.05, 0.002),
        ("1f1b", MODELS["B300"], "kind", 0.03, 0.002),
        ("1f1b", MODELS["H100"], "kind", 0.01, 0.002),
    ],
    ids=["late clocks", "the first stage does not end last", "at the power limit", "B300", "a clock that wanders"],
)
def test_jobs_of_all_kinds_save_energy_and_lose_no_time(
    tmp_path: Path, schedule: str, gpu: GpuModel, node: str, least_saved: float, most_late: float
) -> None:
    """An A40 runs at 1,440 MHz at every higher clock that is set: clocks of the same time and energy count as one."""
    truth, nodes = ModelTruth(gpu, STAGES, slowest_mhz=600), NodeSettings(node_physics(node), 1, 4)
    play = Play(Cluster(make_pipeline(schedule, STAGES, MICROBATCHES), truth, seed=1, nodes=nodes), tmp_path, SETTINGS)
    # At the power limit, the first trials lie among clocks that are all alike.
    summary = summarize(play, list(play.run(450 if gpu is A40 else 300)))
    assert summary.slowdown < most_late
    assert summary.energy_saved > least_saved


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "iterations", "least"), [(23, 300, 0.05), (22, 700, 0.25)], ids=["stages", "short"])
def test_jobs_of_short_iterations_save_most_of_what_can_be_saved_in_time(
    tmp_path: Path, seed: int, iterations: int, least: float
) -> None:
    """Of 14.7 (5 to 12 with other noise) and 36.3 %, which full knowledge saves (benchmarks/loop_yield.py)."""
    play = Play(generated_job(seed).cluster(1), tmp_path, PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    played = list(play.run(iterations))
    assert saved(played[-50:]) > least
    assert late(played) < 0.0025


# ---- whole jobs on simulated nodes, where a clock acts late and calls of all GPUs wait for each other


Played = dict[int, tuple[Play, list[Iteration]]]


@pytest.fixture(scope="module")
def on_node(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Jobs with one and with eight GPUs per stage, each with its iterations until a plan stays."""
    found: Played = {}
    for gpus in (1, 8):
        nodes = NodeSettings(PRESETS["A100 node"], gpus, 1)
        cluster = Cluster(make_pipeline("1f1b", 4, 8), ModelTruth(A100, 4, slowest_mhz=600), seed=1, nodes=nodes)
        play = Play(cluster, tmp_path_factory.mktemp("node"), SETTINGS)
        found[gpus] = play, converged(play, 500)
    return found


@pytest.mark.slow
def test_a_job_with_eight_gpus_per_stage_changes_clocks_less_often_and_says_how_often(on_node: Played) -> None:
    changes = {}
    for gpus, (play, played) in on_node.items():
        summary = summarize(play, played)
        assert summary.slowdown < 0.004
        assert summary.energy_saved > 0.04
        (schedules,) = play.schedules_of(played[-1].number)
        changes[gpus] = sum(before[1] != after[1] for order in schedules.values() for before, after in pairwise(order))
        assert f"{changes[gpus]} clock changes" in played[-1].status_text
    assert changes[8] < changes[1]


def test_where_clocks_cannot_follow_the_device_each_rank_has_one_clock_and_people_are_told_why(tmp_path: Path) -> None:
    cluster = Cluster(make_pipeline("1f1b", 2, 4), ModelTruth(A100, 2), QUIET)
    play = Play(cluster, tmp_path, SETTINGS.model_copy(update={"scheduler_args": {"slowdown": 1.1}}))
    assert "one clock for each rank: clocks cannot follow instructions" in [*play.run(50)][-1].status_text


@pytest.mark.slow
def test_a_daemon_that_is_restarted_reads_from_the_records_what_changes_cost(on_node: Played) -> None:
    play, (*_, last) = on_node[8]
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
    cluster = Cluster(PIPELINE, ModelTruth(A100, 4), variation=SlowThirdStage(), seed=0, nodes=KIND)
    play = Play(cluster, tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    late = [one.time_s / one.full_time_s - 1 for one in play.run(RECOVERS + 90)]
    assert sum(late[RECOVERS - 20 : RECOVERS]) / 20 < 0.003
    assert max(late[RECOVERS : RECOVERS + 5]) > 0.05, "the others were slowed down to the slow worker's pace"
    assert sum(late[RECOVERS + 45 :]) / 45 < 0.003, "a trial may have to end first"
