"""The hosts of `scale.py`: as a script, one client process, told by lines of JSON on standard input what to do."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import _common as common
from _hosts import Host, in_turn, run_hosts

ITERATION_S = 10.0
"""How long an iteration of the light clients takes: each rank reports one so often."""


class Clients:
    """Some hosts: of one job, or, where `size` is what a host holds, one job each."""

    def __init__(self, root: str, size: int, per_host: int, numbers: range) -> None:
        self.single = size <= per_host
        self.hosts = [Host(root, 0 if self.single else number, size, False, per_host) for number in numbers]
        self.step = 0

    def create(self) -> dict[str, Any]:
        return {"begin": time.monotonic(), "job": self.hosts[0].create()}

    def join(self, job: dict[str, Any]) -> dict[str, Any]:
        """All hosts join, and look for their schedule until they have it."""
        begin = time.monotonic()
        if self.single:

            def step(number: int) -> float | None:
                host = self.hosts[number]
                return host.poll() if host.greeted else host.join(host.create("daemon"))

            in_turn(step, range(len(self.hosts)))
        else:
            run_hosts(self.hosts, job)
        return {"begin": begin, "end": max(host.at for host in self.hosts)}

    def steady(self, seconds: float) -> dict[str, Any]:
        """Training goes on: each rank reports its iterations, and each host does what is due."""
        from pfo_fs.ipc import messages as m

        until = time.monotonic() + seconds
        begun = [time.monotonic() + random.uniform(0, ITERATION_S) for _ in self.hosts]
        done = [0] * len(self.hosts)

        def step(number: int) -> float | None:
            host, now = self.hosts[number], time.monotonic()
            if now >= until:
                return None
            host.heard.clear()
            if now >= begun[number] + done[number] * ITERATION_S:
                done[number] += 1
                at = self.step + done[number]
                times = [(at, 0, ITERATION_S)]
                report = m.ProgressReport(step=at, number=0, iter_time=ITERATION_S, iteration_times=times)
                host.say(*((rank, report) for rank in host.ranks), role="clocks")
            next_report_s = begun[number] + done[number] * ITERATION_S - time.monotonic()
            return max(0.0, min(host.look(), next_report_s))

        in_turn(step, range(len(self.hosts)))
        self.step += max(done)
        return {"seconds": seconds}

    def measure(self, iterations: int, microbatches: int) -> dict[str, Any]:
        """All ranks report what they measured under schedule 0."""
        from pfo_fs.ipc import messages as m

        rows = [[0.0123456789 + 1e-5 * i for i in range(microbatches)]] * iterations
        result = {
            "iter_time": [ITERATION_S] * iterations,
            "iter_energy": [3012.3456] * iterations,
            "time_breakdown": {"forward": rows, "backward": rows},
            "energy_breakdown": {"forward": rows, "backward": rows},
            "iter_span": [9.8765432] * iterations,
        }

        def step(number: int) -> float | None:
            host = self.hosts[number]
            host.say(
                *(
                    (rank, m.MeasurementReport(number=0, first_step=1, result={**result, "rank": rank}))
                    for rank in host.ranks
                ),
                role="clocks",
            )
            while not host.state.is_idle:
                time.sleep(min(0.05, host.look()))
            return None

        in_turn(step, range(len(self.hosts)))
        return {"written": time.monotonic()}

    def bye(self) -> dict[str, Any]:
        for host in self.hosts if self.single else self.hosts[:1]:
            host.bye()
        return {}


def main() -> None:
    """One client process."""
    common.count_lock_calls()
    common.count_everything()
    root, size, per_host, low, high = sys.argv[1], *map(int, sys.argv[2:])
    clients = Clients(root, size, per_host, range(low, high))
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        cpu = time.process_time()
        told = getattr(clients, name)(*arguments)
        told |= {"cpu_s": time.process_time() - cpu, "calls": sum(common.CountingCalls.counts.values())}
        told["operations"] = sum(common.OPERATIONS.values())
        common.CountingCalls.counts.clear()
        common.OPERATIONS.clear()
        print(json.dumps(told), flush=True)


class ClientProcesses:
    """The client processes of one run; `ask` gives them something to do."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def ask(self, name: str, *arguments: object, first: bool = False) -> list[dict[str, Any]]:
        """Returns what each process says; with `first` only the process of rank 0 is asked."""
        asked = self._processes[:1] if first else self._processes
        for process in asked:
            assert process.stdin is not None
            process.stdin.write(json.dumps([name, *arguments]) + "\n")
            process.stdin.flush()
        return [json.loads(_line(process)) for process in asked]


@contextmanager
def client_processes(root: str, size: int, per_host: int, hosts: int, count: int) -> Iterator[ClientProcesses]:
    """`count` processes that are `hosts` hosts together."""
    bounds = [hosts * i // count for i in range(count + 1)]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, root, *map(str, (size, per_host, low, high))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ},
            text=True,
        )
        for low, high in pairwise(bounds)
    ]
    try:
        for process in started:
            _line(process)  # "ready"
        yield ClientProcesses(started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError("a client process ended")


if __name__ == "__main__":
    main()
