"""The helper process: does all input and output on shared files for training, which never touches them itself.

It serves all ranks of a job on one host, whichever optimizer they have. A hung mount blocks the process that calls it,
for an unlimited time; so that process must be this one and not training. Where no daemon schedules the job, the helper
of rank 0 does, by a coordinator in a thread of its own: planning takes seconds.
`client.HelperClient` starts the helper in a session of its own. The helper ends when the last training process that it
serves has gone; if a hung mount keeps it from ending, training does not wait for it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from pfo_fs.coordination import Coordinator
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.undo import reset_left_by
from pfo_fs.device.gpu.spec import load_all_ways
from pfo_fs.errors import PfoError, plain_text
from pfo_fs.helper import events as e
from pfo_fs.helper.loop import HelperLoop
from pfo_fs.helper.operations import DirectoryOperations, new_schedule
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc.messages import GpuToReset, LogLine, ScheduleApplied
from pfo_fs.ipc.started import OwnOutput, on_sigterm
from pfo_fs.models import FrequencySchedule
from pfo_fs.settings import PFOSettings, load_settings
from pfo_fs.turns import Term

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

    def tell(self, what: e.StartCoordinator | ScheduleApplied | None) -> None:
        """Starts scheduling, afresh when all ranks are known; says what rank 0 follows; None ends the thread."""
        self._inbox.put(what)
        if self._thread is None and what is not None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="coordinator")
            self._thread.start()

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
                self._post(e.CoordinatorAlive(coordinator.lease[0]))

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

    def _publish(self, number: int, start_step: int, schedules: list[FrequencySchedule], term: Term) -> None:
        self._post(e.ForTraining(new_schedule(number, start_step, schedules, term)))


def loop_for(given: dict[str, Any]) -> HelperLoop:
    """Returns the loop that serves the ranks of one job on this host."""
    settings = load_settings(of_job=True, **given.get("settings", {}))
    operations = DirectoryOperations(given["shared_dir"], f"{socket.gethostname()}:{os.getpid()}", settings.scheduler)
    state = HelperState(given["token"], poll_interval_s=settings.poll_interval, now_s=time.monotonic())
    return HelperLoop(
        state,
        operations,
        lambda post: CoordinatorThread(operations, settings, post),
        load_all_ways,
        reset_gpu,
        OwnOutput(),
    )


def reset_gpu(gpu: GpuToReset) -> str:
    """Puts back what a clock process has left on its GPU; returns why that is not done, or ''."""
    return reset_left_by(gpu.spec, ClockOptions(clock_backend=gpu.clock_backend, leave_clocks=gpu.leave_clocks))


class _ToTraining(logging.Handler):
    """Sends log records to one training process of this host, which logs them as its own."""

    def __init__(self, loop: HelperLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        line = LogLine(level=record.levelno, message=plain_text(record.getMessage()))
        self._loop.post(e.ForTraining(line))


def main(given: dict[str, Any]) -> None:
    """Runs the helper process; SIGTERM does not end it, since it ends when the training processes have gone."""
    loop = loop_for(given)
    logging.basicConfig(level=logging.INFO, handlers=[_ToTraining(loop)], force=True)
    on_sigterm(lambda *_: loop.post(e.Terminated()))
    loop.serve(socket.socket(fileno=given["server_fd"]))
    os._exit(0)  # a thread that hangs in the file system is not waited for
