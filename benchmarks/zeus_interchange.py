"""Plans and profiles go both ways between pfo-fs and the real Zeus server.

    python benchmarks/zeus_interchange.py PROFILE.csv [--zeus-packages FOLDER] [--num-microbatches 12] [--json FILE]

1. `pfo-fs plan --format lowtime` plans from the profile; Zeus's server (PointSolution) serves the plan; every rank gets
   the clocks that pfo-fs has planned.
2. Zeus's server serves a plan with each clock of the profile once, gets as results what the profile says of them, and
   dumps them; `pfo-fs plan` on that folder makes the same plan as on the profile.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import _common as common

from pfo_fs.cli.plan_parts import read_dump
from pfo_fs.models import FrequencySchedule
from pfo_fs.planner import Profile, read_profile
from pfo_fs.scheduler.plan_file import format_lowtime_plan, read_plan

_SERVER_NEEDS = ("pydantic<2", "fastapi", "uvicorn[standard]", "aiofiles")
"""What `zeus[pfo-server]` 0.16 asks for beside torch: it does not start with pydantic 2 and today's FastAPI."""


def server_packages(folder: Path | None) -> Path:
    """Returns a folder with the packages of Zeus's server, for PYTHONPATH; installs them when it is not there."""
    if folder is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "pfo-fs-benchmarks" / f"zeus-server-py{sys.version_info[0]}.{sys.version_info[1]}"
    if not (folder / "fastapi").is_dir():
        print(f"installing the packages of Zeus's server to {folder}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target"]
        done = subprocess.run([*pip, str(folder), *_SERVER_NEEDS], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the packages of Zeus's server cannot be had:\n{done.stderr[-2000:]}")
    return folder


def versions(packages: Path) -> str:
    """Returns which packages Zeus's server runs on."""
    found = sorted(path.name.removesuffix(".dist-info") for path in packages.glob("*.dist-info"))
    wanted = ("fastapi-", "httptools-", "pydantic-", "uvicorn-", "uvloop-")
    return ", ".join(name for name in found if name.startswith(wanted))


@contextmanager
def zeus_server(plan: Path, packages: Path, dump: Path) -> Iterator[int]:
    """Runs Zeus's server with a plan; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "ZEUS_PFO_SCHEDULER": "PointSolution",
        "ZEUS_PFO_SCHEDULER_ARGS": json.dumps({"solution_path": str(plan)}),
        "ZEUS_PFO_DUMP_DATA": "true",
        "ZEUS_PFO_DUMP_DIR": str(dump),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH")))),
    }
    app = "zeus.optimizer.pipeline_frequency.server.router:app"
    log = plan.with_name("zeus.log")
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--no-access-log"]
    with common.running(command, log, **environment) as server:

        def answers() -> bool:
            if server.poll() is not None:
                raise RuntimeError(f"Zeus's server ended:\n{log.read_text()[-2000:]}")
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            return False

        common.wait_for(answers, "Zeus's server")
        yield port


def ask(port: int, path: str, body: object = None) -> Any:
    """Returns the server's answer; with a body, the request is a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def serve(port: int, stages: int, clocks_mhz: list[int]) -> tuple[str, list[list[tuple[str, int]]]]:
    """Joins as a job; returns its id and the clocks that each rank got."""
    shape = {"pp_degree": stages, "dp_degree": 1, "tp_degree": 1, "world_size": stages}
    job_id = ask(port, "/register_job", shape)
    for number in range(stages):
        info = {"rank": number, "dp_rank": 0, "pp_rank": number, "tp_rank": 0, "available_frequencies": clocks_mhz}
        ask(port, f"/register_rank/{job_id}", info)
    with ThreadPoolExecutor(stages) as pool:  # the server answers when all ranks have asked
        schedules = pool.map(lambda number: ask(port, f"/schedule/{job_id}?rank={number}"), range(stages))
    return job_id, [[(name, mhz) for name, mhz in schedule["frequencies"]] for schedule in schedules]


def report(port: int, job_id: str, profile: Profile, got: list[list[tuple[str, int]]], dump: Path) -> Path:
    """Reports what the profile says of each instruction; returns the folder that the server has dumped."""
    for stage, clocks in enumerate(got):
        times: dict[str, list[list[float]]] = {"forward": [[]], "backward": [[]]}
        energies: dict[str, list[list[float]]] = {"forward": [[]], "backward": [[]]}
        for name, mhz in clocks:
            (found,) = (m for m in profile.measurements[stage, name] if m.frequency_mhz == mhz)
            times[name][0].append(found.time_s)
            energies[name][0].append(found.energy_j)
        result = {
            "rank": stage,
            "iter_time": [1.0],
            "iter_energy": [1.0],
            "time_breakdown": times,
            "energy_breakdown": energies,
        }
        ask(port, f"/result/{job_id}", result)
    folder = dump / job_id
    common.wait_for(lambda: (folder / "0.sched.json").exists(), "Zeus's dump")
    return folder


def plan_of(profile: Path, out: Path, microbatches: int) -> list[list[tuple[str, int]]]:
    """Returns what `pfo-fs plan` plans."""
    from pfo_fs.cli import app

    command = ["plan", str(profile), "--num-microbatches", str(microbatches), "--gpu", "A100", "--slowdown", "1.05"]
    app([*command, "--format", "lowtime", "-o", str(out)], standalone_mode=False)
    return read_plan(out / "freqs_pipeline_00000.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--num-microbatches", type=int, default=12)
    parser.add_argument("--zeus-packages", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    packages = server_packages(args.zeus_packages)
    profile = read_profile(args.profile)
    stages = profile.num_stages
    clocks_mhz = sorted({m.frequency_mhz for found in profile.measurements.values() for m in found}, reverse=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planned = plan_of(args.profile, folder / "plan", args.num_microbatches)
        with zeus_server(folder / "plan" / "freqs_pipeline_00000.py", packages, folder / "dump") as port:
            _, got = serve(port, stages, clocks_mhz)
        served = sum(a == b for a, b in zip(got, planned, strict=True))
        each_clock = [
            FrequencySchedule(
                rank=stage,
                frequencies=[
                    (name, m.frequency_mhz)
                    for name in ("forward", "backward")
                    for m in profile.measurements[stage, name]
                ],
            )
            for stage in range(stages)
        ]
        (folder / "each_clock.py").write_text(format_lowtime_plan(each_clock))
        with zeus_server(folder / "each_clock.py", packages, folder / "dump") as port:
            job_id, got = serve(port, stages, clocks_mhz)
            dumped = report(port, job_id, profile, got, folder / "dump")
        rows_same = read_dump(dumped).measurements == profile.measurements
        again = plan_of(dumped, folder / "again", args.num_microbatches)
        same = sum(a == b for a, b in zip(again, planned, strict=True))
    print(f"ranks to which Zeus's server gave the clocks that pfo-fs planned: {served} of {stages}")
    print(f"profile from Zeus's dump equals the profile: {rows_same}")
    print(f"stages whose plan from Zeus's dump equals that from the profile: {same} of {stages}")
    about = common.machine(zeus_server=versions(packages))
    common.write_json(args.json, about, [{"served": served, "planned_same": same, "stages": stages}])
    sys.exit(0 if served == same == stages else 1)


if __name__ == "__main__":
    main()
