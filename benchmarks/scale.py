"""What a directory with very many ranks or jobs costs: light clients, and the real daemon.

    python benchmarks/scale.py [--ranks 16384] [--per-host 8] [--gluster]     # one job
    python benchmarks/scale.py --jobs 1000                                    # many jobs of 8 ranks
    python benchmarks/scale.py --jobs 10 --finished 1000 --iteration 0.5      # a daemon with nothing to do

Each host is what the host's helper process runs, its state and its operations, so all checks, locks, retries and pauses
are the real ones; a few threads in two processes drive all of them. There is no training and no torch, and the sockets
between trainers and helper are left out. The daemon is a process of its own, with a policy that lets all ranks measure
one plan (`MeasureOnce` in `_hosts.py`). With `--gluster` daemon and clients have a mount each of a GlusterFS volume on
this machine. With `--finished`, so many jobs that have ended and are not archived lie in the directory, too.

Four figures: the time from the first rank's request until all ranks have their schedule; the daemon's CPU time and
memory until then; operations on the directory per rank and minute, and the daemon's share of a core, while training
goes on (`--seconds`; each rank reports an iteration every `--iteration` s, and this begins `--settle` s after the
schedule); and, for one job, the time from the first rank's measurement until the daemon has read those of all ranks
(5 iterations of `--microbatches` micro-batches each). An operation is a file that is read or written or a folder that
is listed.

All hosts share this machine's cores with the daemon and the file server, which in truth they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _common as common
from _hosts import ClientProcesses, plan_text

from pfo_fs.store import JobFolder, SharedDirectory, bodies

sys.path.append(str(common.HERE.parent / "tests"))  # a GlusterFS volume on this machine

ITERATIONS = 5
SERVED_WITHIN_S = {("local", 16384): 15, ("GlusterFS", 16384): 120, ("local", 65536): 60}


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run in a fresh directory."""
    plan, count = folder / "freqs_pipeline_00000.py", folder / "count"
    plan.write_text(plan_text(given.microbatches))
    hosts = given.jobs or -(-given.ranks // given.per_host)
    ranks = given.ranks * max(1, given.jobs)
    with ExitStack() as stack:
        ours = theirs = folder / "pfo"
        if given.gluster:
            from gluster_volume import gluster_volume

            ours, theirs = (mount / "pfo" for mount in stack.enter_context(gluster_volume(folder / "gluster")).mounts)
        options = ["--scheduler", "_hosts:MeasureOnce", "--scheduler-args", json.dumps({"solution_path": str(plan)})]
        options += ["--watch", given.watch, *(["--poll-interval", "1"] if given.watch == "poll" else [])]
        if given.finished:
            finish_jobs(ours, given.finished, options)
        daemon = stack.enter_context(common.running_daemon(ours, *options, count=count, log=folder / "daemon.log"))
        per_host = given.ranks if given.jobs else given.per_host
        clients = stack.enter_context(
            ClientProcesses(str(theirs), given.ranks, per_host, hosts, min(given.processes, hosts))
        )
        result: dict[str, Any] = {"ranks": ranks, "jobs": given.jobs or 1, "ranks_per_host": per_host}
        result["finished_jobs"], result["watch"] = given.finished, given.watch
        result["file_system"] = "GlusterFS" if given.gluster else "local"

        def costs() -> tuple[float, int]:
            return common.cpu_s(daemon.pid), common.operations_of(daemon, count)

        def figures(name: str, told: list[dict[str, Any]], before: tuple[float, int]) -> None:
            cpu, operations = (now - then for now, then in zip(costs(), before, strict=True))
            result[f"{name}_daemon_cpu_s"] = cpu
            result[f"{name}_client_cpu_s"] = sum(one["cpu_s"] for one in told)
            result[f"{name}_daemon_operations_per_rank"] = operations / ranks
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

        if not created:  # a daemon that waits for results looks more often
            clients.ask("measure", ITERATIONS, given.microbatches, given.iteration)
        if given.seconds:
            clients.ask("steady", given.settle, given.iteration)
            before = costs()
            figures("steady", clients.ask("steady", given.seconds, given.iteration), before)
            result["steady_s"] = given.seconds
            each = 60 / given.seconds
            who = (result["steady_client_operations_per_rank"], result["steady_daemon_operations_per_rank"])
            result["steady_operations_per_rank_and_minute"] = sum(who) * each
            result["steady_daemon_percent_of_a_core"] = 100 * result["steady_daemon_cpu_s"] / given.seconds
            print(f"{sum(who) * each:.2f} operations per rank and minute", flush=True)

        if created:
            before, begin = costs(), time.monotonic()
            told = clients.ask("measure", ITERATIONS, given.microbatches, given.iteration)
            result["results_written_s"] = max(one["written"] for one in told) - begin
            job = SharedDirectory.open(theirs).job(created["job"]["job_id"])

            def all_read() -> bool:
                current = job.read(bodies.CurrentBody)
                return current is not None and current.number == 1

            common.wait_for(all_read, "the results of all ranks", 600)
            result["results_read_s"] = time.monotonic() - begin
            figures("results", told, before)
            print(f"results of all ranks read after {result['results_read_s']:.1f} s", flush=True)
        clients.ask("bye")
        return result


def finish_jobs(root: Path, count: int, options: list[str]) -> None:
    """Makes jobs that have ended, all copies of one but for their ids; a daemon and its clients run that one."""
    daemon = common.running_daemon(root, *options, log=root.parent / "first_daemon.log")
    with daemon, ClientProcesses(str(root), 8, 8, 1, 1) as clients:
        clients.ask("join", None)
        clients.ask("measure", ITERATIONS, 16, 10.0)
    shared = SharedDirectory.open(root)
    (job_id,) = shared.job_ids()
    pattern = shared.job(job_id)
    job = pattern.read_job()
    assert job is not None
    pattern.write(bodies.EndBody(reason="finished"))
    for number in range(1, count):
        name = f"{job_id}.{number}"
        shutil.copytree(root / pattern.path, root / "jobs" / name, ignore=shutil.ignore_patterns("job.json"))
        info = job.job_info.model_copy(update={"job_id": name})
        copy = JobFolder(pattern.files, f"jobs/{name}", name, "benchmark", pattern.attempt)
        copy.write(job.model_copy(update={"job_info": info}))


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
        cells += [f"{one[f'{name}_{who}_operations_per_rank'] * each:.2f}" for who in ("client", "daemon")]
        rows.append([label, *cells, f"{one[f'{name}_load']:.1f}"])
    columns = ["", "s", "daemon\nCPU s", "clients\nCPU s", "operations\nclients", "\ndaemon", "load"]
    title = f"{one['ranks']:,} ranks, {one['ranks_per_host']} per host, {one['jobs']:,} job(s), {one['file_system']}"
    if one["finished_jobs"]:
        title += f", beside {one['finished_jobs']:,} finished jobs"
    texts = [f"Daemon: {one['daemon_peak_mib']:.0f} MiB at most.", "Operations per rank; steady: per minute."]
    if bar is not None:
        texts.append(f"Served within {bar} s: {'yes' if one['served_s'] <= bar else 'NO'}.")
    if "steady_s" in one:
        texts.append(f"Daemon in the steady state: {one['steady_daemon_percent_of_a_core']:.2f} % of a core.")
        if one["jobs"] == 1:
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
    parser.add_argument("--finished", type=int, default=0, help="so many jobs that have ended lie beside them")
    parser.add_argument("--watch", choices=["auto", "poll"], default="auto", help="how the daemon looks for changes")
    parser.add_argument("--iteration", type=float, default=10.0, metavar="S", help="how long an iteration takes")
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
