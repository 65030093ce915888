"""How long a standby daemon takes to lead on a network file system: after a kill, and after the leader's link is cut.

    python benchmarks/cluster.py
    python benchmarks/cluster.py --repeats 10

Three hosts in network namespaces mount one GlusterFS volume (tests/cluster.py): two run daemons, the third reads the
daemon's record every 20 ms, and its view is what counts. It needs root, glusterfs-server and FUSE. Each figure stands
beside the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import Cluster, Host, missing  # noqa: E402

from pfo_fs.store import Files, SharedDirectory  # noqa: E402


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "the condition") -> Any:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise SystemExit(f"{what} did not come true within {timeout_s} s")


def daemon(host: Host) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **host.environment, "PYTHONPATH": str(ROOT)}
    command = [*host.prefix, sys.executable, "-m", "pfo_fs", "daemon", str(host.mount / "pfo")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def change_s(how: str) -> float:
    """The time until another daemon leads, in s."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder) / "cluster", 3, wait_for)
        daemons = []
        try:
            shared = SharedDirectory(Files(cluster.hosts[2].mount / "pfo", create=True))

            def leader() -> str:
                record = shared.read_daemon()
                return record.host if record is not None else ""

            for host in cluster.hosts[:2]:
                daemons.append(daemon(host))
                wait_for(leader, what="a leader")
            time.sleep(5.0)  # the standby daemon has started, and knows the leader's pace
            began = time.monotonic()
            if how == "killed":
                daemons[0].kill()
            else:
                cluster.cut(cluster.hosts[0])
            wait_for(lambda: leader() == "host1", what="the next leader")
            return time.monotonic() - began
        finally:
            for process in daemons:
                process.kill()
            cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if lacking := missing():
        raise SystemExit(f"this benchmark needs {lacking}")
    for how in ("killed", "cut off"):
        times_s = [change_s(how) for _ in range(args.repeats)]
        print(
            f"leader {how}: {median(times_s):.1f} s (median), {min(times_s):.1f} to {max(times_s):.1f} s, "
            f"{args.repeats} times, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
