"""Starts the ranks of a program on this host as torchrun does, by forks of one process: torch is imported only once.

    forked_ranks.py RANKS PROGRAM [ARGUMENTS]

Where a rank fails, the others are ended, and its exit status, as a shell gives it, is that of this program.
"""

import os
import runpy
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import torch.distributed  # noqa: F401


def main() -> int:
    ranks, sys.argv = int(sys.argv[1]), sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # which is free then
    job = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = set[int]()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ |= {name: str(value) for name, value in {**job, "RANK": rank, "LOCAL_RANK": rank}.items()}
            runpy.run_path(sys.argv[0], run_name="__main__")
            return 0
        started.add(pid)
    failed = 0
    while started:
        pid, status = os.wait()
        started.discard(pid)
        if status and not failed:
            code = os.waitstatus_to_exitcode(status)
            failed = code if code > 0 else 128 - code
            for other in started:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    return failed


if __name__ == "__main__":
    sys.exit(main())
