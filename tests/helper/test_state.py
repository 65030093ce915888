"""Single decisions of the helper's state."""

from __future__ import annotations

import pytest
from helper_host import connected
from jobs import rank_infos

from pfo_fs.errors import RecordError
from pfo_fs.helper import events as e
from pfo_fs.helper import operations as op
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m

INFOS = rank_infos(1)


def joining(rank: int = 0, coordination: str = "local") -> m.JoinJob:
    body = {"rank_info": rank_infos(2)[rank].model_dump(), "nonce": "n"}
    return m.JoinJob(job_id="job", attempt="a", coordination=coordination, rank_body=body)  # type: ignore[arg-type]


def operations(actions: list[e.Action]) -> list[op.Operation]:
    return [action.operation for action in actions if isinstance(action, e.Run)]


def registered() -> HelperState:
    """A helper whose only rank has joined."""
    state = connected()
    (registration,) = operations(state.handle(e.MessageArrived(0, joining()), 0.0))
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
