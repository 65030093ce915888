"""Schedules a job in the helper of rank 0, where no daemon does: a coordinator in a thread of its own.

Planning takes seconds; in a thread of its own it does not delay the ranks' messages and records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from pfo_fs.coordination import Coordinator
from pfo_fs.errors import PfoError
from pfo_fs.helper import events as e
from pfo_fs.helper.operations import DirectoryOperations, new_schedule
from pfo_fs.ipc.messages import ScheduleApplied
from pfo_fs.models import FrequencySchedule
from pfo_fs.settings import PFOSettings

log = logging.getLogger("pfo_fs.helper")

_LONGEST_PAUSE_S = 2.0
"""A file that a person has edited is read within this time."""


class CoordinatorThread:
    """Runs one coordinator after the other: a new one when all ranks are known."""

    def __init__(self, operations: DirectoryOperations, settings: PFOSettings, post: Callable[[e.Event], None]) -> None:
        self._operations = operations
        self._settings = settings
        self._post = post
        self._inbox: SimpleQueue[e.StartCoordinator | ScheduleApplied | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, action: e.StartCoordinator) -> None:
        """Starts scheduling, or starts afresh with all ranks known."""
        self._inbox.put(action)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="coordinator")
            self._thread.start()

    def applied(self, message: ScheduleApplied) -> None:
        """Notes which schedule rank 0 follows, from which step on."""
        self._inbox.put(message)

    def stop(self) -> None:
        """Ends the thread after its present action."""
        self._inbox.put(None)

    def _run(self) -> None:
        coordinator: Coordinator | None = None
        applied: ScheduleApplied | None = None  # a new coordinator may know this number only after its first poll
        pause_s = _LONGEST_PAUSE_S
        while True:
            try:
                told = self._inbox.get(timeout=pause_s)
            except Empty:
                pass
            else:
                if told is None:
                    return
                if isinstance(told, ScheduleApplied):
                    applied = told
                else:
                    coordinator = self._new(told) or coordinator
            if coordinator is not None:
                if applied is not None:
                    coordinator.applied(applied.number, applied.step)
                pause_s = min(coordinator.poll(), _LONGEST_PAUSE_S)
                self._post(e.CoordinatorAlive(coordinator.lease.lease_s))

    def _new(self, action: e.StartCoordinator) -> Coordinator | None:
        try:
            return Coordinator(
                self._operations.another_view(),
                self._settings,
                kind="local",
                rank_infos=action.rank_infos,
                on_publish=self._publish,
                lead_s=0.0,
            )
        except PfoError as error:
            log.warning("this job cannot be scheduled here: %s", error)
            return None

    def _publish(self, number: int, schedules: list[FrequencySchedule], steps: int) -> None:
        self._post(e.ForTraining(new_schedule(number, 0, schedules, steps)))
