"""From the creation of a job until every rank holds its schedule: Zeus 0.16's server and pfo-fs's daemon.

    python benchmarks/coordination.py [--sizes 8,64,256,1024] [--repeats 3] [--httpx] [--json FILE]
    python benchmarks/coordination.py --ours-only --sizes 4096,16384

Needs `pip install -e '.[benchmark]'`. Both sides run the plan of 8 stages x 96 micro-batches that this script makes, in
lowtime's format (8 ranks: `PointSolution`, more: `PointSolution3D`; eight tensor-parallel ranks a host where there are
64 or more). Each repeat starts a fresh server and a fresh daemon, gives both a job of 8 ranks to warm up, and measures
the next job, one side after the other; the medians are shown.

Zeus: its real FastAPI app under uvicorn, with the packages that `zeus[pfo-server]` installs (pydantic 1, compiled,
uvloop, httptools), in a folder of their own since ours are newer; log level INFO, no dump. All its ranks are one event
loop that sends the three requests of the optimizer's constructor over one kept-alive connection a rank, and looks at
answers only after the time was taken: real ranks open three connections, build three TLS contexts and parse. `--httpx`
adds those, with 8 and 64 ranks as threads here.

pfo-fs: a real daemon on a local directory. Each host of 8 ranks is what the host's helper process runs, its state and
its operations, so all checks, locks, retries and pauses are the real ones; a few threads in two processes drive all of
them. The sockets between trainers and helper are left out, as is what carries the job id from rank 0 to all others on
either side (`torch.distributed`).

All ranks share this machine's cores with the daemon or server, which in truth they do not: client CPU is given apart.
No network and no network file system is measured: no HTTP round trips between hosts, no metadata server. "Calls" are
those that `Files` makes on the directory, and those of locks in the clients.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import _common as common
import _zeus
from _hosts import run_job
from _zeus import STAGES, plan_text, scheduler_for


def measure_ours(size: int, plan: Path, processes: int, *, counting: bool = False) -> dict[str, Any]:
    """One job with a fresh daemon on a fresh directory."""
    with tempfile.TemporaryDirectory(dir=plan.parent) as name:
        root, counts = Path(name) / "pfo", Path(name) / "counts.json"
        args = json.dumps({"solution_path": str(plan)})
        options = ("--scheduler", scheduler_for(size), "--scheduler-args", args)
        with common.running_daemon(root, *options, counts=counts if counting else None) as daemon:
            run_job(root, STAGES, 1, counting=False)
            time.sleep(0.3)
            cpu = common.cpu_s(daemon.pid)
            before = common.read_counts(daemon, counts) if counting else Counter()
            result = run_job(root, size, processes, counting=counting)
            result["server_cpu_s"] = common.cpu_s(daemon.pid) - cpu
            result["server_peak_mib"] = common.peak_mib(daemon.pid)
            if counting:
                result["daemon_calls"] = dict(common.read_counts(daemon, counts) - before)
            return result


# ---- all of it


def median(runs: list[dict[str, Any]], side: str, size: int) -> dict[str, Any]:
    """Returns the median of each figure; of calls those of the last run."""
    result: dict[str, Any] = {"side": side, "ranks": size, "runs": [run["seconds"] for run in runs]}
    for key, value in runs[-1].items():
        result[key] = value if isinstance(value, dict) else statistics.median(run[key] for run in runs)
    return result


def show_both(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    rows = []
    for zeus, ours in pairs:
        label = f"{ours['ranks']}" + (" (httpx)" if zeus["side"] == "zeus, httpx" else "")
        cells = [f"{zeus['seconds']:.3f}", f"{ours['seconds']:.3f}", f"{zeus['seconds'] / ours['seconds']:.1f} x"]
        for key, form in (("server_cpu_s", "{:.3f}"), ("client_cpu_s", "{:.3f}"), ("server_peak_mib", "{:.0f}")):
            cells += [form.format(zeus[key]), form.format(ours[key])]
        rows.append([label, *cells])
    columns = ["ranks", "Zeus s", "ours s", "faster"]
    columns += ["server\nCPU s", "daemon\nCPU s", "clients CPU s\nZeus", "\nours", "server\nMiB", "daemon\nMiB"]
    common.show("From job creation until every rank holds its schedule", columns, rows)


def show_ours(results: list[dict[str, Any]]) -> None:
    rows = []
    for one in results:
        ranks = one["ranks"]
        locks = sum(n for name, n in one["client_calls"].items() if name.startswith("lock:"))
        calls = (sum(one["client_calls"].values()) - locks, locks, sum(one["daemon_calls"].values()))
        cells = [f"{one['seconds']:.2f}", f"{one['server_cpu_s']:.2f}", f"{one['client_cpu_s'] / ranks * 1e3:.2f}"]
        rows.append([str(ranks), *cells, f"{one['server_peak_mib']:.0f}", *(f"{n / ranks:.1f}" for n in calls)])
    columns = ["ranks", "s", "daemon\nCPU s", "clients\nCPU ms/rank", "daemon\nMiB"]
    columns += ["calls per rank\nclients", "\ntheir locks", "\ndaemon"]
    common.show("pfo-fs alone", columns, rows)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,64,256,1024", help="numbers of ranks, multiples of 8 (from 64 of 64)")
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many is shown")
    parser.add_argument("--processes", type=int, default=2, help="client processes of our side")
    parser.add_argument("--httpx", action="store_true", help="Zeus with its real httpx calls, too, at 8 and 64 ranks")
    parser.add_argument("--ours-only", action="store_true", help="no Zeus; the calls on the directory are counted")
    parser.add_argument("--zeus-packages", type=Path, help="folder for the packages of Zeus's server; default: a cache")
    parser.add_argument("--dir", help="where the directory is made; default: the place for temporary files")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    packages = None if given.ours_only else _zeus.server_packages(given.zeus_packages)
    about = common.machine(zeus_server=_zeus.versions(packages) if packages else None)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        plan = Path(name) / "freqs_pipeline_00000.py"
        plan.write_text(plan_text())
        results, pairs = [], []
        for size in map(int, given.sizes.split(",")):
            ours, zeus, real = [], [], []
            for _ in range(given.repeats):
                ours.append(measure_ours(size, plan, given.processes, counting=given.ours_only))
                if packages:
                    zeus.append(_zeus.measure(size, plan, packages, _zeus.over_sockets))
                if packages and given.httpx and size <= 64:
                    real.append(_zeus.measure(size, plan, packages, _zeus.over_httpx))
            mine = median(ours, "pfo-fs", size)
            results.append(mine)
            for runs, side in ((zeus, "zeus, raw sockets"), (real, "zeus, httpx")):
                if runs:
                    pairs.append((median(runs, side, size), mine))
                    results.append(pairs[-1][0])
            print(f"measured: {size} ranks", file=sys.stderr)
    if given.ours_only:
        show_ours(results)
    else:
        show_both(pairs)
    common.write_json(given.json, about, results)


if __name__ == "__main__":
    main()
