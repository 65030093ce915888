"""Plan inputs: the calls that schedulers get, also after a restart; how often hosts poll, and when schedules start."""

from itertools import pairwise
from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import Job, ReactingScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import make_job, rank_infos, write_step

from pfo_fs.coordination.progress import CALM_AFTER_S, IterationTimeReader, PollPace
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import ScheduleFound
from pfo_fs.helper.watches import ScheduleWatch
from pfo_fs.models import PlanInputs, Straggler, Target
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.store import JobFolder, bodies


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "while no daemon ran"])
def test_a_target_in_the_yaml_reaches_the_scheduler_and_is_removed_with_it(job: Job, restarts: bool) -> None:
    job.yaml("target: {power: 18000}\n")
    assert job.mhz == 1260
    source = job.current.source
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
    job.yaml("target: {slowdown: 1.1}\n")  # schedule 2, before schedule 1 was measured
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


def test_a_scheduler_that_plans_for_long_gets_a_longer_lease(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_iterations_of_a_check_tell_of_no_straggler_later_ones_do(checking: Job, after: int, assessed: bool) -> None:
    checking.iterate(checking.index(1).until + after, 1, 1.5, 1.5)
    assert (checking.current.number == 2) == assessed


REMOTE = {"lead_s": 5.0, "remote": True}


def edit(job: Job) -> float:
    """A person asks for another clock; returns when."""
    job.tell_orders()
    job.yaml("all: 1200\n", seconds=0)
    return job.clock.now


@pytest.mark.parametrize("restarts", [False, True], ids=["the same daemon", "another daemon"])
def test_calm_hosts_poll_rarely_and_a_schedule_waits_for_them(folder: JobFolder, clock: Clock, restarts: bool) -> None:
    job = Job(folder, clock, scheduler="Manual", around=REMOTE)
    assert job.steps(10).poll_s == 0
    assert job.steps(int(CALM_AFTER_S)).poll_s == 10
    assert job.coordinator.poll() == 10
    edited_at = edit(job)
    if restarts:
        job.restart("Manual", REMOTE)
    current = job.steps(4)
    assert (current.number, current.poll_s) == (1, 0)
    assert current.start_step >= edited_at + 15


def test_a_user_who_sets_the_interval_gets_it(folder: JobFolder, clock: Clock) -> None:
    job = Job(folder, clock, scheduler="Manual", around=REMOTE, poll_interval=1)
    assert job.steps(2 * int(CALM_AFTER_S)).poll_s == 0
    watch = ScheduleWatch(0.5, Around())
    watch.learn(ScheduleFound(current(poll_s=10.0)))
    assert watch.interval_s(False) == 0.5


def current(poll_s: float) -> bodies.CurrentBody:
    return bodies.CurrentBody(generation=1, number=0, state="running", poll_s=poll_s)


@settings(max_examples=50)
@given(st.integers(1, 1_000_000), st.booleans(), st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=20))
def test_hosts_poll_within_a_schedules_lead(world_size: int, remote: bool, course: list[tuple[float, bool]]) -> None:
    """A host that polled just before the schedule was written polls again after the pace that it knew then."""
    pace, now = PollPace(1.0, remote=remote, adapts=True, now=0.0), 0.0
    known: list[tuple[float, float]] = [(0.0, 0.0)]  # (since when, poll_s)
    for seconds, changes in course:
        now += seconds
        if changes:
            pace.changed(now)
        pace.update(now, world_size)
        known.append((now, pace.poll_s))
        current(pace.poll_s)  # it fits into the record
        # Hosts that polled before the last change of the pace still follow the one before it.
        still = [then for (_, then), (since, _) in pairwise(known) if now - since <= 1.2 * then]
        assert pace.lead_s(now) >= 1.2 * max([pace.poll_s, *still])


@pytest.mark.parametrize("poll_s", [0.25, 2.0, 60.0])
def test_a_schedule_starts_when_the_host_that_polls_least_has_it(tmp_path: Path, clock: Clock, poll_s: float) -> None:
    """The daemon may run on the file server, where the directory lies on a local disk, or hosts have a setting."""
    folder = make_job(tmp_path, 1, 2)
    first, second = rank_infos(1, 2)
    folder.register_ranks([bodies.RankBody(rank_info=first, nonce="a", poll_s=0.25)])
    folder.register_ranks([bodies.RankBody(rank_info=second, nonce="b", poll_s=poll_s)])
    job = Job(folder, clock, scheduler="Manual", around={"lead_s": 1.0})
    job.steps(10)
    edited_at = edit(job)
    current = job.steps(5)
    assert current.number == 1
    assert current.start_step >= edited_at + max(1.0, 1.2 * poll_s)


def test_a_helper_polls_as_rarely_as_it_is_asked_to() -> None:
    watch = ScheduleWatch(None, Around(lambda: 100.0))
    watch.learn(ScheduleFound(current(poll_s=10.0)))
    watch.polled()
    assert 108.0 <= watch.due_s() <= 112.0
