"""Runs one job under a daemon that is killed at its n-th call that changes the directory, for one n after another.

Usage: kill_at_every_call.py FOLDER FIRST STEP. Prints a line of JSON for each n with what the job's folder holds at the
end, then stops once n is beyond the last call. Forks from one warm process: each n costs two daemons.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from jobs import make_job, rank_infos, register, write_results
from replaced_calls import Watched
from running import HANGS_AFTER_S

from pfo_fs.coordination.daemon import Daemon
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, bodies

SETTINGS = {"scheduler": "schedulers:ThreeSteps", "poll_interval": 0.01, "lease_timeout": 0.15, "watch": "poll"}
CHANGES = ("write", "fsync", "replace", "rename", "link", "unlink", "mkdir")  # after each, another state is left behind


class Deadly(Watched):
    """Kills its own process just before the n-th change."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def around(self, name: str, real: Any, *args: Any, **options: Any) -> Any:
        self.left -= name in CHANGES
        if self.left == 0 and name in CHANGES:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)


def start_daemon(root: Path, kill_at: int) -> int:
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive a test that timed out
        daemon = Daemon(Files(root, calls=Deadly(kill_at)), PFOSettings(**SETTINGS))
        signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
        daemon.run()
        os._exit(0)
    return pid


def finish(folder: JobFolder, pid: int, deadline: float) -> bool:
    """Plays the ranks until all three schedules and results are there; False if the daemon died."""
    infos = rank_infos(2)
    number = 0
    while time.monotonic() < deadline:
        while number < 3 and folder.read(bodies.IndexBody, number=number) is not None:
            write_results(folder, number, infos, time_s=number + 1.0)
            number += 1
        current = folder.read(bodies.CurrentBody)
        if number == 3 and current is not None and current.number == 2 and current.state == "running":
            return True
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return False
        time.sleep(0.002)
    raise SystemExit(f"{folder.path}: not finished in time")


def content(root: Path, folder: JobFolder) -> dict[str, Any]:
    """Names and bodies of all that is in the job's folder, without what tells one run from another."""
    found = {}
    for path in sorted((root / folder.path).rglob("*.json")):
        name = str(path.relative_to(root / folder.path))
        if path.name.startswith(".pfo-"):
            continue
        body = json.loads(path.read_text())["body"]
        for key in ("generation", "start_step", "nonce"):
            body.pop(key, None)
        body.get("job_info", {}).pop("job_id", None)
        found[name] = body
    return found


def main() -> None:
    base, kill_at, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    while True:
        root = base / str(kill_at)
        base.mkdir(parents=True, exist_ok=True)
        folder = register(make_job(root, 2))
        deadline = time.monotonic() + HANGS_AFTER_S
        pid = start_daemon(root, kill_at)
        died = not finish(folder, pid, deadline)
        if died:
            pid = start_daemon(root, -1)
            if not finish(folder, pid, deadline):
                raise SystemExit(f"the daemon that was not to be killed died (n = {kill_at})")
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        print(json.dumps({"n": kill_at, "died": died, "content": content(root, folder)}), flush=True)
        if not died:
            return
        kill_at += step


main()
