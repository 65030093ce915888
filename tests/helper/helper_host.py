"""A host's helper in a thread of the test, and clients of its ranks, over real sockets."""

import secrets
import threading
from pathlib import Path
from typing import Any

from jobs import rank_infos
from running import HANGS_AFTER_S

from pfo_fs.errors import PfoError
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import DirectoryOperations, Operation, Result
from pfo_fs.helper.process import HelperLoop
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages, transport
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, SharedDirectory


class Helper(Around):
    """A helper's state with an open directory in virtual time, and what it asks of the process around it.

    Args:
        ranks: The ranks that are connected, each as the client of its number.
    """

    def __init__(self, *ranks: int) -> None:
        super().__init__(lambda: self.now_s, seed=0)
        self.now_s = 0.0
        self.sent: list[tuple[int, messages.Message]] = []
        self.operations: list[Operation] = []
        self.coordinated: list[object] = []
        self.resets: list[tuple[int, messages.GpuToReset]] = []
        self.state = HelperState("token", self)
        self.state.begin()
        self.done(self.operations.pop(), True)
        for rank in ranks or (0,):
            self.hears(rank, messages.Hello(rank=rank, role="training", token="token"))

    def send(self, client: int, message: messages.Message) -> None:
        self.sent.append((client, message))

    def run(self, operation: Operation) -> None:
        self.operations.append(operation)

    def coordinate(self, what: object) -> None:
        self.coordinated.append(what)

    def reset_gpu(self, rank: int, gpu: messages.GpuToReset, pause_s: float = 0.0) -> None:
        self.resets.append((rank, gpu))

    def hears(self, client: int, message: messages.ToHelper) -> list[Operation]:
        """A message arrives; returns the operations that the worker is given, as all of these methods."""
        self.state.message_arrived(client, message)
        return self.passes()

    def done(self, operation: Operation, result: Result = None, error: PfoError | None = None) -> list[Operation]:
        self.state.operation_done(operation, result, error)
        return self.passes()

    def passes(self, seconds: float = 0.0) -> list[Operation]:
        self.now_s += seconds
        self.state.time_passed()
        given, self.operations = self.operations, []
        return given

    def told(self) -> list[tuple[int, messages.Message]]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


def joining(job: dict[str, str], info: RankInfo, nonce: str = "n", name: int | None = None) -> messages.JoinJob:
    """The request of a rank to join, of an earlier helper if that had a name."""
    body = {"rank_info": info.model_dump(), "nonce": nonce}
    return messages.JoinJob(attempt="a", **job, rank_body=body, helper_name=name)


class Host:
    """One host.

    Attributes:
        operations: Carries the helper's operations out; None: on the real directory.
        resets: The GPUs that the helper has reset.
        handled: What the helper has handled so far: messages and ended operations.
    """

    def __init__(self, root: Path, operations: Any = None) -> None:
        self.root = root
        self.token = secrets.token_hex(8)
        self.address = f"pfo-fs-test-{self.token}"
        self.resets: list[messages.GpuToReset] = []
        server = transport.listen(self.address)
        settings = PFOSettings()
        operations = operations or DirectoryOperations(str(root), "test", settings.scheduler)
        self.loop = HelperLoop(self.token, operations, settings, lambda: None, self.reset)
        self.state = self.loop.state
        self.handled: list[object] = []
        heard, done = self.state.message_arrived, self.state.operation_done

        def note_message(client: int, message: messages.ToHelper) -> None:
            heard(client, message)
            self.handled.append(message)

        def note_operation(operation: Operation, *how: Any) -> None:
            done(operation, *how)
            self.handled.append(operation)

        self.state.message_arrived = note_message
        self.state.operation_done = note_operation
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
        """How many messages or operations of a kind the helper has handled."""
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
