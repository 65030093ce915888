"""A host's helper in a thread of the test, and clients of its ranks, over real sockets."""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path

from jobs import rank_infos
from running import HANGS_AFTER_S

from pfo_fs.helper import events
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.loop import HelperLoop
from pfo_fs.helper.operations import DirectoryOperations, OpenDirectory
from pfo_fs.helper.process import CoordinatorThread
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages, transport
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, SharedDirectory


def connected(*ranks: int) -> HelperState:
    """A helper whose directory is open, and to which these ranks are connected, each as the client of its number."""
    state = HelperState("token", poll_interval_s=None, now_s=0.0, seed=0)
    state.first_actions()
    state.handle(events.OperationDone(OpenDirectory(), True), 0.0)
    for rank in ranks or (0,):
        state.handle(events.MessageArrived(rank, messages.Hello(rank=rank, role="training", token="token")), 0.0)
    return state


def joining(job: dict[str, str], info: RankInfo, nonce: str = "n", name: int | None = None) -> messages.JoinJob:
    """The request of a rank to join, of an earlier helper if that had a name."""
    body = {"rank_info": info.model_dump(), "nonce": nonce}
    return messages.JoinJob(attempt="a", **job, rank_body=body, helper_name=name)  # type: ignore[arg-type]


class Host:
    """One host.

    Attributes:
        resets: The GPUs that the helper has reset.
        handled: What the helper has handled so far: messages, ended operations, and other events.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token = secrets.token_hex(8)
        self.address = f"pfo-fs-test-{self.token}"
        self.resets: list[messages.GpuToReset] = []
        server = transport.listen(self.address)
        settings = PFOSettings()
        operations = DirectoryOperations(str(root), "test", settings.scheduler)
        self.state = HelperState(self.token, poll_interval_s=None, now_s=time.monotonic())
        self.handled: list[object] = []
        handle = self.state.handle

        def noted(event: events.Event, now_s: float) -> list[events.Action]:
            actions = handle(event, now_s)
            self.handled.append(getattr(event, "message", None) or getattr(event, "operation", event))
            return actions

        self.state.handle = noted  # type: ignore[method-assign]
        self.loop = HelperLoop(
            self.state,
            operations,
            lambda post: CoordinatorThread(operations, settings, post),
            lambda: None,
            self.reset,
        )
        self.thread = threading.Thread(target=self.loop.serve, args=(server,), daemon=True)
        self.thread.start()
        self.clients: list[HelperClient] = []

    def reset(self, gpu: messages.GpuToReset) -> str:
        self.resets.append(gpu)
        return ""

    def client(self, rank: int, token: str | None = None) -> HelperClient:
        client = HelperClient(self.address, str(self.root), token or self.token, rank, {}, deadline_s=HANGS_AFTER_S)
        self.clients.append(client)
        return client

    def times(self, kind: type) -> int:
        """How many messages, operations or events of a kind the helper has handled."""
        return sum(isinstance(one, kind) for one in self.handled)

    def create(self, client: HelperClient, mode: str = "daemon", ranks: int = 1) -> dict[str, str]:
        info = JobInfo(pp_degree=ranks, dp_degree=1, tp_degree=1, world_size=ranks)
        job = {"job_info": info.model_dump(), "coordination": mode}
        created = client.request(messages.CreateJob(job=job, attempt="a"), messages.JobCreated, HANGS_AFTER_S)
        of_job = {"job_id": created.job_id, "directory_id": created.directory_id}
        return {**of_job, "coordination": created.coordination}

    def join(
        self, client: HelperClient, job: dict[str, str], info: RankInfo, nonce: str = "n", name: int | None = None
    ) -> messages.Joined:
        return client.request(joining(job, info, nonce, name), messages.Joined, HANGS_AFTER_S)

    def start(self, ranks: int = 1, mode: str = "daemon") -> tuple[list[HelperClient], JobFolder]:
        """Makes a job, and has the ranks join; returns their clients and the job's folder."""
        clients = [self.client(rank) for rank in range(ranks)]
        job = self.create(clients[0], mode, ranks)
        for client, info in zip(clients, rank_infos(ranks), strict=True):
            self.join(client, job, info)
        return clients, self.folder(job)

    def folder(self, job: dict[str, str]) -> JobFolder:
        folder = SharedDirectory(Files(self.root), "test").job(job["job_id"])
        folder.read_job()
        return folder

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.thread.join(HANGS_AFTER_S)
        assert not self.thread.is_alive(), "the helper ends when its clients have gone"
