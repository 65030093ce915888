"""pfo-fs's side of `coordination.py`: the hosts of a job, each a helper, in a few client processes.

Run as a script it is one client process, told by lines on standard input what to do. `scale.py` uses the same hosts.
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
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import _common as common
from _zeus import degrees, rank_info

PER_HOST = 8
THREADS = 16


class Host:
    """One host: its helper's state, its files, and what the trainers of its ranks would hear."""

    def __init__(self, root: str, number: int, size: int, counting: bool, per_host: int = PER_HOST) -> None:
        from pfo_fs.helper.operations import DirectoryOperations
        from pfo_fs.helper.state import HelperState
        from pfo_fs.settings import load_settings
        from pfo_fs.store import Files, SharedDirectory

        self.operations = DirectoryOperations(root, f"node{number}:1", load_settings().scheduler)
        if counting:
            self.operations._shared = SharedDirectory(Files(root, calls=common.CountingCalls()), f"node{number}:1")
        self.state = HelperState("token", poll_interval_s=None, now_s=time.monotonic())
        self.size = size
        self.ranks = range(number * per_host, min(size, (number + 1) * per_host))
        self.heard: list[Any] = []
        self.at = 0.0
        self.greeted: set[int] = set()
        self._waiting: deque[Any] = deque()
        self._do(self.state.first_actions())

    def _do(self, actions: Sequence[Any]) -> None:
        """Carries out what the state wants done, one operation after the other, as the helper's worker does."""
        self._queue(actions)
        self._work()

    def _queue(self, actions: Sequence[Any]) -> None:
        from pfo_fs.helper import events as e

        for action in actions:
            if isinstance(action, e.Send):
                self.heard.append(action.message)
            elif isinstance(action, e.Run):
                self._waiting.append(action.operation)

    def _work(self) -> None:
        from pfo_fs.errors import PfoError
        from pfo_fs.helper import events as e

        while self._waiting:
            operation = self._waiting.popleft()
            try:
                done = e.OperationDone(operation, self.operations.execute(operation))
            except PfoError as error:
                done = e.OperationDone(operation, error=error)
            self._queue(self.state.handle(done, time.monotonic()))

    def say(self, *messages: tuple[int, Any], role: str = "training") -> None:
        """Processes of ranks greet the helper, then send messages, before the worker gets to the first of them."""
        from pfo_fs.helper import events as e
        from pfo_fs.ipc import messages as m

        clients = [rank if role == "training" else -1 - rank for rank, _ in messages]
        for (rank, _), client in zip(messages, clients, strict=True):
            if client not in self.greeted:
                self.greeted.add(client)
                hello = m.Hello(rank=rank, role=role, token="token")  # type: ignore[arg-type]
                self._queue(self.state.handle(e.MessageArrived(client, hello), time.monotonic()))
        for (_, message), client in zip(messages, clients, strict=True):
            self._queue(self.state.handle(e.MessageArrived(client, message), time.monotonic()))
        self._work()

    def create(self, mode: str = "auto") -> dict[str, Any]:
        """Rank 0: makes the job and settles who schedules it."""
        from pfo_fs.ipc import messages as m

        attempt = secrets.token_hex(8)
        self.say((0, m.CreateJob(job={"job_info": degrees(self.size), "coordination": mode}, attempt=attempt)))
        (created,) = self.heard
        assert created.coordination == "daemon", "the daemon did not claim the job"
        return {"job_id": created.job_id, "attempt": attempt, "coordination": "daemon"}

    def join(self, job: dict[str, Any]) -> float:
        """All ranks register; returns the seconds until the first look."""
        from pfo_fs.ipc import messages as m

        def body(rank: int) -> dict[str, Any]:
            about = {"nonce": secrets.token_hex(8), "host": "node", "gpu_name": "NVIDIA A100-SXM4-80GB"}
            return {"rank_info": rank_info(rank, self.size), **about}

        self.say(*((rank, m.JoinJob(rank_body=body(rank), **job)) for rank in self.ranks))
        return 0.0

    def poll(self) -> float | None:
        """One look for the schedule; returns the seconds until the next one, None once all ranks have theirs."""
        from pfo_fs.ipc import messages as m

        pause_s = self.look()
        for message in self.heard:
            if isinstance(message, m.NewSchedule) and set(message.ranks) >= set(self.ranks):
                assert all(plan.frequencies for plan in message.plans)
                self.at = time.monotonic()
                self.heard.clear()
                return None
        return pause_s

    def look(self) -> float:
        """Does what is due; returns the seconds until something is due again."""
        from pfo_fs.helper import events as e

        self._do(self.state.handle(e.TimePassed(), time.monotonic()))
        return max(0.0, self.state.next_wake_s() - time.monotonic())

    def bye(self) -> None:
        """Rank 0 says goodbye."""
        from pfo_fs.ipc import messages as m

        self.say((0, m.Goodbye(reason="finished")))


def run_hosts(hosts: list[Host], job: dict[str, Any]) -> None:
    """Has all hosts join, and look until they have their schedule."""
    joined: set[int] = set()

    def step(number: int) -> float | None:
        first = number not in joined
        joined.add(number)
        return hosts[number].join(job) if first else hosts[number].poll()

    in_turn(step, range(len(hosts)))


def in_turn(step: Callable[[int], float | None], numbers: Iterable[int]) -> None:
    """Calls `step` for each number, the longest due first, in a few threads that share the waiting for the disk.

    `step` returns the seconds until its number is due again, None when it is done.
    """
    due: list[tuple[float, int]] = [(0.0, number) for number in numbers]

    def work() -> None:
        while True:
            try:
                at, number = heapq.heappop(due)
            except IndexError:
                return  # numbers that are being worked on are put back by the thread that works on them
            time.sleep(max(0.0, at - time.monotonic()))
            pause_s = step(number)
            if pause_s is not None:
                heapq.heappush(due, (time.monotonic() + pause_s, number))

    threads = [threading.Thread(target=work) for _ in range(min(THREADS, len(due)))]
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
