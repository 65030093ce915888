"""Schedulers that react to targets and to iteration times: the calls they get, and what is recorded for a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_jobs import Job, ReactingScheduler
from jobs import make_job, rank_infos, write_step

from pfo_fs.coordination.progress import IterationTimeReader
from pfo_fs.models import PlanInputs, Straggler, Target
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.store import bodies

TARGET = "target: {slowdown: 1.1}\n"


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "while no daemon ran"])
def test_a_target_in_the_yaml_reaches_the_scheduler_which_goes_on_deciding_and_is_removed_with_it(
    job: Job, restarts: bool
) -> None:
    job.yaml("target: {power: 18000}\n")
    assert job.mhz == 1260
    source = job.current.source
    assert source is not None
    assert (source.kind, source.plan_inputs.target) == ("scheduler", Target(power=18000))
    assert job.yaml_status["state"] == "applied by the scheduler"
    assert job.yaml_status["schedule_number"] == 1
    job.yaml("straggler: 1.2\n", seconds=6)
    assert job.yaml_status["state"] == "rejected"
    (job.folder.location / "schedule.yaml").unlink()
    if restarts:
        job.restart()
    assert job.poll(8).mhz == 1410


def test_a_restart_repeats_all_calls_of_the_scheduler_in_the_same_order(job: Job) -> None:
    job.yaml("straggler: {slowdown: 1.2}\n")  # changes no clocks, but results are measured under it
    job.measure(0)
    job.yaml(TARGET)  # schedule 2, before schedule 1 was measured
    job.measure(2, time_s=2.0)
    first = list(ReactingScheduler.calls)
    straggler, target = Straggler(slowdown=1.2), Target(slowdown=1.1)
    assert first == [PlanInputs(straggler=straggler), [1.0, 1.0], PlanInputs(target=target), [2.0, 2.0]]
    job.restart()
    job.poll()
    assert ReactingScheduler.calls == first


def test_iteration_times_change_the_plan_inputs_at_once_unless_they_are_of_an_older_schedule(job: Job) -> None:
    job.iterate(7, 0, 0.5, 1.5)
    assert job.mhz == 1110
    assert job.index(1).source.plan_inputs.slow_pipelines == {1: 1.5}
    job.iterate(8, 1, 0.5, 0.5)
    assert job.mhz == 1410
    job.iterate(9, 1, 9.0, 9.0)
    assert job.mhz == 1410


def test_a_plan_for_a_straggler_needs_heartbeats_and_other_schedules_need_none(job: Job) -> None:
    said = [job.current]
    for number, span_s in enumerate((1.5, 0.5)):
        job.iterate(7 + number, number, span_s, span_s, seconds=20)
        said += [job.current, job.poll(30).current]
    assert [round(current.lease_s) for current in said] == [0, 60, 60, 0, 0]
    heartbeats = [current.heartbeat for current in said]
    assert heartbeats[1] != heartbeats[2]
    assert heartbeats[0] == heartbeats[3] == heartbeats[4] == 0
    assert job.numbers == [0, 1, 2], "a heartbeat is not a new schedule"


def test_while_a_scheduler_plans_for_long_its_schedule_gets_a_longer_lease(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plans_for_long(self: ReactingScheduler, plan_inputs: PlanInputs) -> None:
        job.clock.now += 100
        FrequencyScheduler.react(self, plan_inputs)

    monkeypatch.setattr(ReactingScheduler, "react", plans_for_long)
    job.iterate(7, 0, 1.5, 1.5, seconds=120)
    assert job.coordinator.lease[0] == pytest.approx(160, abs=1)


def test_a_coordinator_that_has_no_scheduler_yet_sends_no_heartbeat(job: Job) -> None:
    job.iterate(7, 0, 1.5, 1.5)
    assert job.coordinator.lease[1] > 0
    (job.folder.location / "ranks" / "1.json").unlink()
    job.restart()
    job.poll(10)
    assert job.coordinator.state == "waiting"
    assert job.coordinator.lease == (60.0, 0)


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


@pytest.fixture
def checking(job: Job) -> Job:
    """A job that has published schedule 1, in turns, for a check of schedule 0: once the policy has its results."""
    write_step(job.folder, 5, number=0)
    job.folder.write(bodies.CheckBody(nonce="0123456789abcdef", block=1, steps=4))
    job.poll(4)
    assert job.current.number == 0
    job.measure(0, time_s=0.0, seconds=4)  # changes no clock
    assert job.index(1).source.check == "0123456789abcdef"
    return job


def test_the_policy_gets_no_results_of_a_check_and_goes_on_with_its_schedule(checking: Job) -> None:
    calls = list(ReactingScheduler.calls)
    write_step(checking.folder, checking.index(1).until + 1, number=1)
    checking.measure(1, seconds=4)
    assert (calls, checking.current.number) == (ReactingScheduler.calls, 1)
    checking.restart()
    checking.poll(4)
    assert (calls, checking.current.number) == (ReactingScheduler.calls, 1), "so does another coordinator"


@pytest.mark.parametrize(("after", "assessed"), [(-1, False), (0, True)])
def test_iterations_of_a_check_tell_of_no_straggler_but_those_after_it_do(
    checking: Job, after: int, assessed: bool
) -> None:
    checking.iterate(checking.index(1).until + after, 1, 1.5, 1.5)
    assert (checking.current.number == 2) == assessed
