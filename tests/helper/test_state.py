"""Single decisions of the helper's state."""

from __future__ import annotations

import errno

import helper_host
import pytest
from helper_host import connected
from jobs import rank_infos

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.helper import events as e
from pfo_fs.helper import operations as op
from pfo_fs.helper.state import HelperState
from pfo_fs.helper.write_queue import MAX_WAITING
from pfo_fs.ipc import messages as m
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.store.bodies import ProgressBody, RankProgress

INFOS = rank_infos(1)


def joining(rank: int = 0, coordination: str = "local") -> m.JoinJob:
    return helper_host.joining({"job_id": "job", "coordination": coordination}, rank_infos(2)[rank])


def operations(actions: list[e.Action]) -> list[op.Operation]:
    return [action.operation for action in actions if isinstance(action, e.Run)]


def registered(coordination: str = "local") -> HelperState:
    """A helper whose only rank has joined."""
    state = connected()
    registration, *_ = operations(state.handle(e.MessageArrived(0, joining(0, coordination)), 0.0))
    state.handle(e.OperationDone(registration, op.RanksRegistered()), 0.0)
    return state


def test_a_helper_that_replaces_another_schedules_only_after_the_jobs_folder_is_open() -> None:
    state = connected()
    actions = state.handle(e.MessageArrived(0, joining()), 0.0)
    (registration,) = operations(actions)
    actions += state.handle(e.MessageArrived(0, m.AllRanks(rank_infos=[INFOS[0].model_dump()])), 0.0)
    assert not [action for action in actions if isinstance(action, e.StartCoordinator)]
    actions = state.handle(e.OperationDone(registration, op.RanksRegistered()), 0.0)
    assert e.StartCoordinator(tuple(INFOS)) in actions


def test_ranks_that_join_together_register_in_one_file_and_the_first_poll_comes_after_that() -> None:
    state, run = connected(0, 1), []
    for rank in (0, 1):
        run += operations(state.handle(e.MessageArrived(rank, joining(rank, "daemon")), 0.01))
    assert [type(operation) for operation in run] == [op.RegisterRanks, op.PollSchedule]
    assert [body.rank_info for body in run[0].ranks] == rank_infos(2)  # type: ignore[union-attr]


def test_a_rank_registers_soon_although_another_one_of_its_host_does_not_join() -> None:
    state = connected(0, 1)
    state.handle(e.MessageArrived(0, joining(0, "daemon")), 0.0)
    assert state.next_wake_s() < 1.0
    run = operations(state.handle(e.TimePassed(), state.next_wake_s()))
    assert any(isinstance(operation, op.RegisterRanks) for operation in run)


def progress(actions: list[e.Action]) -> RankProgress:
    (record,) = (operation for operation in operations(actions) if isinstance(operation, ProgressBody))
    return record.ranks[0]


def test_a_gpu_that_a_dead_clock_process_has_left_is_owed_until_it_is_reset_and_only_then_said_to_be_reset() -> None:
    state, gpu = registered(), m.GpuToReset("nvml:GPU-3")
    state.handle(e.MessageArrived(7, m.Hello(rank=0, role="clocks", token="token", gpu=gpu)), 0.0)
    actions, told = state.handle(e.ClientGone(7), 0.0), []
    for problem in ("the driver is away", "the driver is still away", ""):
        assert [(action.rank, action.gpu) for action in actions if isinstance(action, e.ResetGpu)] == [(0, gpu)]
        assert not state.is_idle
        told.append(progress(actions))
        state.handle(e.OperationDone(operations(actions)[-1]), 0.0)
        actions = state.handle(e.GpuReset(0, gpu, problem), 0.0)
    told.append(progress(actions))
    assert [(rank.undo_owed, rank.undo_failures) for rank in told] == [(1, 0), (1, 1), (1, 2), (0, 2)]
    assert ["is reset" in rank.error for rank in told] == [False, False, False, True]
    assert not [action for action in actions if isinstance(action, e.ResetGpu)]


def test_a_helper_sleeps_while_a_progress_record_waits_for_a_file_system_that_hangs() -> None:
    state = registered()
    state.handle(e.MessageArrived(0, m.ProgressReport(step=1, number=0)), 1.0)
    state.handle(e.TimePassed(), 50.0)  # the record of progress is being written from here on, and hangs
    state.handle(e.MessageArrived(0, m.ProgressReport(step=2, number=0)), 100.0)
    assert state.next_wake_s() > 100.0


@pytest.mark.parametrize("error", [None, RecordError("the record is not valid")])
def test_a_record_that_can_never_be_written_is_dropped_with_a_warning(
    error: RecordError | None, caplog: pytest.LogCaptureFixture
) -> None:
    state = registered()
    (write, *_) = operations(state.handle(e.MessageArrived(0, m.OrderSeen(instructions=[("forward", None)])), 1.0))
    state.handle(e.OperationDone(write, error=error), 2.0)
    assert ("drops a record" in caplog.text) == (error is not None)


def test_only_a_clock_process_that_comes_after_the_job_is_told_at_once_whether_to_hold_default_clocks() -> None:
    def told(state: HelperState, client: int, rank: int, role: str) -> list[type]:
        hello = m.Hello(rank=rank, role=role, token="token")  # type: ignore[arg-type]
        actions = state.handle(e.MessageArrived(client, hello), 0.0)
        return [type(action.message) for action in actions if isinstance(action, e.Send)]

    assert told(connected(), 2, 0, "clocks") == []
    state = registered()
    assert told(state, 3, 1, "training") == []
    assert told(state, 4, 1, "clocks") == [m.ClocksHeld]


@pytest.mark.parametrize("coordination", ["local", "daemon"])
def test_only_a_coordinator_of_this_host_is_told_when_rank_0_follows_a_schedule(coordination: str) -> None:
    state = registered(coordination)
    applied = m.ScheduleApplied(number=3, step=9, late=False)
    assert (applied in state.handle(e.MessageArrived(0, applied), 1.0)) == (coordination == "local")


def written(state: HelperState, event: e.Event, now_s: float) -> list[op.Operation]:
    """What is carried out after an event, one operation after the other."""
    waiting, done = operations(state.handle(event, now_s)), []
    while waiting:
        done.append(waiting.pop(0))
        waiting += operations(state.handle(e.OperationDone(done[-1]), now_s))
    return done


@pytest.mark.parametrize("event", ["loads", "end"])
def test_what_loads_explain_and_how_training_ended_is_in_the_next_record_of_progress(event: str) -> None:
    state = registered()
    known = LoadsKnown(text="loads explain 90 %")
    told = e.MessageArrived(0, m.LoadsSeen(known=known.model_dump())) if event == "loads" else e.ClientGone(0)
    written(state, e.MessageArrived(0, m.ProgressReport(step=1, number=0)), 1.0)
    done = written(state, told, 100.0) + written(state, e.TimePassed(), 200.0)
    *_, rank = (rank for one in done if isinstance(one, ProgressBody) for rank in one.ranks)
    if event == "loads":
        assert rank.loads == known
    else:
        assert "ended without closing the optimizer" in rank.error


def test_why_a_job_waits_for_a_daemon_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    state = connected()
    job = {"job_info": {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}, "coordination": "auto"}
    (create,) = operations(state.handle(e.MessageArrived(0, m.CreateJob(job=job, attempt="a")), 0.0))
    created = op.CreatedJob("job", "0123", coordination="daemon", warning="no daemon yet: default clocks")
    state.handle(e.OperationDone(create, created), 0.0)
    assert "default clocks" in caplog.text


def test_a_worker_that_hangs_is_given_nothing_more_and_the_helper_keeps_a_bounded_number() -> None:
    state = connected()
    given: list[e.Action] = []
    for _ in range(MAX_WAITING + 10):
        given += state.handle(e.MessageArrived(0, m.SaveProfile(path="/p", content=b"", replace=True)), 0.0)
    for _ in range(MAX_WAITING + 10):
        action = given.pop(0)
        assert isinstance(action, e.Run)
        given += state.handle(e.OperationDone(action.operation, [m.ProfileSaved()]), 0.0)[1:]
        if not given:
            break
    assert state.is_idle
    assert _ == MAX_WAITING  # the first one, and those that waited


def test_warnings_of_the_helper_reach_training() -> None:
    line = m.LogLine(level=30, message="a warning")
    assert connected().handle(e.ForTraining(line), 0.0) == [e.Send(0, line)]


def test_a_rank_that_watches_the_switch_is_told_at_once_and_when_it_changes() -> None:
    state = connected(3)
    look = state.handle(e.MessageArrived(3, m.WatchSwitch()), 0.0)
    assert look == [e.Run(op.ReadSwitch())]
    for number, (off, told) in enumerate([(False, [""]), (False, []), (True, ["off"]), (False, [""])]):
        actions = state.handle(e.OperationDone(op.ReadSwitch(), op.SwitchFound(off)), 10.0 * number)
        sent = [action.message for action in actions if isinstance(action, e.Send)]
        assert sent == [m.ClocksHeld(why=why) for why in told]
        state.handle(e.TimePassed(), 10.0 * number + 9.0)
    state.handle(e.MessageArrived(4, m.Hello(rank=4, role="training", token="token")), 40.0)
    (answer,) = state.handle(e.MessageArrived(4, m.WatchSwitch()), 40.0)
    assert answer == e.Send(4, m.ClocksHeld())


def test_a_switch_that_cannot_be_read_at_first_is_told_when_it_can() -> None:
    state = connected()
    state.handle(e.MessageArrived(0, m.WatchSwitch()), 0.0)
    error = StoreError(errno.EIO, "no answer")
    assert state.handle(e.OperationDone(op.ReadSwitch(), error=error), 0.0) == []
    assert state.handle(e.TimePassed(), 10.0) == [e.Run(op.ReadSwitch())]
    actions = state.handle(e.OperationDone(op.ReadSwitch(), op.SwitchFound(True)), 10.0)
    assert e.Send(0, m.ClocksHeld(why="off")) in actions
