"""pfo-fs's side of `coordination.py`: the hosts of a job, each a helper, in a few client processes.

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
from collections import Counter, deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import _common as common
from _zeus import MICROBATCHES, degrees, rank_info

PER_HOST = 8
THREADS = 16


class Host:
    """One host: its helper's state, its files, and what the trainers of its ranks would hear."""

    def __init__(self, root: str, number: int, size: int, counting: bool) -> None:
        from pfo_fs.helper.operations import DirectoryOperations
        from pfo_fs.helper.state import HelperState
        from pfo_fs.settings import load_settings
        from pfo_fs.store import Files, SharedDirectory

        self.operations = DirectoryOperations(root, f"node{number}:1", load_settings().scheduler)
        if counting:
            self.operations._shared = SharedDirectory(Files(root, calls=common.CountingCalls()), f"node{number}:1")
        self.state = HelperState("token", poll_interval_s=None, now_s=time.monotonic())
        self.size = size
        self.ranks = range(number * PER_HOST, min(size, (number + 1) * PER_HOST))
        self.heard: list[Any] = []
        self.at = 0.0
        self.greeted: set[int] = set()
        self.do(self.state.first_actions())

    def do(self, actions: list[Any]) -> None:
        """Carries out what the state wants done, one operation after the other, as the helper's worker does."""
        from pfo_fs.errors import PfoError
        from pfo_fs.helper import events as e

        waiting = deque(actions)
        while waiting:
            action = waiting.popleft()
            if isinstance(action, e.Send):
                self.heard.append(action.message)
            elif isinstance(action, e.Run):
                try:
                    done = e.OperationDone(action.operation, self.operations.execute(action.operation))
                except PfoError as error:
                    done = e.OperationDone(action.operation, error=error)
                waiting.extend(self.state.handle(done, time.monotonic()))

    def say(self, rank: int, message: Any) -> None:
        """A training process sends a message, after its greeting."""
        from pfo_fs.helper import events as e
        from pfo_fs.ipc import messages as m

        if rank not in self.greeted:
            self.greeted.add(rank)
            self.do(
                self.state.handle(
                    e.MessageArrived(rank, m.Hello(rank=rank, role="training", token="token")), time.monotonic()
                )
            )
        self.do(self.state.handle(e.MessageArrived(rank, message), time.monotonic()))

    def create(self) -> dict[str, Any]:
        """Rank 0: makes the job and settles who schedules it."""
        from pfo_fs.ipc import messages as m

        attempt = secrets.token_hex(8)
        self.say(0, m.CreateJob(job={"job_info": degrees(self.size), "coordination": "auto"}, attempt=attempt))
        self.say(0, m.ChooseCoordination(mode="auto"))
        created, chosen = self.heard
        assert chosen.coordination == "daemon", "the daemon did not claim the job"
        return {"job_id": created.job_id, "attempt": attempt, "coordination": "daemon"}

    def join(self, job: dict[str, Any]) -> float:
        """All ranks register; returns the seconds until the first look."""
        from pfo_fs.ipc import messages as m

        for rank in self.ranks:
            body = {"rank_info": rank_info(rank, self.size), "nonce": secrets.token_hex(8), "host": "node"}
            self.say(rank, m.JoinJob(rank_body={**body, "gpu_name": "NVIDIA A100-SXM4-80GB"}, **job))
        return 0.0

    def poll(self) -> float | None:
        """One look for the schedule; returns the seconds until the next one, None once all ranks have theirs."""
        from pfo_fs.helper import events as e
        from pfo_fs.ipc import messages as m

        self.do(self.state.handle(e.TimePassed(), time.monotonic()))
        for message in self.heard:
            if isinstance(message, m.NewSchedule) and set(message.ranks) >= set(self.ranks):
                assert all(len(plan.frequencies) == 2 * MICROBATCHES for plan in message.plans)
                self.at = time.monotonic()
                return None
        return max(0.0, self.state.next_wake_s() - time.monotonic())

    def bye(self) -> None:
        """Rank 0 says goodbye."""
        from pfo_fs.ipc import messages as m

        self.say(0, m.Goodbye(reason="finished"))


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
            pause_s = hosts[number].join(job) if first else hosts[number].poll()
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
            told = {"end": max(host.at for host in hosts)}
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
