"""Zeus 0.16's side of `coordination.py`: its real server and its clients; and the job that both sides run."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import _common as common

STAGES, MICROBATCHES, PER_HOST = 8, 96, 8
CLOCKS = list(range(1410, 195, -15))


def plan_text(microbatches: int = MICROBATCHES) -> str:
    """Returns a plan as lowtime writes it: 1F1B, clocks differing from instruction to instruction."""
    lines = []
    for stage in range(STAGES):
        warm_up = STAGES - stage - 1
        names = ["forward"] * warm_up + ["forward", "backward"] * (microbatches - warm_up) + ["backward"] * warm_up
        lines.append(str([(name, CLOCKS[(i * 7 + stage) % len(CLOCKS)]) for i, name in enumerate(names)]))
    return "[\n" + ",\n".join(lines) + ",\n]\n# Iteration 0 time: 10.0\n"


def degrees(size: int) -> dict[str, int]:
    """Returns the shape of a job; tensor-parallel ranks share a host."""
    tp = 8 if size >= 64 else 1
    return {"pp_degree": STAGES, "dp_degree": size // (STAGES * tp), "tp_degree": tp, "world_size": size}


def rank_info(rank: int, size: int) -> dict[str, Any]:
    """Returns what a rank says about itself, the same on both sides."""
    shape = degrees(size)
    rest, tp = divmod(rank, shape["tp_degree"])
    pp, dp = divmod(rest, shape["dp_degree"])
    return {"rank": rank, "dp_rank": dp, "pp_rank": pp, "tp_rank": tp, "available_frequencies": CLOCKS}


def scheduler_for(size: int) -> str:
    return "PointSolution" if size == STAGES else "PointSolution3D"


# ---- Zeus

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


class ZeusRank:
    """One rank's connection: sends a request, collects the answer."""

    def __init__(self, port: int, rank: int) -> None:
        self.rank = rank
        self.answer = b""
        self._missing = -1
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method: str, path: str, body: object = None) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(payload)}\r\n"
        self.answer, self._missing = b"", -1
        self.socket.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + payload)

    def receive(self) -> bool:
        """Takes what has come; True once the answer is whole."""
        chunk = self.socket.recv(1 << 16)
        if not chunk:
            raise RuntimeError(f"rank {self.rank}: Zeus's server closed the connection")
        self.answer += chunk
        if self._missing < 0 and (at := self.answer.find(b"\r\n\r\n")) >= 0:
            if not self.answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"rank {self.rank}: {self.answer[:300]!r}")
            length = next(line for line in self.answer[:at].lower().split(b"\r\n") if b"content-length" in line)
            self._missing = int(length.split(b":")[1]) + at + 4
        return 0 <= self._missing <= len(self.answer)

    def body(self) -> Any:
        return json.loads(self.answer.partition(b"\r\n\r\n")[2])


def over_sockets(port: int, size: int) -> float:
    """One job over raw sockets; returns the seconds until every rank holds its schedule."""
    start = time.monotonic()
    ranks = [ZeusRank(port, 0)]
    ranks[0].ask("POST", "/register_job", {**degrees(size), "job_metadata": secrets.token_hex(8)})
    while not ranks[0].receive():
        pass
    job_id = ranks[0].body()
    with selectors.DefaultSelector() as selector:
        for number in range(size):
            if number:
                ranks.append(ZeusRank(port, number))
            ranks[number].ask("POST", f"/register_rank/{job_id}", rank_info(number, size))
            selector.register(ranks[number].socket, selectors.EVENT_READ, ranks[number])
        registered: set[int] = set()
        while selector.get_map():
            for key, _ in selector.select():
                rank: ZeusRank = key.data
                if not rank.receive():
                    continue
                if rank.rank in registered:
                    selector.unregister(rank.socket)
                else:
                    registered.add(rank.rank)
                    rank.ask("GET", f"/schedule/{job_id}?rank={rank.rank}")
    took = time.monotonic() - start
    for rank in ranks:
        schedule = rank.body()
        assert schedule["rank"] == rank.rank
        assert len(schedule["frequencies"]) == 2 * MICROBATCHES
        rank.socket.close()
    return took


def over_httpx(port: int, size: int) -> float:
    """One job with the very calls of the optimizer, each rank a thread; returns seconds."""
    import httpx

    url = f"http://127.0.0.1:{port}"

    def rank(number: int) -> None:
        httpx.post(f"{url}/register_rank/{job_id}", json=rank_info(number, size), timeout=60).raise_for_status()
        answer = httpx.get(f"{url}/schedule/{job_id}", params={"rank": number}, timeout=None)
        assert len(answer.json()["frequencies"]) == 2 * MICROBATCHES

    start = time.monotonic()
    job = {**degrees(size), "job_metadata": secrets.token_hex(8)}
    job_id = httpx.post(f"{url}/register_job", json=job, timeout=60).json()
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(rank, range(size)))
    return time.monotonic() - start


def measure(size: int, plan: Path, packages: Path, run_job: Callable[[int, int], float]) -> dict[str, Any]:
    """One job on a fresh server, after a warm-up; `run_job` is `over_sockets` or `over_httpx`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "ZEUS_PFO_SCHEDULER": scheduler_for(size),
        "ZEUS_PFO_SCHEDULER_ARGS": json.dumps({"solution_path": str(plan)}),
        "ZEUS_PFO_LOG_LEVEL": "INFO",
        "ZEUS_PFO_DUMP_DATA": "false",
    }
    app = "zeus.optimizer.pipeline_frequency.server.router:app"
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--no-access-log"]
    log = plan.with_name("zeus.log")
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    with common.running(command, log, PYTHONPATH=path, **environment) as server:

        def answers() -> bool:
            if server.poll() is not None:
                raise RuntimeError(f"Zeus's server ended:\n{log.read_text()[-2000:]}")
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            return False

        common.wait_for(answers, "Zeus's server")
        over_sockets(port, STAGES)
        cpu, own = common.cpu_s(server.pid), time.process_time()
        took = run_job(port, size)
        return {
            "seconds": took,
            "server_cpu_s": common.cpu_s(server.pid) - cpu,
            "client_cpu_s": time.process_time() - own,
            "server_peak_mib": common.peak_mib(server.pid),
        }
