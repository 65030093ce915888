"""What the helper knows of its connections and of its job."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from pfo_fs.helper import events as e
from pfo_fs.helper.coordination_choice import CoordinationChoice
from pfo_fs.ipc import messages as m
from pfo_fs.store.bodies import EndBody

_MAX_EARLY_RESULTS = 100
_TERMINATES_WITHIN_S = 600.0
"""Training that ends within this time after a SIGTERM to the job, maybe with a checkpoint, ends because of that."""


@dataclass
class Client:
    """One connection.

    Attributes:
        gpu_spec: The GPU of a clock process, until that reports that it has released the clocks.
        terminated: Whether this training process got SIGTERM.
    """

    rank: int = -1
    role: Literal["", "training", "clocks", "gone"] = ""
    gpu_spec: str = ""
    terminated: bool = False


@dataclass
class Job:
    """What the helper knows of its job.

    Attributes:
        coordination: The kind of process that schedules the job; None until that is known.
        is_open: Whether its folder was created, or ranks have asked to join it.
        has_folder: Whether the worker has created or opened its folder.
        coordinator: The start of its coordinator, which waits for the folder.
        is_ended: Whether the job's end has been noted.
        terminated_at_s: When this helper got SIGTERM, in monotonic s.
        first_crash: How the first rank of this host has crashed that did so by itself; empty while none has.
        choice: The choice of the process that schedules the job, while that is made.
        answered: Ranks whose registration was answered.
        late: (rank, schedule number) of schedules that came into force too late: their results are marked.
        early_results: What clock processes sent before any rank joined, as after a restart of this helper.
    """

    coordination: Literal["daemon", "local"] | None = None
    is_open: bool = False
    has_folder: bool = False
    coordinator: e.StartCoordinator | None = None
    is_ended: bool = False
    terminated_at_s: float = -math.inf
    first_crash: str = ""
    choice: CoordinationChoice | None = None
    answered: set[int] = field(default_factory=set)
    late: set[tuple[int, int]] = field(default_factory=set)
    early_results: deque[tuple[int, m.MeasurementReport]] = field(
        default_factory=lambda: deque(maxlen=_MAX_EARLY_RESULTS)
    )

    def training_ended(self, client: Client, reason: str, text: str, now_s: float) -> EndBody | None:
        """Notes how a training process has ended; returns the job's end, which is that of rank 0, if this is it.

        A launcher ends the other ranks by SIGTERM when one has crashed: then the job has crashed. Otherwise SIGTERM is
        the reason, whatever training made of it.
        """
        terminated = client.terminated or now_s - self.terminated_at_s <= _TERMINATES_WITHIN_S
        if self.first_crash:
            reason, text = "crashed", self.first_crash
        elif terminated:
            reason, text = "terminated", "training got SIGTERM"
        elif reason == "crashed" and client.rank != 0:
            self.first_crash = text if f"rank {client.rank}" in text else f"rank {client.rank}: {text}"
        if client.rank != 0 or not self.is_open or self.is_ended:
            return None
        self.is_ended = True
        return EndBody.model_validate({"reason": reason, "message": text})
