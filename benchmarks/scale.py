"""One job with very many ranks, or very many jobs, in one shared directory: light clients and the real daemon.

    python benchmarks/scale.py [--ranks 16384] [--per-host 8] [--gluster] [--seconds 60] [--json FILE]
    python benchmarks/scale.py --jobs 1000 [--ranks 8]

Each host is what the host's helper process runs, its state and its operations, so all checks, locks, retries and pauses
are the real ones; a few threads in two processes drive all of them. There is no training and no torch, and the sockets
between trainers and helper are left out. The daemon is a process of its own, with a policy that lets all ranks measure
one plan (`_scale_policy.py`). With `--gluster` daemon and clients have a mount each of a GlusterFS volume that lies on
this machine.

Four figures: the time from the first rank's request until all ranks have their schedule; the daemon's CPU time and
memory until then; operations on the directory per rank and minute while training goes on (`--seconds`, each rank
reports an iteration every 10 s, the measurement begins `--settle` s after the schedule); and the time from the first
rank's measurement until the daemon has read those of all ranks (5 iterations of `--microbatches` micro-batches each).
An operation is a file that is read or written or a folder that is listed; system calls, of which each takes several,
are shown beside them.

All hosts share this machine's cores with the daemon and the file server, which in truth they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _common as common
import _zeus
from _gluster import mounted
from _scale_clients import client_processes

from pfo_fs.store import SharedDirectory

ITERATIONS = 5
SERVED_WITHIN_S = {("local", 16384): 15, ("GlusterFS", 16384): 120, ("local", 65536): 60}


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run in a fresh directory."""
    plan, counts = folder / "freqs_pipeline_00000.py", folder / "counts.json"
    plan.write_text(_zeus.plan_text(given.microbatches))
    hosts = given.jobs or -(-given.ranks // given.per_host)
    ranks = given.ranks * max(1, given.jobs)
    with ExitStack() as stack:
        mounts = stack.enter_context(mounted(folder / "gluster")) if given.gluster else (folder, folder)
        ours, theirs = mounts[0] / "pfo", mounts[1] / "pfo"
        options = ("--scheduler", "_scale_policy:MeasureOnce", "--scheduler-args")
        arguments = json.dumps({"solution_path": str(plan)})
        daemon = stack.enter_context(
            common.running_daemon(ours, *options, arguments, counts=counts, log=folder / "daemon.log")
        )
        per_host = given.ranks if given.jobs else given.per_host
        clients = stack.enter_context(
            client_processes(str(theirs), given.ranks, per_host, hosts, min(given.processes, hosts))
        )
        result: dict[str, Any] = {"ranks": ranks, "jobs": given.jobs or 1, "ranks_per_host": per_host}
        result["file_system"] = "GlusterFS" if given.gluster else "local"

        def costs() -> tuple[float, int, int]:
            calls = sum(common.read_counts(daemon, counts).values())
            return common.cpu_s(daemon.pid), calls, sum(common.read_counts(daemon, counts, "operations").values())

        def figures(name: str, told: list[dict[str, Any]], before: tuple[float, int, int]) -> None:
            cpu, calls, operations = (now - then for now, then in zip(costs(), before, strict=True))
            result[f"{name}_daemon_cpu_s"] = cpu
            result[f"{name}_client_cpu_s"] = sum(one["cpu_s"] for one in told)
            result[f"{name}_daemon_calls_per_rank"] = calls / ranks
            result[f"{name}_daemon_operations_per_rank"] = operations / ranks
            result[f"{name}_client_calls_per_rank"] = sum(one["calls"] for one in told) / ranks
            result[f"{name}_client_operations_per_rank"] = sum(one["operations"] for one in told) / ranks
            result[f"{name}_load"] = os.getloadavg()[0]
            result["daemon_peak_mib"] = common.peak_mib(daemon.pid)

        before = costs()
        created = clients.ask("create", first=True)[0] if not given.jobs else None
        joined = clients.ask("join", created["job"] if created else None)
        begin = created["begin"] if created else min(one["begin"] for one in joined)
        result["served_s"] = max(one["end"] for one in joined) - begin
        figures("served", [*([created] if created else []), *joined], before)
        print(f"{ranks} ranks served after {result['served_s']:.1f} s", flush=True)

        if given.seconds:
            clients.ask("steady", given.settle)
            before = costs()
            figures("steady", clients.ask("steady", given.seconds), before)
            result["steady_s"] = given.seconds
            each = 60 / given.seconds
            who = (result["steady_client_operations_per_rank"], result["steady_daemon_operations_per_rank"])
            result["steady_operations_per_rank_and_minute"] = sum(who) * each
            print(f"{sum(who) * each:.2f} operations per rank and minute", flush=True)

        if created:
            before, begin = costs(), time.monotonic()
            told = clients.ask("measure", ITERATIONS, given.microbatches)
            result["results_written_s"] = max(one["written"] for one in told) - begin
            job = SharedDirectory.open(theirs).job(created["job"]["job_id"])

            def all_read() -> bool:
                current = job.read_current()
                return current is not None and current.number == 1

            common.wait_for(all_read, "the results of all ranks", 600)
            result["results_read_s"] = time.monotonic() - begin
            figures("results", told, before)
            print(f"results of all ranks read after {result['results_read_s']:.1f} s", flush=True)
        clients.ask("bye")
        return result


def show(one: dict[str, Any]) -> None:
    """Prints the figures of one run."""
    bar = SERVED_WITHIN_S.get((one["file_system"], one["ranks"])) if one["jobs"] == 1 else None
    rows = []
    for name, label in (("served", "until all are served"), ("steady", "steady state"), ("results", "results")):
        if f"{name}_daemon_cpu_s" not in one:
            continue
        took = one.get("results_read_s") if name == "results" else one[f"{name}_s"]
        numbers = [one[f"{name}_{key}"] for key in ("daemon_cpu_s", "client_cpu_s")]
        cells = [f"{took:.1f}", *(f"{number:.1f}" for number in numbers)]
        each = 60 / one["steady_s"] if name == "steady" else 1
        for who in ("client", "daemon"):
            cells += [f"{one[f'{name}_{who}_{what}_per_rank'] * each:.2f}" for what in ("operations", "calls")]
        rows.append([label, *cells, f"{one[f'{name}_load']:.1f}"])
    columns = ["", "s", "daemon\nCPU s", "clients\nCPU s", "operations\nclients", "calls\nclients"]
    columns += ["operations\ndaemon", "calls\ndaemon", "load"]
    title = f"{one['ranks']:,} ranks, {one['ranks_per_host']} per host, {one['jobs']:,} job(s), {one['file_system']}"
    texts = [f"Daemon: {one['daemon_peak_mib']:.0f} MiB at most.", "Operations and calls per rank; steady: per minute."]
    if bar is not None:
        texts.append(f"Served within {bar} s: {'yes' if one['served_s'] <= bar else 'NO'}.")
    if "steady_s" in one:
        at_most_one = one["steady_operations_per_rank_and_minute"] <= 1
        texts.append(f"At most 1 operation per rank and minute: {'yes' if at_most_one else 'NO'}.")
    common.show(title, columns, rows, " ".join(texts))


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ranks", type=int, default=None, help="ranks of a job, a multiple of 64, or 8; default: 16384"
    )
    parser.add_argument("--per-host", type=int, default=8, help="ranks of a host")
    parser.add_argument("--jobs", type=int, default=0, help="so many jobs of one host each (default of --ranks: 8)")
    parser.add_argument("--gluster", action="store_true", help="on GlusterFS: needs root, FUSE and glusterfs-server")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the steady state is watched; 0: not")
    parser.add_argument("--settle", type=float, default=75.0, help="seconds before that")
    parser.add_argument("--microbatches", type=int, default=16, help="micro-batches of an iteration")
    parser.add_argument("--processes", type=int, default=2, help="client processes")
    parser.add_argument("--dir", help="where the directory is made; default: the place for temporary files")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    given.ranks = given.ranks or (8 if given.jobs else 16384)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # mounts and processes end with this one
    about = common.machine()
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        result = measure(given, Path(name))
    show(result)
    common.write_json(given.json, about, [result])


if __name__ == "__main__":
    main()
