"""A host's helper in virtual time: the real state machine and the real files, without sockets, threads and waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pfo_fs.errors import PfoError
from pfo_fs.helper import events as e
from pfo_fs.helper.operations import DirectoryOperations
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.models import RankInfo
from pfo_fs.store import JobFolder

_TOKEN = "simulated"  # noqa: S105  not a secret: the simulation has no sockets
_CLOCKS = 1_000_000
"""Number of the first connection of a clock process; connections of training are numbered by rank."""


class SimulatedHost:
    """One helper for all ranks of a simulated job.

    Args:
        root: The shared directory.
        scheduler: The policy that a daemon schedules with; part of the job's id.
        seed: Seed of the helper's jitter.

    Attributes:
        received: Messages to training that training has not read yet.
    """

    def __init__(self, root: str, scheduler: str, seed: int) -> None:
        self.received: list[m.Message] = []
        self._operations = DirectoryOperations(root, "simulator", scheduler)
        self._state = HelperState(_TOKEN, poll_interval_s=None, now_s=0.0, seed=seed)
        self._do(self._state.first_actions(), 0.0)

    @property
    def folder(self) -> JobFolder:
        """The job's folder."""
        return self._operations.folder

    def create_job(self, job: dict[str, Any], attempt: str) -> None:
        """Lets rank 0 create the job, which a daemon schedules."""
        self._deliver(0, m.Hello(rank=0, role="training", token=_TOKEN), 0.0)
        self._deliver(0, m.CreateJob(job=job, attempt=attempt), 0.0)

    def join(self, infos: Sequence[RankInfo], attempt: str, gpu_name: str) -> None:
        """Connects all ranks and their clock processes, and registers the ranks."""
        for info in infos:
            rank = info.rank
            if rank:
                self._deliver(rank, m.Hello(rank=rank, role="training", token=_TOKEN), 0.0)
            self._deliver(_CLOCKS + rank, m.Hello(rank=rank, role="clocks", token=_TOKEN), 0.0)
            body = {"rank_info": info.model_dump(), "nonce": f"n{rank}", "gpu_name": gpu_name}
            join = m.JoinJob(job_id=self.folder.job_id, attempt=attempt, coordination="daemon", rank_body=body)
            self._deliver(rank, join, 0.0)

    def send_from_training(self, rank: int, message: m.ToHelper, now_s: float) -> None:
        """Sends a message from a training process."""
        self._deliver(rank, message, now_s)

    def send_from_clocks(self, rank: int, message: m.ToHelper, now_s: float) -> None:
        """Sends a message from a clock process."""
        self._deliver(_CLOCKS + rank, message, now_s)

    def poll(self, now_s: float) -> list[m.NewSchedule]:
        """Lets the helper handle passed time; returns the schedules that training received since the last call."""
        self._do(self._state.handle(e.TimePassed(), now_s), now_s)
        new = [message for message in self.received if isinstance(message, m.NewSchedule)]
        self.received.clear()
        return new

    def _deliver(self, client: int, message: m.ToHelper, now_s: float) -> None:
        self._do(self._state.handle(e.MessageArrived(client, message), now_s), now_s)

    def _do(self, actions: list[e.Action], now_s: float) -> None:
        waiting = deque(actions)
        while waiting:
            action = waiting.popleft()
            if isinstance(action, e.Run):
                try:
                    done = e.OperationDone(action.operation, self._operations.execute(action.operation))
                except PfoError as error:
                    done = e.OperationDone(action.operation, error=error)
                waiting.extend(self._state.handle(done, now_s))
            elif isinstance(action, e.Send) and action.client == 0:  # all ranks of the host get the same messages
                self.received.append(action.message)
