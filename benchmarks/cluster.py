"""How soon things are known on a network file system: that another daemon leads, and that there is a new schedule.

    python benchmarks/cluster.py
    python benchmarks/cluster.py --repeats 10 --edits 30

Hosts in network namespaces mount one GlusterFS volume (tests/cluster.py), with caches of one second. It needs root,
glusterfs-server and FUSE. Each figure stands beside the load of the machine.

- Two hosts run daemons; the leader is killed, or its link is cut. A third host reads the daemon's record every 20 ms,
  and its view is what counts.
- One host runs a daemon, two have eight ranks each (light clients: the helper's own state machine and file operations).
  A person on a fourth host edits `schedule.yaml` at a random moment. The time until the helper of a host has the new
  schedule is counted from the edit, and from when the daemon's host could read the new `current.json`. Helpers poll a
  network file system every 2 s.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests"))

from _hosts import Host as RanksHost  # noqa: E402
from _hosts import run_hosts  # noqa: E402
from _zeus import plan_text  # noqa: E402
from cluster import Cluster, Host, missing  # noqa: E402

from pfo_fs.store import Files, JobFolder, SharedDirectory  # noqa: E402


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "the condition") -> Any:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise SystemExit(f"{what} did not come true within {timeout_s} s")


def daemon(host: Host, *options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **host.environment, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}
    command = [*host.prefix, sys.executable, "-m", "pfo_fs", "daemon", str(host.mount / "pfo"), *options]
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


class Seen(NamedTuple):
    """One edit of `schedule.yaml`.

    Attributes:
        written_s: Seconds until the daemon's host could read the new schedule.
        edit_s: For each host of ranks, the seconds from the edit until its helper had the schedule.
        schedule_s: The same from when the daemon's host could read the schedule.
    """

    written_s: float
    edit_s: list[float]
    schedule_s: list[float]


def edits(count: int) -> list[Seen]:
    """Edits `schedule.yaml` at random moments; returns when the hosts of ranks saw that."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder) / "cluster", 4, wait_for)
        process = None
        try:
            of_ranks, of_daemon, of_person = cluster.hosts[:2], cluster.hosts[2], cluster.hosts[3]
            shared = SharedDirectory(Files(of_daemon.mount / "pfo", create=True))
            plan = Path(folder) / "plan.py"
            plan.write_text(plan_text(4))
            options = json.dumps({"solution_path": str(plan)})
            process = daemon(of_daemon, "--scheduler", "_scale_policy:MeasureOnce", "--scheduler-args", options)
            wait_for(shared.read_daemon, what="the daemon")
            clients = [RanksHost(str(host.mount / "pfo"), number, 16, False) for number, host in enumerate(of_ranks)]
            made = clients[0].create()
            run_hosts(clients, made)
            job = shared.job(made["job_id"])
            job.read_job()
            yaml = of_person.mount / "pfo" / job.path / "schedule.yaml"
            return [_edit(yaml, 1200 + 15 * (number % 2), clients, job, number) for number in range(count)]
        finally:
            if process is not None:
                process.kill()
            cluster.close()


def _edit(yaml: Path, mhz: int, clients: Sequence[RanksHost], job: JobFolder, step: int) -> Seen:
    """Edits once; the hosts' clients go on meanwhile."""
    from pfo_fs.ipc import messages as m

    until = time.monotonic() + random.uniform(3.0, 6.0)
    before, edited, written = _number(job), math.inf, math.inf
    seen = [math.inf] * len(clients)
    while max(seen) == math.inf:
        now = time.monotonic()
        if edited == math.inf and now >= until:
            yaml.write_text(f"all: {mhz}\n")
            edited = time.monotonic()
        if written == math.inf and edited < math.inf and _number(job) > before:
            written = time.monotonic()
        if now > until + 60:
            raise SystemExit("a host did not see the new schedule within 60 s")
        for number, client in enumerate(clients):
            client.heard.clear()
            client.look()
            if any(isinstance(message, m.NewSchedule) and message.number > before for message in client.heard):
                seen[number] = time.monotonic()
        time.sleep(0.02)
    return Seen(written - edited, [at - edited for at in seen], [max(0.0, at - written) for at in seen])


def _number(job: JobFolder) -> int:
    current = job.read_current()
    return current.number if current is not None else -1


def _text(values_s: Sequence[float]) -> str:
    ordered = sorted(values_s)
    return f"{median(ordered):.1f} s (median), {ordered[0]:.1f} to {ordered[-1]:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--edits", type=int, default=20)
    args = parser.parse_args()
    if lacking := missing():
        raise SystemExit(f"this benchmark needs {lacking}")
    for how in ("killed", "cut off"):
        if args.repeats:
            times_s = [change_s(how) for _ in range(args.repeats)]
            print(f"leader {how}: {_text(times_s)}, {args.repeats} times, load {os.getloadavg()[0]:.0f}", flush=True)
    if args.edits:
        seen = edits(args.edits)
        print(f"{args.edits} edits of schedule.yaml, load {os.getloadavg()[0]:.0f}")
        print(f"  the daemon has written a schedule after {_text([one.written_s for one in seen])}")
        print(f"  each host has it, after that:           {_text([s for one in seen for s in one.schedule_s])}")
        print(f"  each host has it, after the edit:       {_text([s for one in seen for s in one.edit_s])}")


if __name__ == "__main__":
    main()
