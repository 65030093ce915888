"""What happens to a helper (events), and what its state wants done about it (actions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from pfo_fs.errors import PfoError
from pfo_fs.helper.operations import Operation, Result
from pfo_fs.helper.power_limit_operations import PowerLimitOperation, PowerLimitResult
from pfo_fs.ipc.messages import Message, NewSchedule, ToHelper
from pfo_fs.models import RankInfo

# ---- events


@dataclass(frozen=True)
class MessageArrived:
    """A connection said something; `client` numbers connections."""

    client: int
    message: ToHelper


@dataclass(frozen=True)
class ClientGone:
    """A connection has ended."""

    client: int


@dataclass(frozen=True)
class OperationDone:
    """The worker has carried an operation out, or it failed."""

    operation: Operation | PowerLimitOperation
    result: Result | PowerLimitResult = None
    error: PfoError | None = None


@dataclass(frozen=True)
class PlanPublished:
    """The coordinator in this process has a new schedule for all ranks of the job."""

    schedule: NewSchedule


@dataclass(frozen=True)
class CoordinatorAlive:
    """The coordinator in this process has looked; the schedule in force is leased for `lease_s`, 0 for ever."""

    lease_s: float


@dataclass(frozen=True)
class Logged:
    """A log record of this process, which has no output of its own; `level` as in `logging`."""

    level: int
    text: str


@dataclass(frozen=True)
class Terminated:
    """This process got SIGTERM: a batch system ends the job, by its time limit or on request."""


@dataclass(frozen=True)
class TimePassed:
    """No more than the time that `handle` is given."""


Event: TypeAlias = (
    MessageArrived | ClientGone | OperationDone | PlanPublished | CoordinatorAlive | Logged | Terminated | TimePassed
)

# ---- actions


@dataclass(frozen=True)
class Send:
    """Send to a connection without waiting; it misses the message if it does not read."""

    client: int
    message: Message


@dataclass(frozen=True)
class HangUp:
    """Close a connection."""

    client: int


@dataclass(frozen=True)
class Run:
    """Have the worker carry an operation out, after those that it was given before.

    The state and the operations object of a helper belong together and agree on what an operation is.
    """

    operation: Any


@dataclass(frozen=True)
class StartCoordinator:
    """Schedule the job in this process; `rank_infos`: all ranks, where they are not read from the directory."""

    rank_infos: tuple[RankInfo, ...] | None


@dataclass(frozen=True)
class TellCoordinator:
    """Rank 0 follows schedule `number` from `step` on."""

    number: int
    step: int


@dataclass(frozen=True)
class ResetClocks:
    """The clock process of this GPU has died together with its training process: put its clocks back."""

    gpu_spec: str


@dataclass(frozen=True)
class Stop:
    """There is nothing left to do."""


Action: TypeAlias = Send | HangUp | Run | StartCoordinator | TellCoordinator | ResetClocks | Stop
