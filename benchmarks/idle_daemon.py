"""What an idle daemon costs: 1,000 finished jobs and 10 live ones in its directory, and nothing to schedule.

    python benchmarks/idle_daemon.py [--finished 1000] [--live 10] [--seconds 30] [--json FILE]

Needs `pip install -e .`. The finished jobs are complete (ranks, schedule, results, `end.json`) and not archived. The
live ones have had their schedule and measured it; this script rewrites rank 0's progress about once a second for each,
as the helper process of a host does on a local file system. After the daemon has settled, its CPU time and its calls
on the shared directory are read for so many seconds: with file-system events as a hint, and with polling alone, once a
second, as on network file systems. The bar is 1 % of a core. Calls are those of `Files`. Not measured: a metadata
server's answers, which the daemon would wait for and not compute.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import _common as common
import _zeus

from pfo_fs.models import JobInfo, ProfilingResult, RankInfo
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

RANKS = _zeus.STAGES
BAR = 1.0
"""Per cent of a core."""


def make_job(root: Path, name: str) -> JobFolder:
    """A registered job."""
    info = JobInfo.model_validate({**_zeus.degrees(RANKS), "job_id": name})
    body = bodies.JobBody(job_info=info, coordination="daemon")
    folder = SharedDirectory(Files(root), "benchmark").create_job(body, "attempt")
    for rank in range(RANKS):
        rank_info = RankInfo.model_validate(_zeus.rank_info(rank, RANKS))
        folder.register_ranks([bodies.RankBody(rank_info=rank_info, nonce=str(rank))])
    return folder


def write_progress(folder: JobFolder, step: int) -> None:
    """What the helper process of the first host writes."""
    ranks = [bodies.RankProgress(rank=rank, step=step, number=0, iter_time=0.5) for rank in range(RANKS)]
    folder.write_progress(bodies.ProgressBody(ranks=ranks), 0)


def write_results(folder: JobFolder) -> None:
    """What all ranks measured under their schedule."""
    for rank in range(RANKS):
        result = ProfilingResult(rank=rank, iter_time=[0.5] * 5, iter_energy=[100.0] * 5)
        folder.write_results(0, [bodies.ResultBody(result=result)])


def finish(root: Path, count: int, pattern: JobFolder) -> None:
    """Makes finished jobs, all like `pattern` but for their ids, which all of their records carry."""
    pattern.write_end(bodies.EndBody(reason="finished"))
    job = pattern.read_job()
    assert job is not None
    for number in range(1, count):
        name = f"2025-01-01-00-00-00+finished{number}"
        shutil.copytree(root / pattern.path, root / "jobs" / name, ignore=shutil.ignore_patterns("job.json"))
        copy = JobFolder(pattern.files, f"jobs/{name}", name, "benchmark", "attempt")
        info = job.job_info.model_copy(update={"job_id": name})
        copy.claim("job", job.model_copy(update={"job_info": info}), "job.json")


def train(folder: JobFolder, step: int, stop: threading.Event) -> None:
    """One live job: its first host's helper process, which writes about once a second."""
    while not stop.wait(random.uniform(0.9, 1.1)):
        step += 2
        write_progress(folder, step)


def measure(
    root: Path, plan: Path, live: list[JobFolder], watch: str, seconds: float, settle_s: float
) -> dict[str, Any]:
    """A daemon over the directory, watched."""
    counts = root.parent / "counts.json"
    options = ["--scheduler", "PointSolution", "--scheduler-args", f'{{"solution_path": "{plan}"}}', "--watch", watch]
    if watch == "poll":
        options += ["--poll-interval", "1"]  # what a daemon does on a network file system by itself
    with common.running_daemon(root, *options, counts=counts) as daemon:
        begin, started_cpu = time.monotonic(), common.cpu_s(daemon.pid)
        stop = threading.Event()
        threads = [threading.Thread(target=train, args=(folder, 100, stop)) for folder in live]
        for thread in threads:
            thread.start()
        try:
            common.wait_for(lambda: all(_scheduled(folder) for folder in live), "schedules for the live jobs")
            time.sleep(settle_s)
            settling_cpu = common.cpu_s(daemon.pid) - started_cpu
            calls = common.read_counts(daemon, counts)
            cpu, begin = common.cpu_s(daemon.pid), time.monotonic()
            time.sleep(seconds)
            cpu, took = common.cpu_s(daemon.pid) - cpu, time.monotonic() - begin
            calls = common.read_counts(daemon, counts) - calls
            peak = common.peak_mib(daemon.pid)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    return {
        "watch": watch,
        "seconds": took,
        "cpu_percent_of_a_core": 100 * cpu / took,
        "calls_per_s": sum(calls.values()) / took,
        "calls": {name: count / took for name, count in sorted(calls.items())},
        "settling_cpu_s": settling_cpu,
        "peak_mib": peak,
    }


def _scheduled(folder: JobFolder) -> bool:
    current = folder.read_current()
    return current is not None and current.number == 0 and current.state == "running"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finished", type=int, default=1000, help="finished jobs")
    parser.add_argument("--live", type=int, default=10, help="live jobs")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the daemon is watched")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds before that")
    parser.add_argument("--dir", help="where the directory is made; default: the place for temporary files")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    about = common.machine(finished_jobs=given.finished, live_jobs=given.live)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        plan = Path(name) / "freqs_pipeline_00000.py"
        plan.write_text(_zeus.plan_text())
        root = Path(name) / "pfo"
        options = ("--scheduler", "PointSolution", "--scheduler-args", f'{{"solution_path": "{plan}"}}')
        with common.running_daemon(root, *options):
            pattern = make_job(root, "2025-01-01-00-00-00+finished0")
            live = [make_job(root, f"2025-01-02-00-00-00+live{number}") for number in range(given.live)]
            common.wait_for(lambda: all(map(_scheduled, [pattern, *live])), "schedules")
        for folder in (pattern, *live):
            write_results(folder)
        finish(root, given.finished, pattern)
        modes = ("auto", "poll")
        results = [measure(root, plan, live, watch, given.seconds, given.settle) for watch in modes]
    rows = [
        [
            {"auto": "events and polling", "poll": "polling alone"}[one["watch"]],
            f"{one['cpu_percent_of_a_core']:.2f}",
            "yes" if one["cpu_percent_of_a_core"] < BAR else "NO",
            f"{one['calls_per_s']:.0f}",
            *(f"{one['calls'].get(call, 0):.1f}" for call in ("open", "listdir", "read", "fsync")),
            f"{one['settling_cpu_s']:.2f}",
            f"{one['peak_mib']:.0f}",
        ]
        for one in results
    ]
    columns = [
        "daemon",
        "% of\na core",
        f"below\n{BAR:.0f} %",
        "calls/s\nall",
        "\nopen",
        "\nlistdir",
        "\nread",
        "\nfsync",
    ]
    columns += ["CPU s to\nsettle", "peak\nMiB"]
    common.show(f"An idle daemon over {given.finished:,} finished and {given.live} live jobs", columns, rows)
    common.write_json(given.json, about, results)


if __name__ == "__main__":
    main()
