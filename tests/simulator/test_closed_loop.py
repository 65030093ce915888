"""The real scheduler, planner, coordinator, store and meter on a cluster in virtual time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from simulated_jobs import converged

from pfo_fs.autotune import pareto_scheduler
from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.device.physics import A40, A100
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.planner import Measurement, make_pipeline
from pfo_fs.scheduler import IterationTime
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import QUIET, Cluster, Episode, Iteration, ModelTruth, Nuisances, Play, summarize
from pfo_fs.simulator.job_generator import generated_job
from pfo_fs.simulator.summary import first_place_of

pytestmark = pytest.mark.timeout(300)
"""Whole jobs: with coverage, on a busy host, some take more than two minutes."""
STAGES, MICROBATCHES = 4, 24
SETTINGS = PFOSettings(scheduler="ParetoScheduler", profile_steps=4)


def cluster(seed: int = 0, pipelines: int = 1, episodes: list[Episode] | None = None, **nuisances: float) -> Cluster:
    return Cluster(
        make_pipeline("1f1b", STAGES, MICROBATCHES),
        ModelTruth(A100, STAGES, slowest_mhz=600),
        replace(Nuisances(), **nuisances),
        pipelines,
        episodes or (),
        seed,
    )


class Planned(NamedTuple):
    """A job that was played until its plan stayed, for several tests: none plays it on, or changes its directory."""

    directory: Path
    play: Play
    played: list[Iteration]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    directory = tmp_path_factory.mktemp("planned")
    play = Play(cluster(), directory, SETTINGS)
    return Planned(directory, play, converged(play))


@pytest.fixture
def known_profile(planned: Planned, tmp_path: Path) -> Path:
    """The profile that a job of this kind has left in the directory `tmp_path`."""
    shutil.copytree(planned.directory, tmp_path, dirs_exist_ok=True)
    return next((tmp_path / "profiles").rglob("*.csv"))


def schedules_of(play: Play) -> list[list[dict[int, object]]]:
    return [play.schedules_of(number) for number in play.folder.schedule_numbers()]  # type: ignore[misc]


def test_an_unknown_job_gets_a_plan_that_saves_energy_and_costs_no_time(planned: Planned) -> None:
    summary = summarize(planned.play, planned.played)
    assert summary.energy_saved > 0.05
    assert summary.slowdown < 0.002


@pytest.mark.slow
def test_clocks_that_act_at_once_are_not_taken_to_be_late_however_long_a_job_runs(tmp_path: Path) -> None:
    job = generated_job(280065)  # short instructions that scatter by 2 %
    play = Play(job.cluster(1), tmp_path, PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    played = list(play.run(1500))
    (schedules,) = play.schedules_of(played[-1].number)
    assert all(
        play.cluster.settle_s(0, rank, mhz) < 0.003
        for rank, frequencies in schedules.items()
        for mhz in {mhz for _, mhz in frequencies}
    )


def test_on_gpus_that_offer_few_clocks_windows_go_below_the_second_highest_one(tmp_path: Path) -> None:
    job = generated_job(300219)  # stages of equal length: with all at the third clock, iterations are 18 % longer
    clocks_mhz = sorted(job.truth.clocks_mhz, reverse=True)
    play = Play(job.cluster(1), tmp_path, SETTINGS)
    for _ in play.run(32):
        pass
    numbers = play.folder.schedule_numbers()
    orders = [order for number in numbers for plan in play.schedules_of(number) for order in plan.values()]
    assert clocks_mhz[2] in {mhz for order in orders for _, mhz in order}


@pytest.mark.slow
def test_a_schedule_whose_first_stage_does_not_end_last_keeps_its_first_good_plan(tmp_path: Path) -> None:
    pipeline = make_pipeline("zb-h1", STAGES, 8)
    play = Play(Cluster(pipeline, ModelTruth(A100, STAGES, slowest_mhz=600), seed=1), tmp_path, SETTINGS)
    summary = summarize(play, converged(play, 160))
    assert summary.settled_at is not None
    assert summary.deployed_at is not None
    assert summary.settled_at <= 120
    assert summary.energy_saved > 0.05


@pytest.mark.parametrize(
    ("numbers", "place"), [([3, 3, 5, 5, 7, 7], 2), ([3, 5, 7, 7, 9], 1), ([5, 3, 7], 2), ([7], 0)]
)
def test_a_plan_that_comes_back_after_measuring_is_the_same_plan(numbers: list[int], place: int) -> None:
    plans = {3: "one", 5: "another", 7: "another", 9: "for a straggler"}
    assert first_place_of(7, numbers, plans) == place


@pytest.mark.slow
def test_a_window_for_measuring_is_not_taken_for_the_plan_however_long_it_was(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, play, played = planned
    plan = play.first_plan
    monkeypatch.setattr(play, "first_plan", 1)  # as if all later windows had come after a plan
    begun = next(at for at, iteration in enumerate(played) if iteration.number == plan)
    summary = summarize(play, played[: begun + 2])
    assert summary.settled_at == played[begun].step
    assert summary.profiling_steps == begun
    assert summary.energy_saved == summarize(play, played[: begun + 4]).energy_saved > 0.05


@pytest.mark.slow
def test_a_daemon_that_is_restarted_under_every_schedule_makes_the_same_schedules(tmp_path: Path) -> None:
    steady, shaken = (Play(cluster(), tmp_path / name, SETTINGS) for name in ("steady", "shaken"))
    begun = number = 0
    for iteration in shaken.run(40):
        if iteration.number != number:
            begun, number = iteration.step, iteration.number
        # Not when a schedule is due: that of a new daemon starts later, since the progress that it finds may be old.
        if iteration.step == begun + 2:
            shaken.restart_daemon()
    for _ in steady.run(40):
        pass
    assert len(schedules_of(steady)) > 5
    assert schedules_of(shaken) == schedules_of(steady)


@pytest.mark.slow
def test_training_that_is_restarted_goes_on_with_the_profile_that_was_begun(tmp_path: Path) -> None:
    first = Play(cluster(0), tmp_path, SETTINGS)
    for _ in first.run(24):
        pass
    begun = next((tmp_path / "profiles").rglob("*.csv")).read_text()
    second, fresh = Play(cluster(1), tmp_path, SETTINGS), Play(cluster(1), tmp_path / "elsewhere", SETTINGS)
    assert len(begun.splitlines()) > 20
    for play in (second, fresh):
        converged(play)
    assert second.first_plan is not None
    assert fresh.first_plan is not None
    assert second.first_plan < fresh.first_plan


@pytest.mark.slow
@pytest.mark.usefixtures("known_profile")
def test_a_job_of_a_known_kind_is_planned_after_two_windows(tmp_path: Path) -> None:
    again = Play(cluster(1), tmp_path, SETTINGS)
    summary = summarize(again, converged(again))
    assert again.first_plan == 2, "one window to warm up, one at the highest clocks"
    assert summary.energy_saved > 0.05
    assert summary.slowdown < 0.002


@pytest.mark.slow
def test_a_profile_that_does_not_agree_with_the_job_is_not_believed(
    tmp_path: Path, known_profile: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [line.split(",") for line in known_profile.read_text().splitlines()]
    for row in rows[1:]:
        row[3] = str(float(row[3]) * 1.2)
    known_profile.write_text("\n".join(",".join(row) for row in rows) + "\n")
    other = Play(cluster(1), tmp_path, SETTINGS)
    converged(other)
    assert other.first_plan is not None
    assert other.first_plan > 2
    assert "does not agree" in caplog.text


@pytest.mark.slow
def test_a_plan_has_room_for_durations_that_scatter(tmp_path: Path) -> None:
    """Full speed has room for that everywhere; a plan that used all of it would be late by half a percent."""
    play = Play(cluster(seed=1, time_jitter=0.03), tmp_path, SETTINGS)
    played = converged(play, 150)

    def mean_s(number: int | None) -> float:
        return fmean(i.time_s for i in played if i.number == number)

    assert mean_s(play.first_plan) < 1.004 * mean_s(1)
    assert mean_s(played[-1].number) < 1.004 * mean_s(1)
    assert summarize(play, played).energy_saved > 0.01


@pytest.mark.slow
def test_a_straggler_is_followed_within_five_iterations_and_let_go_within_two(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=4, episodes=[Episode(1.2, 90, 130, 2)]), tmp_path, SETTINGS)
    played = list(play.run(150))
    (episode,) = summarize(play, played).episodes
    assert episode.followed_after is not None
    assert episode.followed_after <= 5
    assert episode.back_after is not None
    assert episode.back_after <= 2
    before = [i for i in played if 80 <= i.step < 90]
    during = [i for i in played if 100 <= i.step < 130]
    blind = [i for i in played if i.step == 90]
    assert during[0].energy_j < 0.95 * blind[0].energy_j
    slowest = 1.2 * max(i.time_s for i in before)
    assert max(i.time_s for i in during) < 1.003 * slowest, "no pipeline waits longer than for the straggler"


@pytest.mark.slow
def test_a_straggler_that_a_person_announces_slows_the_others_down(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=2), tmp_path, SETTINGS)
    before = converged(play)[-1]
    play.folder.files.publish(f"{play.folder.path}/schedule.yaml", b"straggler: {slowdown: 1.15, pipeline: 1}\n")
    after = list(play.run(8))[-1]
    assert after.spans_s[0] == pytest.approx(1.15 * before.spans_s[0], rel=0.01)
    assert after.spans_s[1] == pytest.approx(before.spans_s[1], rel=0.01)
    (tmp_path / play.folder.path / "schedule.yaml").unlink()
    later = list(play.run(12))[-1]
    assert later.spans_s[0] == pytest.approx(before.spans_s[0], rel=0.005)


@pytest.mark.slow
def test_a_power_cap_in_schedule_yaml_is_kept(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    before = converged(play)[-1]
    cap_w = 0.85 * before.energy_j / before.time_s
    play.folder.files.publish(f"{play.folder.path}/schedule.yaml", f"target: {{power: {cap_w}}}\n".encode())
    after = list(play.run(60))[-1]
    assert after.energy_j / after.time_s == pytest.approx(cap_w, rel=0.015)
    assert after.time_s > before.time_s


@pytest.mark.slow
def test_a_window_that_something_else_disturbed_is_measured_again_and_no_correction_is_made(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    for iteration in play.run(120, lambda iteration: iteration.number == play.first_plan):
        began = iteration.step
    play.cluster.episodes = [Episode(1.9, began + 2, began + 4)]
    played = list(play.run(100))
    assert not any("measuring at the highest clocks" in iteration.status_text for iteration in played)
    assert "does not deliver" not in played[-1].status_text
    summary = summarize(play, played)
    assert summary.slowdown < 0.003
    assert summary.energy_saved > 0.05


@pytest.mark.slow
def test_measuring_again_lifts_the_corrections_of_earlier_plans(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    before = converged(play)[-1]
    scheduler = play.coordinator.scheduler
    assert isinstance(scheduler, ParetoScheduler)
    scheduler._selection.corrections.full_speed_only, scheduler._selection.corrections.time_margin = True, 0.2
    scheduler.react(
        scheduler.plan_inputs.model_copy(update={"remeasure_epoch": scheduler.plan_inputs.remeasure_epoch + 1})
    )
    after = list(play.run(20))[-1]
    assert after.energy_j < 1.01 * before.energy_j


@pytest.mark.slow
def test_a_plan_that_stays_is_measured_again_if_its_iterations_turn_out_to_miss_the_target(planned: Planned) -> None:
    number = planned.played[-1].number
    scheduler = planned.play.coordinator.scheduler
    assert isinstance(scheduler, ParetoScheduler)
    before, late_s = scheduler.plan_inputs, 1.01 * scheduler._selection.target_s()
    for step in range(1000, 3000):
        inputs = scheduler.assess([IterationTime(0, step, number, late_s)])
        if inputs != before:
            break
    assert inputs.remeasure_epoch == before.remeasure_epoch + 1
    assert inputs.late_time is not None
    assert inputs.late_time.time_s == pytest.approx(late_s, rel=0.001)


@pytest.mark.slow
def test_a_target_that_no_plan_keeps_to_is_reported_as_impossible_with_the_nearest_possible_value(
    tmp_path: Path,
) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    full_s = converged(play)[-1].time_s
    for text, words in (("power: 10", " W is the least"), ("deadline: 0.5", "the highest clocks take ")):
        play.folder.files.publish(f"{play.folder.path}/schedule.yaml", f"target: {{{text}}}\n".encode())
        status_text = list(play.run(12))[-1].status_text
        assert "impossible" in status_text
        assert words in status_text
    assert float(status_text.split(words)[1].split(" s")[0]) == pytest.approx(full_s, rel=0.03)


@pytest.mark.slow
def test_a_slowdown_that_is_allowed_is_used(tmp_path: Path) -> None:
    settings = PFOSettings(scheduler="ParetoScheduler", profile_steps=4, scheduler_args={"slowdown": 1.1})
    play = Play(cluster(), tmp_path, settings)
    summary = summarize(play, converged(play))
    assert 1.09 < 1 + summary.slowdown < 1.103
    assert summary.energy_saved > 0.1


@pytest.mark.slow
def test_where_gpus_are_said_to_stand_still_at_changes_a_search_finds_a_better_plan_meanwhile(tmp_path: Path) -> None:
    settings = PFOSettings(scheduler="ParetoScheduler", profile_steps=4, scheduler_args={"switch_time": 0.01})
    play = Play(cluster(), tmp_path, settings)
    played = converged(play)
    assert any("a longer search has found a plan" in iteration.status_text for iteration in played)
    summary = summarize(play, played)
    assert summary.energy_saved > 0.05
    assert summary.slowdown < 0.002


@pytest.mark.slow
def test_instructions_that_take_longer_than_before_are_planned_for_anew(tmp_path: Path) -> None:
    """All of a single pipeline gets 8 % slower: the pipeline is not a straggler, but its profile is out of date."""
    play = Play(cluster(episodes=[Episode(1.08, 80, 1000, 0)]), tmp_path, SETTINGS)
    played = list(play.run(170))
    before = next(i for i in played if i.step == 79)
    after = played[-1]
    current = play.folder.read_current()
    assert current is not None
    assert current.converged
    assert after.time_s == pytest.approx(1.08 * before.time_s, rel=0.004)
    assert after.energy_j < 1.02 * 1.08 * before.energy_j, "it still runs a plan"


class JaggedTruth(ModelTruth):
    """Instructions take 4 % longer at every second clock, as no curve through the others would tell."""

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        known = super().measurement(stage, instruction, mhz)
        factor = 1.04 if mhz // 15 % 2 else 1.0
        return replace(known, time_s=factor * known.time_s, energy_j=factor * known.energy_j)


@pytest.mark.slow
def test_a_planned_clock_that_was_interpolated_too_fast_is_measured_with_the_plan_and_nothing_is_profiled_anew(
    tmp_path: Path,
) -> None:
    def job(seed: int) -> Play:
        pipeline = make_pipeline("1f1b", STAGES, MICROBATCHES)
        gpus = Cluster(pipeline, JaggedTruth(A100, STAGES, slowest_mhz=600), seed=seed)
        return Play(gpus, tmp_path, SETTINGS)

    converged(job(0))
    path = next((tmp_path / "profiles").rglob("*.csv"))
    head, *rows = path.read_text().splitlines()
    smooth = [row for row in rows if int(row.split(",")[2]) // 15 % 2 == 0]
    path.write_text("\n".join([head, *smooth]) + "\n")
    play = job(1)
    played = list(play.run(120))
    assert play.first_plan is not None
    after = [i for i in played if i.number >= play.first_plan]
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert after[0].time_s > 1.01 * full_s, "or this test shows nothing"
    # The first profile may still get its window of the clocks on which the plan depends most.
    assert not any("measuring at" in i.status_text or i.status_text == "profiling" for i in after)
    assert summarize(play, played).slowdown < 0.004


@pytest.mark.slow
def test_a_gpu_that_is_throttled_a_little_for_minutes_is_followed_as_a_straggler(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=4, episodes=[Episode(1.05, 100, 140, 1)]), tmp_path, SETTINGS)
    played = list(play.run(150))
    (episode,) = summarize(play, played).episodes
    assert episode.followed_after is not None
    assert episode.followed_after <= 5
    assert episode.back_after is not None
    assert not any("measuring at" in i.status_text for i in played if i.step >= 100)


@pytest.mark.slow
def test_a_change_under_a_plan_is_found_confirmed_and_planned_for_within_forty_iterations(tmp_path: Path) -> None:
    play = Play(cluster(episodes=[Episode(1.05, 115, 1000, 0)]), tmp_path, SETTINGS)
    played = list(play.run(170))
    before = next(i for i in played if i.step == 114)
    windows = [i.step for i in played if i.step >= 115 and "measuring at the highest clocks" in i.status_text]
    assert windows
    assert windows[-1] <= 155
    assert len(windows) < 10, "one window, and no sweep"
    assert not any(i.status_text.startswith("profiling") for i in played if i.step >= 115)
    assert played[-1].time_s == pytest.approx(1.05 * before.time_s, rel=0.004)
    assert played[-1].energy_j < 1.02 * 1.05 * before.energy_j, "it still runs a plan"


class BentTruth(ModelTruth):
    """Stage 1 takes the longer the lower its clock is, and as long as before at the highest one."""

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        known = super().measurement(stage, instruction, mhz)
        factor = 2 - mhz / 1410 if stage == 1 else 1.0
        return replace(known, time_s=factor * known.time_s, energy_j=factor * known.energy_j)


def bent(tmp_path: Path, max_profiling_share: float) -> tuple[Play, list[Iteration]]:
    """A job of which a stage changes while its plan is in force; the iterations since."""
    settings = SETTINGS.model_copy(update={"scheduler_args": {"max_profiling_share": max_profiling_share}})
    play = Play(cluster(), tmp_path, settings)
    converged(play)
    for _ in play.run(30):
        pass
    play.cluster.set_truth(BentTruth(A100, STAGES, slowest_mhz=600))
    return play, list(play.run(120))


@pytest.mark.slow
def test_only_the_stage_that_has_changed_is_profiled_again(tmp_path: Path) -> None:
    play, since = bent(tmp_path, 1.0)
    profiled = set()
    for number in {i.number for i in since}:
        index = play.folder.read_index(number)
        assert index is not None
        if index.steps:  # it only measures
            (by_rank,) = play.schedules_of(number)
            profiled |= {rank for rank, clocks in by_rank.items() if {mhz for _, mhz in clocks} != {1410}}
    assert profiled == {1}


@pytest.mark.slow
def test_profiling_again_waits_for_its_budget_and_the_plan_is_corrected_meanwhile(tmp_path: Path) -> None:
    play, since = bent(tmp_path, 0.006)
    assert any("ward of stage 1 +" in i.status_text for i in since), "or nothing was found"
    assert not any(i.status_text.startswith("profiling") for i in since)
    assert "profiling took" in since[-1].status_text
    full_s = summarize(play, since).full_time_s
    assert fmean(i.time_s for i in since[-10:]) < 1.004 * full_s


@pytest.mark.slow
def test_without_noise_the_waiting_power_is_found_in_the_training_itself(tmp_path: Path) -> None:
    play = Play(replace(cluster(), nuisances=replace(QUIET, switch_s=0.0)), tmp_path, SETTINGS)
    converged(play)
    model = play.folder.read_model()
    assert model is not None
    assert model.blocking_power_w == pytest.approx(A100.blocking_power_w, rel=0.02)


def test_schedules_of_a_played_job_are_what_a_real_rank_would_read(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    for _ in play.run(20):
        pass
    index = play.folder.read_index(1)
    rank = play.folder.read_rank(2)
    assert index is not None
    assert rank is not None
    schedule = play.folder.read_schedule(index, rank.rank_info)
    assert isinstance(schedule, FrequencySchedule)
    assert len(schedule.frequencies) == 2 * MICROBATCHES
    assert json.loads((tmp_path / play.folder.path / "job.json").read_text())["kind"] == "job"


# ---- what must never happen: clocks that stay low


def test_a_result_that_never_comes_does_not_leave_the_clocks_of_a_sweep(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    played = []
    for iteration in play.run(240):
        played.append(iteration)
        if iteration.number == 3:
            play.mute_ranks = {2}
    assert max(i.number for i in played) == 5, "it was measured three times"
    assert "rank 2 measured nothing under schedule 5, nor when it was repeated" in played[-1].status_text
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert max(i.time_s for i in played) > 1.05 * full_s
    assert played[-1].time_s == pytest.approx(full_s, rel=0.01)


@pytest.mark.slow
def test_a_daemon_that_dies_in_mid_sweep_does_not_leave_the_clocks_of_the_sweep(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    played = []
    for iteration in play.run(160):
        played.append(iteration)
        play.daemon_runs = iteration.number < 3
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert played[-1].time_s == pytest.approx(full_s, rel=0.01)
    play.daemon_runs = True
    play.restart_daemon()
    assert summarize(play, converged(play)).slowdown < 0.002, "another daemon continues the sweep"


def test_a_scheduler_that_fails_leaves_the_highest_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    played = []
    for iteration in play.run(60):
        played.append(iteration)
        if iteration.number == 3:
            monkeypatch.setattr("pfo_fs.autotune.pareto_scheduler.build_model", lambda *_: 1 / 0)
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert "failed" in played[-1].status_text
    assert played[-1].time_s == pytest.approx(full_s, rel=0.01)


def test_gpus_whose_clocks_cannot_be_set_are_left_alone_after_one_window(tmp_path: Path) -> None:
    play = Play(cluster(), tmp_path, SETTINGS, offers_clocks=False)
    status_text = [iteration.status_text for iteration in play.run(40)]
    assert "cannot be set" in status_text[-1]
    assert play.folder.schedule_numbers() in ([0], [0, 1])


@pytest.mark.slow
def test_a_known_profile_that_is_wrong_at_low_clocks_does_not_make_training_slower(
    tmp_path: Path, known_profile: Path
) -> None:
    """The profile comes from GPUs with another cooling or firmware, or was changed on purpose."""
    rows = [line.split(",") for line in known_profile.read_text().splitlines()]
    for row in rows[1:]:
        if row[2] != "1410":
            row[3] = str(float(row[3]) / 1.5)
    known_profile.write_text("\n".join(",".join(row) for row in rows) + "\n")
    play = Play(cluster(1), tmp_path, SETTINGS)
    played = list(play.run(200))
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert played[-1].time_s < 1.004 * full_s


@pytest.mark.slow
def test_a_target_that_moves_while_there_is_a_straggler_does_not_keep_its_pace_for_ever(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=2, episodes=[Episode(1.3, 90, 150, 1)]), tmp_path, SETTINGS)
    played = []
    for iteration in play.run(200):
        played.append(iteration)
        if iteration.step == 110:
            play.folder.files.publish(f"{play.folder.path}/schedule.yaml", b"target: {slowdown: 1.02}\n")
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert played[-1].time_s < 1.03 * full_s


@pytest.mark.slow
def test_a_rank_without_rights_does_not_spoil_what_the_others_measure(tmp_path: Path) -> None:
    play = Play(cluster(pipelines=2), tmp_path, SETTINGS, without_rights={1})
    played = list(play.run(120))
    full_s = fmean(i.time_s for i in played if i.number == 1)
    assert played[-1].time_s < 1.004 * full_s
    assert played[-1].energy_j < fmean(i.energy_j for i in played if i.number == 1)


@pytest.mark.slow
def test_gpus_that_run_into_their_power_limit_save_energy_all_the_same(tmp_path: Path) -> None:
    """An A40 runs at 1,440 MHz at every higher clock that is set: clocks of the same time and energy count as one."""
    gpus = Cluster(make_pipeline("1f1b", STAGES, 12), ModelTruth(A40, STAGES, slowest_mhz=600))
    play = Play(gpus, tmp_path, SETTINGS)
    summary = summarize(play, converged(play))
    assert summary.energy_saved > 0.05
    assert summary.slowdown < 0.002


@pytest.mark.slow
def test_a_plan_whose_first_windows_brought_nothing_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(cluster(), tmp_path, SETTINGS)
    usual = pareto_scheduler.measured_results
    lost: list[int] = []

    def without_the_first_stage(results: Sequence[ProfilingResult]) -> list[ProfilingResult]:
        found = usual(results)
        if play.first_plan is None or len(lost) == 3:
            return found
        lost.append(1)
        return [result for result in found if result.rank]

    monkeypatch.setattr(pareto_scheduler, "measured_results", without_the_first_stage)
    played = list(play.run(90))
    assert lost
    assert any("nothing was measured on the first stage" in iteration.status_text for iteration in played)
    assert "measured: " in played[-1].status_text
