"""What the helper knows of its connections and of its job."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from pfo_fs.helper import events as e
from pfo_fs.helper.coordination_choice import CoordinationChoice
from pfo_fs.ipc import messages as m

_MAX_EARLY_RESULTS = 100


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
