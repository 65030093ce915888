"""The longest steps of training while the shared directory fails, beside those of the same job without a fault.

    python benchmarks/file_system_faults.py
    python benchmarks/file_system_faults.py --repeats 5 --seconds 30

Two ranks (gloo) on two hosts in network namespaces train under the daemon of a third host, over one GlusterFS volume
(tests/cluster.py). A step sleeps 10 ms and ends with an all-reduce, so whatever holds up a rank makes a step longer.
In each repeat every case runs once, in random order. It needs root, glusterfs-server and FUSE.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "processes")]

from cluster import Cluster, missing  # noqa: E402
from training_job import Job, all_made  # noqa: E402


def wait_for(condition: Callable[[], Any], timeout_s: float = 120.0, what: str = "the condition") -> Any:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise SystemExit(f"{what} did not come true within {timeout_s} s")


def nothing(cluster: Cluster, seconds: float) -> None:
    time.sleep(seconds)


def server_hangs(cluster: Cluster, seconds: float) -> None:
    cluster.server.send_signal(signal.SIGSTOP)
    time.sleep(0.8 * seconds)
    cluster.server.send_signal(signal.SIGCONT)
    time.sleep(0.2 * seconds)


def server_dies(cluster: Cluster, seconds: float) -> None:
    cluster.server.kill()
    time.sleep(0.5 * seconds)
    cluster.restart_server()
    time.sleep(0.5 * seconds)


def host_is_cut_off(cluster: Cluster, seconds: float) -> None:
    cluster.hide_server(cluster.hosts[1])
    time.sleep(0.8 * seconds)
    cluster.show_server(cluster.hosts[1])
    time.sleep(0.2 * seconds)


CASES = {
    "no fault": nothing,
    "the server hangs": server_hangs,
    "the server dies and comes back": server_dies,
    "a host is cut off from it": host_is_cut_off,
}


def steps_s(fault: Callable[[Cluster, float], None], seconds: float) -> tuple[list[float], float]:
    """The durations of rank 0's steps while a fault lasts, and the CPU time of its helper meanwhile, in s."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder) / "cluster", 3, wait_for)
        job = daemon = None
        try:
            host = cluster.hosts[2]
            environment = {**os.environ, **host.environment, "PYTHONPATH": str(ROOT), "PFO_FS_SCHEDULER": "Manual"}
            command = [*host.prefix, sys.executable, "-m", "pfo_fs", "daemon", str(host.mount / "pfo")]
            daemon = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            given = {"mesh": {"pp": 2}, "work_s": 0.005}
            job = Job(Path(folder), 2, given, hosts=cluster.hosts[:2], PFO_FS_GPU="simulated")
            wait_for(all_made(job, 2), what="both ranks")
            wait_for(lambda: len(job.of(step=100)) == 2, what="steps")
            helper = job.having("helper_pid")[0]["helper_pid"]
            began, cpu_s = time.monotonic(), cpu_of(helper)
            fault(cluster, seconds)
            cpu_s, ended = cpu_of(helper) - cpu_s, time.monotonic()
            times = [line["at_s"] for line in job.of(rank=0) if "step" in line]
            job.finish()
            inside = [at for at in times if began <= at <= ended]
            return [later - at for at, later in pairwise(inside)], cpu_s
        finally:
            for process in filter(None, (job, daemon)):
                process.kill()
            cluster.close()


def cpu_of(pid: int) -> float:
    """The CPU time of a process, in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="for which a fault lasts")
    args = parser.parse_args()
    if lacking := missing():
        raise SystemExit(f"this benchmark needs {lacking}")
    chance, found = random.Random(1), {name: [] for name in CASES}
    for _ in range(args.repeats):
        for name in chance.sample(list(CASES), len(CASES)):
            found[name].append(steps_s(CASES[name], args.seconds))
    print(f"{args.repeats} runs of {args.seconds:g} s each; load {os.getloadavg()[0]:.0f}")
    print(f"{'':32s} median step  longest step of each run (ms)      CPU of rank 0's helper (s)")
    for name, runs in found.items():
        longest = "  ".join(f"{1e3 * max(durations):6.1f}" for durations, _ in runs)
        cpu = "  ".join(f"{cpu_s:5.2f}" for _, cpu_s in runs)
        print(
            f"{name:32s} {1e3 * median([d for durations, _ in runs for d in durations]):8.1f} ms  {longest:36s} {cpu}"
        )


if __name__ == "__main__":
    main()
