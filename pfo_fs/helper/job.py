"""What the helper knows of its connections and of its job, and what its state calls outside of it."""

import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pfo_fs.helper.operations import Operation
from pfo_fs.ipc import messages as m
from pfo_fs.models import RankInfo
from pfo_fs.store.bodies import EndBody

_MAX_EARLY_RESULTS = 100
_TERMINATES_WITHIN_S = 600.0
"""Training that ends within this time after a SIGTERM to the job counts as ended by SIGTERM: it may save first."""


class StartCoordinator(NamedTuple):
    """Schedule the job in this process; `rank_infos`: all ranks, where they are not read from the directory."""

    rank_infos: tuple[RankInfo, ...] | None


class Around:
    """What the parts of a helper's state call outside of it. No method waits; subclasses make the methods do something.

    Attributes:
        now: Returns the present time in s.
        jitter: Random numbers, which spread the calls of many hosts in time.
        local_mount: Whether every change in the directory is made by this host.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, seed: int | None = None) -> None:
        self.now = now
        self.jitter = random.Random(seed)
        self.local_mount = False

    def send(self, client: int, message: m.Message) -> None:
        """Sends to a connection; a client that does not read misses the message."""

    def hang_up(self, client: int) -> None:
        """Closes a connection."""

    def run(self, operation: Operation) -> None:
        """Makes the worker carry an operation out, after earlier operations; `operation_done` tells the result."""

    def coordinate(self, what: StartCoordinator | m.ScheduleApplied) -> None:
        """Schedules the job in this process, or tells its coordinator what rank 0 follows."""

    def reset_gpu(self, rank: int, gpu: m.GpuToReset, pause_s: float = 0.0) -> None:
        """Resets, after a pause, the GPU of a rank whose clock process cannot do so; `gpu_reset` tells the result."""

    def stop(self) -> None:
        """Ends the helper: there is nothing left to do."""


@dataclass
class Client:
    """One connection.

    Attributes:
        gpu: A clock process's GPU, until the process reports that it has put back what it had set.
    """

    rank: int
    role: Literal["training", "clocks", "gone"]  # gone: it has said goodbye
    gpu: m.GpuToReset | None = None


class Clients(dict[int, Client]):
    """The connections that began with the job's token, by number."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token
        self._came = False

    @property
    def have_gone(self) -> bool:
        """Whether there were connections, and none is left."""
        return self._came and not self

    def admit(self, number: int, message: m.ToHelper) -> Client | None:
        """Adds a connection, by its first message; None: it must be closed."""
        self._came = True
        if not isinstance(message, m.Hello) or message.token != self._token:
            return None
        self[number] = Client(message.rank, message.role, message.gpu)
        return self[number]

    def training(self, rank: int | None = None) -> list[int]:
        """Returns the connections of training processes: of all, or those of one rank."""
        found = ((number, client) for number, client in self.items() if client.role == "training")
        return [number for number, client in found if rank in (None, client.rank)]

    def clocks(self) -> list[int]:
        return [number for number, client in self.items() if client.role == "clocks"]

    def ranks(self) -> set[int]:
        return {self[number].rank for number in self.training()}


@dataclass
class Job:
    """What the helper knows of its job.

    Attributes:
        is_open: Whether its folder was created, or ranks have asked to join it.
        has_folder: Whether the worker has created or opened its folder.
        coordinator: The start of its coordinator, which waits for the folder.
        terminated_at_s: When this helper got SIGTERM, in monotonic s.
        first_end: Reason and message of the first rank here other than 0 that crashed, or ended without a goodbye.
        late: (rank, schedule number) of schedules that came into force too late: their results are marked.
        early_results: What clock processes sent before any rank joined, as after a restart of this helper.
    """

    coordination: Literal["daemon", "local", "none"] | None = None
    is_open: bool = False
    has_folder: bool = False
    coordinator: StartCoordinator | None = None
    is_ended: bool = False
    terminated_at_s: float = -math.inf
    first_end: tuple[str, str] | None = None
    answered: set[int] = field(default_factory=set)
    late: set[tuple[int, int]] = field(default_factory=set)
    early_results: deque[tuple[int, m.MeasurementReport]] = field(
        default_factory=lambda: deque(maxlen=_MAX_EARLY_RESULTS)
    )

    def training_ended(self, client: Client, reason: str, text: str, now_s: float) -> EndBody | None:
        """Notes how a training process has ended; if it is rank 0's, that is the job's end, which is returned.

        A launcher ends the other ranks by a signal when one has crashed: then the job has crashed. Where the helper got
        SIGTERM first, that is the reason, whatever training says.
        """
        if self.first_end is not None:
            reason, text = self.first_end
        elif now_s - self.terminated_at_s <= _TERMINATES_WITHIN_S:
            reason, text = "terminated", "the job got SIGTERM"
        elif reason in ("crashed", "terminated") and client.rank != 0:
            self.first_end = reason, text if f"rank {client.rank}" in text else f"rank {client.rank}: {text}"
        if client.rank != 0 or not self.is_open or self.is_ended:
            return None
        self.is_ended = True
        return EndBody.model_validate({"reason": reason, "message": text})
