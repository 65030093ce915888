"""The real scheduler, planner, coordinator, store and meter on a cluster in virtual time."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from simulated_jobs import KIND, MICROBATCHES, SETTINGS, STAGES, LongTruth, converged, late, saved

from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.device.simulated.physics import A100
from pfo_fs.planner import Measurement, make_pipeline
from pfo_fs.scheduler import IterationTime
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import QUIET, Cluster, Episode, Iteration, Nuisances, Play, summarize
from pfo_fs.store import bodies


def cluster(seed: int = 0, pipelines: int = 1, **nuisances: float) -> Cluster:
    return Cluster(
        make_pipeline("1f1b", STAGES, MICROBATCHES),
        LongTruth(A100, STAGES, slowest_mhz=600),
        replace(Nuisances(), **nuisances),
        pipelines,
        seed=seed,
        nodes=KIND,
    )


def small() -> Cluster:
    """A job of few instructions."""
    return Cluster(make_pipeline("1f1b", 2, 4), LongTruth(A100, 2, slowest_mhz=900), nodes=KIND)


Planned = tuple[Play, list[Iteration]]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """A job that was played until its plan stayed, for several tests: none plays it on, or changes its directory."""
    play = Play(cluster(), tmp_path_factory.mktemp("planned"), SETTINGS)
    return play, converged(play)


def schedules_of(play: Play) -> list[list[dict[int, object]]]:
    return [play.schedules_of(number) for number in play.folder.schedule_numbers()]  # type: ignore[misc]


@pytest.mark.slow
def test_an_unknown_job_gets_a_plan_that_saves_energy_and_costs_no_time(planned: Planned) -> None:
    summary = summarize(*planned)
    assert summary.energy_saved > 0.05
    assert summary.slowdown < 0.002
    assert late(planned[1]) < 0.005, "nor do the windows and trials before"
    assert "at default clocks" in summary.status_text


@pytest.mark.slow
def test_a_daemon_that_is_restarted_under_every_schedule_makes_the_same_schedules(tmp_path: Path) -> None:
    steady, shaken = (Play(small(), tmp_path / name, SETTINGS) for name in ("steady", "shaken"))
    begun = number = 0
    for iteration in shaken.run(30):
        if iteration.number != number:
            begun, number = iteration.step, iteration.number
        # Not when a schedule is due: that of a new daemon starts later, since the progress that it finds may be old.
        if iteration.step == begun + 2:
            shaken.restart_daemon()
    list(steady.run(30))
    assert len(schedules_of(steady)) > 3
    assert schedules_of(shaken) == schedules_of(steady)


@pytest.mark.slow
def test_a_plan_has_room_for_durations_that_scatter(tmp_path: Path) -> None:
    """Full speed has room for that everywhere; a plan that used all of it would be late by half a percent."""
    play = Play(cluster(seed=1, time_jitter=0.03), tmp_path, SETTINGS)
    played = list(play.run(80))
    under_plans = [i for i in played if i.number >= play.first_plan]
    assert late(under_plans) < 0.004
    assert late(played[-20:]) < 0.004
    assert summarize(play, played).energy_saved > 0.01


@pytest.mark.slow
def test_a_straggler_is_followed_within_five_iterations_and_let_go_within_four(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=2), tmp_path, SETTINGS)
    at = converged(play)[-1].step
    play.cluster.episodes = [Episode(1.2, at + 8, at + 28, 1)]
    played = list(play.run(36))
    follows = [
        1 in play.folder.read(bodies.IndexBody, number=i.number).source.plan_inputs.slow_pipelines for i in played
    ]
    first, last = follows.index(True), len(follows) - 1 - follows[::-1].index(True)
    assert played[first].step - (at + 8) <= 5
    assert played[last].step - (at + 28) < 4, "two, and others if a trial begins just then"
    before = [i for i in played if i.step < at + 8]
    during = [i for i in played if at + 16 <= i.step < at + 28]
    (blind,) = [i for i in played if i.step == at + 8]
    assert during[0].energy_j < 0.98 * blind.energy_j
    slowest_s = 1.2 * max(i.time_s for i in before)
    assert max(i.time_s for i in during) < 1.01 * slowest_s, "no pipeline waits longer than for the straggler"


@pytest.mark.slow
def test_a_straggler_that_a_person_announces_slows_the_others_down(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=2), tmp_path, SETTINGS)
    before = list(play.run(20))[-1]
    play.folder.files.publish(f"{play.folder.path}/schedule.yaml", b"straggler: {slowdown: 1.15, pipeline: 1}\n")
    after = list(play.run(30))[-1]
    assert after.spans_s[0] == pytest.approx(1.15 * before.spans_s[0], rel=0.015)
    assert after.spans_s[1] == pytest.approx(before.spans_s[1], rel=0.015)
    (tmp_path / play.folder.path / "schedule.yaml").unlink()
    later = list(play.run(20))[-1]
    assert later.spans_s[0] == pytest.approx(before.spans_s[0], rel=0.01)


@pytest.mark.slow
def test_a_power_cap_in_schedule_yaml_is_kept(tmp_path: Path) -> None:
    play = Play(small(), tmp_path, SETTINGS)
    before = list(play.run(20))[-1]
    cap_w = 0.85 * before.energy_j / before.time_s
    play.folder.files.publish(f"{play.folder.path}/schedule.yaml", f"target: {{power: {cap_w}}}\n".encode())
    after = list(play.run(100))[-8:]
    assert 0.975 < sum(i.energy_j for i in after) / sum(i.time_s for i in after) / cap_w < 1.02
    assert after[-1].time_s > before.time_s


@pytest.mark.slow
def test_a_window_that_something_else_disturbed_spoils_no_plan(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    for iteration in play.run(120, lambda iteration: iteration.number == play.first_plan):
        began = iteration.step
    play.cluster.episodes = [Episode(1.9, began + 2, began + 4)]
    summary = summarize(play, list(play.run(200)))
    assert summary.slowdown < 0.003
    assert summary.energy_saved > 0.05


@pytest.mark.slow
def test_a_plan_that_stays_is_measured_again_if_its_iterations_turn_out_to_miss_the_target(planned: Planned) -> None:
    play, (*_, last) = planned
    scheduler = play.coordinator.scheduler
    assert isinstance(scheduler, ParetoScheduler)
    before = scheduler.plan_inputs
    for step in range(1000, 1040):
        inputs = scheduler.assess([IterationTime(0, step, last.number, 1.02 * last.spans_s[0])])
        if inputs != before:
            break
    assert inputs.remeasure_epoch == before.remeasure_epoch + 1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "words"), [("power: 10", " W is the least"), ("deadline: 0.5", "max clocks take ")])
def test_a_target_that_no_plan_keeps_to_is_reported_as_impossible_with_the_nearest_possible_value(
    tmp_path: Path, target: str, words: str
) -> None:
    play = Play(small(), tmp_path, SETTINGS)
    list(play.run(20))
    play.folder.files.publish(f"{play.folder.path}/schedule.yaml", f"target: {{{target}}}\n".encode())
    last = list(play.run(8))[-1]
    assert "impossible" in last.status_text
    assert words in last.status_text
    if target.startswith("deadline"):
        full_s = float(last.status_text.split(words)[1].split(" s")[0])
        assert full_s == pytest.approx(last.full_time_s, rel=0.03)


@pytest.mark.slow
def test_a_slowdown_that_is_allowed_is_used(tmp_path: Path) -> None:
    settings = PFOSettings(scheduler="ParetoScheduler", profile_steps=4, scheduler_args={"slowdown": 1.1})
    play = Play(small(), tmp_path, settings)
    summary = summarize(play, list(play.run(60)))
    assert 1.09 < 1 + summary.slowdown < 1.103
    assert summary.energy_saved > 0.1


@pytest.mark.slow
def test_a_change_under_a_plan_is_planned_for_within_a_hundred_iterations(tmp_path: Path) -> None:
    """All of a single pipeline gets 5 % slower: the pipeline is not a straggler, but its profile is out of date."""
    play = Play(cluster(), tmp_path, SETTINGS)
    before = converged(play)[-1]
    play.cluster.episodes = [Episode(1.05, before.step + 1, 1000, 0)]
    after = list(play.run(120))[-30:]
    assert fmean(i.time_s for i in after) == pytest.approx(1.05 * before.time_s, rel=0.004)
    assert saved(after) > 0.03, "it still runs a plan, and tries others"


class BentTruth(LongTruth):
    """Stage 1 takes the longer the lower its clock is, and as long as before at the highest one."""

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        known = super().measurement(stage, instruction, mhz)
        factor = 2 - mhz / 1410 if stage == 1 else 1.0
        return replace(known, time_s=factor * known.time_s, energy_j=factor * known.energy_j)


@pytest.mark.slow
def test_a_stage_that_follows_its_clock_otherwise_than_before_makes_no_iteration_late_for_long(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    converged(play)
    play.cluster.set_truth(BentTruth(A100, STAGES, slowest_mhz=600))
    since = list(play.run(80))
    assert late(since[:10]) > 0.004, "or this test shows nothing"
    assert late(since[-10:]) < 0.004


def test_without_noise_the_waiting_power_is_found_in_the_training_itself(tmp_path: Path) -> None:
    play = Play(replace(small(), nuisances=replace(QUIET, switch_s=0.0)), tmp_path, SETTINGS)
    list(play.run(20))
    model = play.folder.read(bodies.ModelBody)
    assert model.blocking_power_w == pytest.approx(A100.blocking_power_w, rel=0.02)


# ---- what must never happen: clocks that stay low


@pytest.mark.slow
def test_a_result_that_never_comes_does_not_leave_the_clocks_that_are_tried(tmp_path: Path) -> None:
    play = Play(small(), tmp_path, SETTINGS)
    list(play.run(100, lambda iteration: iteration.number == 1))
    play.mute_ranks = {1}
    played = list(play.run(190))
    assert "rank 1 measured nothing under schedule" in played[-1].status_text
    assert late(played[-10:]) < 0.01


@pytest.mark.slow
def test_a_daemon_that_dies_while_clocks_are_measured_does_not_leave_them(tmp_path: Path) -> None:
    play = Play(small(), tmp_path, SETTINGS)
    list(play.run(50, lambda iteration: iteration.number == 1))
    play.daemon_runs = False
    assert saved(list(play.run(90))[-10:]) == pytest.approx(0.0, abs=0.005), "all at default clocks"
    play.daemon_runs = True
    play.restart_daemon()
    assert summarize(play, list(play.run(30))).energy_saved > 0.02, "another daemon goes on"


def test_a_scheduler_that_fails_leaves_the_highest_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(small(), tmp_path, SETTINGS)
    list(play.run(20, lambda iteration: iteration.number == 1))
    monkeypatch.setattr("pfo_fs.autotune.pareto_scheduler.JobModel", lambda *_: 1 / 0)
    played = list(play.run(30))
    assert "failed" in played[-1].status_text
    assert late(played[-5:]) < 0.001
    assert saved(played[-5:]) == pytest.approx(0.0, abs=0.005)


def test_gpus_whose_clocks_cannot_be_set_are_left_alone_after_one_window(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS, without_rights=set(range(64)))
    status_text = [iteration.status_text for iteration in play.run(40)]
    assert "cannot be set" in status_text[-1]
    assert play.folder.schedule_numbers() in ([0], [0, 1])


@pytest.mark.slow
def test_a_rank_without_rights_does_not_spoil_what_the_others_measure(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=2), tmp_path, SETTINGS, without_rights={1})
    last = list(play.run(50))[-8:]
    assert late(last) < 0.004
    assert saved(last) > 0.01
