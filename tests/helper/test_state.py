"""Single decisions of the helper's state."""

from __future__ import annotations

import pytest
from jobs import rank_infos

from pfo_fs.errors import RecordError
from pfo_fs.helper import events as e
from pfo_fs.helper import operations as op
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m

INFOS = rank_infos(1)


def test_a_helper_that_replaces_another_schedules_only_after_the_jobs_folder_is_open() -> None:
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)
    actions = state.first_actions()

    def handle(event: e.Event) -> None:
        actions.extend(state.handle(event, 0.0))

    def starts() -> list[e.Action]:
        return [action for action in actions if isinstance(action, e.StartCoordinator)]

    handle(e.OperationDone(op.OpenDirectory(), True))
    handle(e.MessageArrived(1, m.Hello(rank=0, role="training", token="token")))
    body = {"rank_info": INFOS[0].model_dump(), "nonce": "n"}
    handle(e.MessageArrived(1, m.JoinJob(job_id="job", attempt="a", coordination="local", rank_body=body)))
    handle(e.MessageArrived(1, m.AllRanks(rank_infos=[INFOS[0].model_dump()])))
    registration = next(
        a.operation for a in actions if isinstance(a, e.Run) and isinstance(a.operation, op.RegisterRanks)
    )
    assert not starts()
    handle(e.OperationDone(registration, op.RanksRegistered()))
    assert [start.rank_infos for start in starts()] == [tuple(INFOS)]  # type: ignore[attr-defined]


def test_ranks_that_join_together_register_in_one_file_and_the_first_poll_comes_after_that() -> None:
    infos = rank_infos(2)
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)
    state.first_actions()
    state.handle(e.OperationDone(op.OpenDirectory(), True), 0.0)
    for rank in (0, 1):
        state.handle(e.MessageArrived(rank, m.Hello(rank=rank, role="training", token="token")), 0.0)
    operations: list[object] = []
    for info in infos:
        body = {"rank_info": info.model_dump(), "nonce": "n"}
        join = m.JoinJob(job_id="job", attempt="a", coordination="daemon", rank_body=body)
        actions = state.handle(e.MessageArrived(info.rank, join), 0.01)
        operations += [action.operation for action in actions if isinstance(action, e.Run)]
    assert [type(operation) for operation in operations] == [op.RegisterRanks, op.PollSchedule]
    assert [body.rank_info for body in operations[0].ranks] == infos  # type: ignore[attr-defined]


def test_a_rank_registers_soon_although_another_one_of_its_host_does_not_join() -> None:
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)
    state.first_actions()
    state.handle(e.OperationDone(op.OpenDirectory(), True), 0.0)
    for rank in (0, 1):
        state.handle(e.MessageArrived(rank, m.Hello(rank=rank, role="training", token="token")), 0.0)
    body = {"rank_info": INFOS[0].model_dump(), "nonce": "n"}
    state.handle(e.MessageArrived(0, m.JoinJob(job_id="j", attempt="a", coordination="daemon", rank_body=body)), 0.0)
    assert state.next_wake_s() < 1.0
    actions = state.handle(e.TimePassed(), state.next_wake_s())
    assert any(isinstance(action, e.Run) and isinstance(action.operation, op.RegisterRanks) for action in actions)


def test_a_helper_sleeps_while_a_progress_record_waits_for_a_file_system_that_hangs() -> None:
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)
    body = {"rank_info": INFOS[0].model_dump(), "nonce": "n"}
    state.handle(e.MessageArrived(1, m.Hello(rank=0, role="training", token="token")), 0.0)
    join = m.JoinJob(job_id="job", attempt="a", coordination="local", rank_body=body)
    registration = next(a.operation for a in state.handle(e.MessageArrived(1, join), 0.0) if isinstance(a, e.Run))
    state.handle(e.OperationDone(registration), 0.0)
    state.handle(e.MessageArrived(1, m.ProgressReport(step=1, number=0)), 1.0)
    state.handle(e.TimePassed(), 50.0)  # the record of progress is being written from here on, and hangs
    state.handle(e.MessageArrived(1, m.ProgressReport(step=2, number=0)), 100.0)
    assert state.next_wake_s() > 100.0


@pytest.mark.parametrize("error", [None, RecordError("the record is not valid")])
def test_a_record_that_can_never_be_written_is_dropped_with_a_warning(
    error: RecordError | None, caplog: pytest.LogCaptureFixture
) -> None:
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)
    body = {"rank_info": INFOS[0].model_dump(), "nonce": "n"}
    state.handle(e.MessageArrived(1, m.Hello(rank=0, role="training", token="token")), 0.0)
    join = m.JoinJob(job_id="job", attempt="a", coordination="local", rank_body=body)
    registration = next(a.operation for a in state.handle(e.MessageArrived(1, join), 0.0) if isinstance(a, e.Run))
    state.handle(e.OperationDone(registration, op.RanksRegistered()), 0.0)
    order = m.OrderSeen(instructions=[("forward", None)])
    write = next(a.operation for a in state.handle(e.MessageArrived(1, order), 1.0) if isinstance(a, e.Run))
    state.handle(e.OperationDone(write, error=error), 2.0)
    assert ("drops a record" in caplog.text) == (error is not None)


def test_only_a_clock_process_that_comes_after_the_job_is_told_at_once_whether_to_hold_default_clocks() -> None:
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)

    def told(client: int, rank: int, role: str) -> list[object]:
        hello = m.Hello(rank=rank, role=role, token="token")  # type: ignore[arg-type]
        return [a.message for a in state.handle(e.MessageArrived(client, hello), 0.0) if isinstance(a, e.Send)]

    assert told(1, 0, "training") == told(2, 0, "clocks") == []
    body = {"rank_info": INFOS[0].model_dump(), "nonce": "n"}
    join = m.JoinJob(job_id="job", attempt="a", coordination="local", rank_body=body)
    registration = next(a.operation for a in state.handle(e.MessageArrived(1, join), 0.0) if isinstance(a, e.Run))
    state.handle(e.OperationDone(registration, op.RanksRegistered()), 0.0)
    assert told(3, 1, "training") == []
    assert [type(message) for message in told(4, 1, "clocks")] == [m.ClocksHeld]
