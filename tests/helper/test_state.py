"""Single decisions of the helper's state."""

import errno
from typing import Any

import helper_host
import pytest
from helper_host import Helper
from jobs import rank_infos

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.helper import operations as op
from pfo_fs.helper.job import StartCoordinator
from pfo_fs.helper.write_queue import MAX_WAITING
from pfo_fs.ipc import messages as m
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.store import bodies

INFOS = rank_infos(1)
SAVE = m.SaveProfile(path="/p", content=b"", replace=True)


def joining(rank: int = 0, coordination: str = "local") -> m.JoinJob:
    return helper_host.joining({"job_id": "job", "coordination": coordination}, rank_infos(2)[rank])


def registered(coordination: str = "local") -> Helper:
    """A helper whose only rank has joined."""
    helper = Helper()
    registration, *_ = helper.hears(0, joining(0, coordination))
    helper.done(registration, op.RanksRegistered())
    helper.told()
    return helper


def test_a_helper_that_replaces_another_schedules_only_after_the_jobs_folder_is_open() -> None:
    helper = Helper()
    (registration,) = helper.hears(0, joining())
    helper.hears(0, m.AllRanks(rank_infos=[INFOS[0].model_dump()]))
    assert helper.coordinated == []
    helper.done(registration, op.RanksRegistered())
    assert helper.coordinated == [StartCoordinator(tuple(INFOS))]


def test_ranks_that_join_together_register_in_one_file_and_the_first_poll_comes_after_that() -> None:
    helper = Helper(0, 1)
    run: list[Any] = [operation for rank in (0, 1) for operation in helper.hears(rank, joining(rank, "daemon"))]
    assert [type(operation) for operation in run] == [op.RegisterRanks, op.PollSchedule]
    assert [body.rank_info for body in run[0].ranks] == rank_infos(2)


def test_a_rank_registers_soon_although_another_one_of_its_host_does_not_join() -> None:
    helper = Helper(0, 1)
    helper.hears(0, joining(0, "daemon"))
    assert helper.state.next_wake_s() < 1.0
    assert any(isinstance(operation, op.RegisterRanks) for operation in helper.passes(helper.state.next_wake_s()))


def test_a_gpu_that_a_dead_clock_process_has_left_is_owed_until_it_is_reset_and_only_then_said_to_be_reset() -> None:
    helper, gpu, told = registered(), m.GpuToReset("nvml:GPU-3"), []
    helper.hears(7, m.Hello(rank=0, role="clocks", token="token", gpu=gpu))
    helper.state.client_gone(7)
    for attempts, problem in enumerate(("the driver is away", "the driver is still away", ""), 1):
        (record,) = (write for write in helper.passes() if isinstance(write, bodies.ProgressBody))
        told.append(record.ranks[0])
        assert helper.resets == [(0, gpu)] * attempts
        assert not helper.state.is_idle
        helper.done(record)
        helper.state.gpu_reset(0, gpu, problem)
    (record,) = helper.passes()
    told.append(record.ranks[0])
    assert [(rank.undo_owed, rank.undo_failures) for rank in told] == [(1, 0), (1, 1), (1, 2), (0, 2)]
    assert ["is reset" in rank.error for rank in told] == [False, False, False, True]
    assert len(helper.resets) == 3


def test_a_helper_sleeps_while_a_progress_record_waits_for_a_file_system_that_hangs() -> None:
    helper = registered()
    helper.hears(0, m.ProgressReport(step=1, number=0))
    helper.passes(50.0)  # the record of progress is being written from here on, and hangs
    helper.passes(50.0)
    helper.hears(0, m.ProgressReport(step=2, number=0))
    assert helper.state.next_wake_s() > helper.now_s


@pytest.mark.parametrize("error", [None, RecordError("the record is not valid")])
def test_a_record_that_is_not_valid_is_dropped(error: RecordError | None, caplog: pytest.LogCaptureFixture) -> None:
    helper = registered()
    (write, *_) = helper.hears(0, m.OrderSeen(instructions=[("forward", None)]))
    helper.done(write, error=error)
    assert ("drops a record" in caplog.text) == (error is not None)


@pytest.mark.parametrize(
    ("has_job", "role", "told"), [(False, "clocks", 0), (True, "training", 0), (True, "clocks", 1)]
)
def test_only_a_clock_process_that_comes_after_the_job_is_told_at_once(has_job: bool, role: Any, told: int) -> None:
    helper = registered() if has_job else Helper()
    helper.hears(4, m.Hello(rank=1, role=role, token="token"))
    assert helper.told() == [(4, m.ClocksHeld())] * told


@pytest.mark.parametrize("coordination", ["local", "daemon"])
def test_only_a_coordinator_of_this_host_is_told_when_rank_0_follows_a_schedule(coordination: str) -> None:
    helper, applied = registered(coordination), m.ScheduleApplied(number=3, step=9, late=False)
    helper.hears(0, applied)
    assert (applied in helper.coordinated) == (coordination == "local")


@pytest.mark.parametrize("event", ["loads", "end"])
def test_what_loads_explain_and_how_training_ended_is_in_the_next_record_of_progress(event: str) -> None:
    helper, known, done = registered(), LoadsKnown(text="loads explain 90 %"), list[op.Operation]()
    waiting = helper.hears(0, m.ProgressReport(step=1, number=0))
    for told in (True, False):
        waiting += helper.passes(100.0)
        if told and event == "loads":
            waiting += helper.hears(0, m.LoadsSeen(known=known.model_dump()))
        elif told:
            helper.state.client_gone(0)
        while waiting:
            done.append(waiting.pop(0))
            waiting += helper.done(done[-1])
    *_, rank = (rank for one in done if isinstance(one, bodies.ProgressBody) for rank in one.ranks)
    if event == "loads":
        assert rank.loads == known
    else:
        assert "ended without closing the optimizer" in rank.error


def test_results_that_reach_a_new_helper_before_training_does_are_kept() -> None:
    helper, result = Helper(), {"rank": 0, "iter_time": [1.0], "iter_energy": [1.0]}
    assert helper.hears(0, m.MeasurementReport(number=3, first_step=5, result=result)) == []
    (registration,) = helper.hears(0, joining())
    (write,) = (given for given in helper.done(registration) if isinstance(given, op.WriteResults))
    assert (write.number, [body.first_step for body in write.results]) == (3, [5])


def test_why_a_job_waits_for_a_daemon_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    helper = Helper()
    job = {"job_info": {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}, "coordination": "auto"}
    (create,) = helper.hears(0, m.CreateJob(job=job, attempt="a"))
    helper.done(create, op.CreatedJob("job", "0123", coordination="daemon", warning="no daemon yet: default clocks"))
    assert "default clocks" in caplog.text


def test_a_worker_that_hangs_is_given_nothing_more_and_the_helper_keeps_a_bounded_number() -> None:
    helper, given = Helper(), list[op.Operation]()
    for _ in range(MAX_WAITING + 10):
        given += helper.hears(0, SAVE)
    assert given == [SAVE]
    helper.state._writes.add(bodies.EndBody(reason="finished"))
    count = 0
    while given:
        count += 1
        given += helper.done(given.pop(), [m.ProfileSaved()])
    assert helper.state.is_idle
    assert count == MAX_WAITING + 2  # the first one, those that waited, and the job's end


def test_warnings_of_the_helper_reach_training() -> None:
    helper, line = Helper(), m.LogLine(level=30, message="a warning")
    helper.state.tell_first_rank(line)
    assert helper.told() == [(0, line)]


def test_a_rank_that_watches_the_switch_is_told_at_once_and_when_it_changes() -> None:
    helper = Helper(3)
    assert helper.hears(3, m.WatchSwitch()) == [op.ReadSwitch()]
    for off, told in [(False, [""]), (False, []), (True, ["off"]), (False, [""])]:
        helper.done(op.ReadSwitch(), op.SwitchFound(off))
        assert helper.told() == [(3, m.ClocksHeld(why=why)) for why in told]
        helper.passes(9.0)
    helper.hears(4, m.Hello(rank=4, role="training", token="token"))
    helper.hears(4, m.WatchSwitch())
    assert helper.told() == [(4, m.ClocksHeld())]


def test_a_switch_that_cannot_be_read_at_first_is_told_when_it_can() -> None:
    helper = Helper()
    helper.hears(0, m.WatchSwitch())
    assert helper.done(op.ReadSwitch(), error=StoreError(errno.EIO, "no answer")) == helper.told() == []
    assert helper.passes(10.0) == [op.ReadSwitch()]
    helper.done(op.ReadSwitch(), op.SwitchFound(True))
    assert (0, m.ClocksHeld(why="off")) in helper.told()
