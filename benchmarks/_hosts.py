"""pfo-fs's side of `coordination.py`: the hosts of a job, each an helper, in a few client processes.

Run as a script it is one client process, told by lines on standard input what to do.
"""

from __future__ import annotations

import heapq
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import _common as common
from _zeus import MICROBATCHES, degrees, rank_info

PER_HOST = 8
THREADS = 16


class Trainer:
    """Stands in for the connection to a training process."""

    def __init__(self, rank: int) -> None:
        self.rank, self.role = rank, ""
        self.answers: list[dict[str, Any]] = []
        self.schedule: dict[str, Any] | None = None
        self.at = 0.0

    def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "schedule":
            self.schedule, self.at = message, time.monotonic()
        else:
            self.answers.append(message)


class Host:
    """One host: its helper and the trainers of its ranks."""

    def __init__(self, root: str, number: int, size: int, counting: bool) -> None:
        from pfo_fs.helper.host_helper import HostHelper
        from pfo_fs.settings import load_settings
        from pfo_fs.store import Files, SharedDirectory

        calls = common.CountingCalls() if counting else None
        shared = SharedDirectory(Files(root, calls=calls), f"node{number}:1")
        self.helper = HostHelper(shared, "token", load_settings(), local_mount=True)
        self.size = size
        self.trainers = [Trainer(rank) for rank in range(number * PER_HOST, min(size, (number + 1) * PER_HOST))]

    def hand(self, trainer: Trainer, what: str, **fields: object) -> None:
        self.helper._handle(trainer, {"rank": trainer.rank, "token": "token", **fields, "type": what})  # type: ignore[arg-type]

    def create(self) -> dict[str, Any]:
        """Rank 0: makes the job and settles who schedules it."""
        first = self.trainers[0]
        attempt = secrets.token_hex(8)
        self.hand(first, "hello")
        job = {"job_info": degrees(self.size), "coordination": "auto"}
        self.hand(first, "create", job=job, attempt=attempt)
        self.hand(first, "coordinate", mode="auto")
        created, coordinated = first.answers
        assert coordinated["kind"] == "daemon", "the daemon did not claim the job"
        return {"job_id": created["job_id"], "attempt": attempt, "kind": "daemon"}

    def join(self, job: dict[str, Any]) -> float:
        """All ranks register; returns the seconds until the first look."""
        self.helper._started = time.monotonic()
        for trainer in self.trainers:
            if not trainer.role:
                self.hand(trainer, "hello")
            body = {"rank_info": rank_info(trainer.rank, self.size), "nonce": secrets.token_hex(8), "host": "node"}
            self.hand(trainer, "join", rank_body={**body, "gpu_name": "NVIDIA A100-SXM4-80GB"}, **job)
        return 0.0

    def look(self) -> float | None:
        """One look for the schedule; returns the seconds until the next one, None once all ranks have theirs."""
        pause_s = self.helper._poll(time.monotonic())
        if not all(trainer.schedule for trainer in self.trainers):
            return pause_s
        assert all(len((trainer.schedule or {})["frequencies"]) == 2 * MICROBATCHES for trainer in self.trainers)
        return None

    def bye(self) -> None:
        self.hand(self.trainers[0], "bye")


def run_hosts(hosts: list[Host], job: dict[str, Any]) -> None:
    """Lets each host do what is due, the longest due first, in a few threads that share the waiting for the disk."""
    due: list[tuple[float, int]] = [(0.0, number) for number in range(len(hosts))]
    joined: set[int] = set()

    def work() -> None:
        while True:
            try:
                at, number = heapq.heappop(due)
            except IndexError:
                return  # hosts that are being worked on are put back by who works on them
            time.sleep(max(0.0, at - time.monotonic()))
            first = number not in joined
            joined.add(number)
            pause_s = hosts[number].join(job) if first else hosts[number].look()
            if pause_s is not None:
                heapq.heappush(due, (time.monotonic() + pause_s, number))

    threads = [threading.Thread(target=work) for _ in range(min(THREADS, len(hosts)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def worker(root: str, size: int, numbers: range) -> None:
    """Runs the hosts of one client process; told what to do by lines on standard input."""
    if counting := bool(os.environ.get("BENCH_COUNTS")):
        common.count_lock_calls()
    hosts = [Host(root, number, size, counting) for number in numbers]
    print("ready", flush=True)
    for line in sys.stdin:
        message, cpu = json.loads(line), time.process_time()
        told: dict[str, Any] = {}
        if message == "create":
            told = {"begin": time.monotonic(), "job": hosts[0].create()}
        elif message == "bye":
            hosts[0].bye()
        else:
            run_hosts(hosts, message)
            told = {"end": max(trainer.at for host in hosts for trainer in host.trainers)}
            told["calls"] = common.CountingCalls.counts
        print(json.dumps({**told, "cpu_s": time.process_time() - cpu}), flush=True)


def run_job(root: Path, size: int, processes: int, *, counting: bool) -> dict[str, Any]:
    """One job; returns seconds, client CPU and the clients' calls."""
    hosts = -(-size // PER_HOST)
    processes = min(processes, hosts)
    bounds = [hosts * i // processes for i in range(processes + 1)]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(root), str(size), str(low), str(high)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "BENCH_COUNTS": "yes" if counting else ""},
            text=True,
        )
        for low, high in pairwise(bounds)
    ]

    def ask(processes: list[subprocess.Popen[str]], message: object) -> list[dict[str, Any]]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        return [json.loads(_line(process)) for process in processes]

    try:
        for process in started:
            _line(process)  # "ready"
        created = ask(started[:1], "create")[0]
        told = ask(started, created["job"])
        ask(started[:1], "bye")
    finally:
        for process in started:
            process.kill()
            process.wait()
    return {
        "seconds": max(one["end"] for one in told) - created["begin"],
        "client_cpu_s": sum(one["cpu_s"] for one in [created, *told]),
        "client_calls": dict(sum((Counter(one["calls"]) for one in told), Counter())),
    }


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError("a client process ended")


if __name__ == "__main__":
    worker(sys.argv[1], int(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4])))
