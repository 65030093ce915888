"""Single decisions of the helper's state."""

from __future__ import annotations

from jobs import rank_infos

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
