"""Schedulers that react to targets and to iteration times: the calls they get, and what is recorded for a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import ReactingScheduler, clock_mhz, coordinate, poll, say_yaml, straggle
from jobs import current_of, index_of, make_job, rank_infos, write_results, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.progress import IterationTimeReader
from pfo_fs.models import PlanInputs, Straggler, Target
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.store import JobFolder, bodies


def test_a_target_in_the_yaml_reaches_the_scheduler_which_goes_on_deciding(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    assert clock_mhz(folder) == 1410
    say_yaml(folder, "target: {power: 18000}\n")
    poll(coordinator, clock, 4)
    assert clock_mhz(folder) == 1260
    current = current_of(folder)
    assert current.source is not None
    assert current.source.kind == "scheduler"
    assert current.source.plan_inputs.target == Target(power=18000)
    status = (folder.files.root / folder.path / "schedule.status.yaml").read_text()
    assert "applied by the scheduler" in status
    assert "schedule_number: 1" in status


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "while no daemon ran"])
def test_removing_the_yaml_removes_the_target(folder: JobFolder, clock: Clock, restarts: bool) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)
    assert clock_mhz(folder) == 1260
    (folder.files.root / folder.path / "schedule.yaml").unlink()
    poll(coordinate(folder, clock) if restarts else coordinator, clock, 8)
    assert clock_mhz(folder) == 1410


def test_a_restart_repeats_all_calls_of_the_scheduler_in_the_same_order(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)  # schedule 2, before schedule 1 was measured
    write_results(folder, 2, rank_infos(1, 2), time_s=2.0)
    poll(coordinator, clock, 2)
    first = list(ReactingScheduler.calls)
    poll(coordinate(folder, clock), clock, 2)
    assert ReactingScheduler.calls == first
    assert first == [[1.0, 1.0], PlanInputs(target=Target(slowdown=1.1)), [2.0, 2.0]]


def test_plan_inputs_that_changed_no_clocks_are_replayed_if_results_were_measured_under_them(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "straggler: {slowdown: 1.2}\n")
    poll(coordinator, clock, 4)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    first = list(ReactingScheduler.calls)
    assert first == [PlanInputs(straggler=Straggler(slowdown=1.2)), [1.0, 1.0]]
    poll(coordinate(folder, clock), clock, 2)
    assert ReactingScheduler.calls == first


def test_iteration_times_of_pipelines_change_the_plan_inputs_at_once(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for rank in (0, 1):
        folder.write(bodies.IterationTimesBody(rank=rank, steps=[(7, 0, 0.5 + rank)]))
    write_step(folder, 7, number=0)
    poll(coordinator, clock, 12)
    assert clock_mhz(folder) == 1110
    index = index_of(folder, 1)
    assert index.source.plan_inputs.slow_pipelines == {1: 1.5}


def test_a_plan_for_a_straggler_needs_heartbeats_and_other_schedules_need_none(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    said = [folder.read(bodies.CurrentBody)]
    for number, span_s in enumerate((1.5, 0.5)):
        for rank in (0, 1):
            folder.write(bodies.IterationTimesBody(rank=rank, steps=[(7 + number, number, span_s)]))
        write_step(folder, 7 + number, number=number)
        for seconds in (20, 30):
            poll(coordinator, clock, seconds)
            said.append(folder.read(bodies.CurrentBody))
    assert [round(current.lease_s) for current in said if current] == [0, 60, 60, 0, 0]
    heartbeats = [current.heartbeat for current in said if current]
    assert heartbeats[1] != heartbeats[2]
    assert heartbeats[0] == heartbeats[3] == heartbeats[4] == 0
    assert folder.schedule_numbers() == [0, 1, 2], "a heartbeat is not a new schedule"


def test_while_a_scheduler_plans_for_long_its_schedule_gets_a_longer_lease(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plans_for_long(self: ReactingScheduler, plan_inputs: PlanInputs) -> None:
        clock.now += 100
        FrequencyScheduler.react(self, plan_inputs)

    monkeypatch.setattr(ReactingScheduler, "react", plans_for_long)
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    straggle(folder)
    poll(coordinator, clock, 120)
    assert coordinator.lease[0] == pytest.approx(160, abs=1)


def test_a_coordinator_that_has_no_scheduler_yet_sends_no_heartbeat(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    straggle(folder)
    poll(coordinator, clock, 10)
    assert coordinator.lease[1] > 0
    (folder.files.root / folder.path / "ranks" / "1.json").unlink()
    another = coordinate(folder, clock)
    poll(another, clock, 10)
    assert another.state == "waiting"
    assert another.lease == (60.0, 0)


def test_a_straggler_in_a_pipeline_that_is_not_there_is_refused(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "straggler: {slowdown: 1.2, pipeline: 2}\n")
    poll(coordinator, clock, 4)
    current = current_of(folder)
    assert "there is no pipeline 2; the job has pipelines 0 to 1" in current.yaml_problem
    assert "rejected" in (folder.files.root / folder.path / "schedule.status.yaml").read_text()


def test_a_refused_yaml_is_not_reported_as_applied_after_a_good_one(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)
    status = folder.files.root / folder.path / "schedule.status.yaml"
    assert "applied" in status.read_text()
    say_yaml(folder, "straggler: 1.2\n")
    poll(coordinator, clock, 6)
    assert "rejected" in status.read_text()


def test_iterations_under_an_older_schedule_do_not_count(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2))
    poll(coordinator, clock, 2)
    folder.write(bodies.IterationTimesBody(rank=0, steps=[(7, 0, 9.0)]))
    poll(coordinator, clock, 12)
    assert clock_mhz(folder) == 1395


def test_an_iteration_is_handed_on_once_and_throttling_goes_with_its_pipeline(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 2, 2)
    infos = {info.rank: info for info in rank_infos(2, 2)}
    reader = IterationTimeReader(folder)
    folder.write(bodies.IterationTimesBody(rank=0, steps=[(3, 0, 1.0), (4, 0, 1.1)]))
    folder.write(bodies.IterationTimesBody(rank=1, steps=[(4, 0, 1.2)]))
    folder.write(bodies.IterationTimesBody(rank=3, steps=[], throttled="thermal slowdown"))
    first = reader.read(100.0, infos, 1.0)
    assert [(one.pipeline, one.step, one.span_s) for one in first] == [(0, 3, 1.0), (0, 4, 1.1), (1, 4, 1.2)]
    assert [one.throttled for one in first] == ["", "", "rank 3: thermal slowdown"]
    assert reader.read(200.0, infos, 1.0) == []
    folder.write(bodies.IterationTimesBody(rank=0, steps=[(4, 0, 1.1), (5, 0, 1.0)]))
    assert [one.step for one in reader.read(300.0, infos, 1.0)] == [5]


def checking(folder: JobFolder, clock: Clock) -> Coordinator:
    """A coordinator that has published schedule 1, in turns, for a check of schedule 0."""
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=0.0)  # changes no clock
    write_step(folder, 5, number=0)
    poll(coordinator, clock, 2)
    folder.write(bodies.CheckBody(nonce="0123456789abcdef", block=1, steps=4))
    poll(coordinator, clock, 2)
    assert index_of(folder, 1).source.check == "0123456789abcdef"
    return coordinator


def test_the_policy_gets_no_results_of_a_check_and_goes_on_with_its_schedule(folder: JobFolder, clock: Clock) -> None:
    coordinator = checking(folder, clock)
    calls = list(ReactingScheduler.calls)
    write_results(folder, 1, rank_infos(1, 2), time_s=1.0)
    write_step(folder, index_of(folder, 1).until + 1, number=1)
    poll(coordinator, clock, 4)
    assert (calls, current_of(folder).number) == (ReactingScheduler.calls, 1)
    poll(coordinate(folder, clock), clock, 4)
    assert (calls, current_of(folder).number) == (ReactingScheduler.calls, 1), "so does another coordinator"


@pytest.mark.parametrize(("after", "assessed"), [(-1, False), (0, True)])
def test_iterations_of_a_check_tell_of_no_straggler_but_those_after_it_do(
    folder: JobFolder, clock: Clock, after: int, assessed: bool
) -> None:
    coordinator = checking(folder, clock)
    step = index_of(folder, 1).until + after
    for rank in (0, 1):
        folder.write(bodies.IterationTimesBody(rank=rank, steps=[(step, 1, 1.5)]))
    write_step(folder, step, number=1)
    poll(coordinator, clock, 12)
    assert (current_of(folder).number == 2) == assessed


def test_a_policy_that_waits_for_results_is_not_disturbed_by_a_check(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_step(folder, 5, number=0)
    folder.write(bodies.CheckBody(nonce="0123456789abcdef", block=1, steps=4))
    poll(coordinator, clock, 4)
    assert current_of(folder).number == 0
    write_results(folder, 0, rank_infos(1, 2), time_s=0.0)
    poll(coordinator, clock, 4)
    assert current_of(folder).number == 1
