"""The helper process: does all input and output on shared files for training, which never touches them itself.

It serves all ranks of a job on one host, whichever optimizer they have. A hung mount blocks the process that calls it,
for an unlimited time; so that process must be this one and not training.
`client.HelperClient` starts the helper in a session of its own. The helper ends when the last training process that it
serves has gone; if a hung mount keeps it from ending, training does not wait for it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.undo import reset_left_by
from pfo_fs.device.gpu.spec import load_all_ways
from pfo_fs.errors import plain_text
from pfo_fs.helper.events import ForTraining, Terminated
from pfo_fs.helper.local_coordinator import CoordinatorThread
from pfo_fs.helper.loop import HelperLoop
from pfo_fs.helper.operations import DirectoryOperations
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc.messages import GpuToReset, LogLine
from pfo_fs.ipc.started import OwnOutput, on_sigterm
from pfo_fs.settings import load_settings


def loop_for(given: dict[str, Any]) -> HelperLoop:
    """Returns the loop that serves the ranks of one job on this host.

    Args:
        given: `shared_dir`, the job's `token`, and `settings` for scheduling where no daemon does.
    """
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
        self._loop.post(ForTraining(line))


def main(given: dict[str, Any]) -> None:
    """Runs the helper process; SIGTERM does not end it, since it ends when the training processes have gone."""
    loop = loop_for(given)
    logging.basicConfig(level=logging.INFO, handlers=[_ToTraining(loop)], force=True)
    on_sigterm(lambda *_: loop.post(Terminated()))
    loop.serve(socket.socket(fileno=given["server_fd"]))
    os._exit(0)  # a thread that hangs in the file system is not waited for
