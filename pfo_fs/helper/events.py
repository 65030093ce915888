"""What happens to a helper (events), and what its state decides to do (actions)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pfo_fs.errors import PfoError
from pfo_fs.helper.operations import Operation, Result
from pfo_fs.ipc.messages import GpuToReset, LogLine, Message, NewSchedule, ScheduleApplied, ToHelper
from pfo_fs.models import RankInfo

# ---- events


class MessageArrived(msgspec.Struct, frozen=True):
    """A message came from a connection; `client` is the connection's number."""

    client: int
    message: ToHelper


class ClientGone(msgspec.Struct, frozen=True):
    """A connection has ended."""

    client: int


class OperationDone(msgspec.Struct, frozen=True):
    """The worker has carried an operation out; `error` is set if it failed."""

    operation: Operation
    result: Result = None
    error: PfoError | None = None


class ForTraining(msgspec.Struct, frozen=True):
    """A message for the first rank of this host: a schedule that the coordinator in this process has published, or a
    log record of this process, which has no output of its own."""

    message: NewSchedule | LogLine


class CoordinatorAlive(msgspec.Struct, frozen=True):
    """The coordinator in this process has polled; ranks may follow the schedule in force for `lease_s`, 0 for ever."""

    lease_s: float


class Terminated(msgspec.Struct, frozen=True):
    """This process got SIGTERM: a batch system ends the job, by its time limit or on request.

    `client`: instead, the training process of that connection got it; what it does after that is the next event.
    """

    client: int | None = None


class ClocksStopped(msgspec.Struct, frozen=True):
    """The clock process of a rank is stopped: its GPU keeps what was set."""

    rank: int
    gpu: GpuToReset


class GpuReset(msgspec.Struct, frozen=True):
    """An attempt to reset the GPU of a rank is over; `problem`: why the GPU is not reset, or ''."""

    rank: int
    gpu: GpuToReset
    problem: str


class TimePassed(msgspec.Struct, frozen=True):
    """Nothing but time has passed."""


Event: TypeAlias = (
    MessageArrived | ClientGone | OperationDone | ForTraining | CoordinatorAlive | Terminated | ClocksStopped | GpuReset
    | TimePassed
)  # fmt: skip

# ---- actions


class Send(msgspec.Struct, frozen=True):
    """Send to a connection without waiting; a client that does not read misses the message."""

    client: int
    message: Message


class HangUp(msgspec.Struct, frozen=True):
    """Close a connection."""

    client: int


class Run(msgspec.Struct, frozen=True):
    """Have the worker carry an operation out, after earlier ones."""

    operation: Operation


class StartCoordinator(msgspec.Struct, frozen=True):
    """Schedule the job in this process; `rank_infos`: all ranks, where they are not read from the directory."""

    rank_infos: tuple[RankInfo, ...] | None


class ResetGpu(msgspec.Struct, frozen=True):
    """Reset the GPU of a rank, whose clock process cannot, after `pause_s`: `GpuReset` tells the result."""

    rank: int
    gpu: GpuToReset
    pause_s: float = 0.0


class Stop(msgspec.Struct, frozen=True):
    """End the helper: there is nothing left to do."""


Action: TypeAlias = Send | HangUp | Run | StartCoordinator | ScheduleApplied | ResetGpu | Stop
"""`ScheduleApplied`, of rank 0, is for the coordinator in this process."""
