"""The helper process of a host: does all input and output on the shared directory for the ranks of this host.

Training never touches the directory: a hung mount blocks the process that asks it, for as long as it likes, and that
must be this process. It lives in a session of its own, ends when the last training process of the host has gone, and is
left behind when the mount does not let it go. Started by `client.HelperClient`.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from typing import Any

from pfo_fs.errors import plain_text
from pfo_fs.helper.events import Logged
from pfo_fs.helper.local_coordinator import CoordinatorThread
from pfo_fs.helper.loop import HelperLoop
from pfo_fs.helper.operations import DirectoryOperations
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import transport
from pfo_fs.ipc.spawn import given_arguments, start_process
from pfo_fs.settings import load_settings


def serve(server: socket.socket, given: dict[str, Any]) -> None:
    """Serves the ranks of one job on this host until they have gone.

    Args:
        server: Listens at the job's address.
        given: `shared_dir`, the job's `token`, and `settings` for scheduling where no daemon does.
    """
    settings = load_settings(**given.get("settings", {}))
    operations = DirectoryOperations(given["shared_dir"], f"{socket.gethostname()}:{os.getpid()}", settings.scheduler)
    state = HelperState(given["token"], poll_interval_s=settings.poll_interval, now_s=time.monotonic())
    loop = HelperLoop(state, operations, lambda post: CoordinatorThread(operations, settings, post), reset_clocks)
    # No output of its own: a helper that a hung mount holds must not keep a launcher's pipes open.
    logging.basicConfig(level=logging.INFO, handlers=[_ToTraining(loop)], force=True)
    loop.serve(server)


def reset_clocks(gpu_spec: str) -> None:
    """Starts a process that puts the clocks of a GPU back to their default, and does not wait for it."""
    start_process(
        "pfo_fs.device.clock_process",
        {"spec": gpu_spec, "reset_only": True, "leave_clocks": False, "power_limit_w": None},
        keep_stderr=False,
    )


class _ToTraining(logging.Handler):
    """Log records go to one training process of this host, which logs them as its own."""

    def __init__(self, loop: HelperLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.post(Logged(record.levelno, plain_text(record.getMessage())))


def main() -> int:
    """Runs the helper process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the training processes have gone, not before
    given = given_arguments()
    try:
        server = transport.listen(given["address"])
    except OSError:
        return 0  # another process of this host was faster
    sys.path += [entry for entry in given.get("path", []) if entry not in sys.path]
    serve(server, given)
    os._exit(0)  # a thread that hangs in the file system is not waited for


if __name__ == "__main__":
    sys.exit(main())
