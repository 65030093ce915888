"""Light clients of `scale.py`: what the helpers of many hosts do, in a few processes; the job, and its policy."""

from __future__ import annotations

import heapq
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import _common as common

from pfo_fs.errors import PfoError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import DirectoryOperations, Operation
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, ScheduleRequest
from pfo_fs.scheduler.base import ScheduleGenerator
from pfo_fs.scheduler.plan_file import read_plan
from pfo_fs.settings import PFOSettings, load_settings

THREADS = 16
STAGES = 8
CLOCKS = list(range(1410, 195, -15))

# ---- the job


def plan_text(microbatches: int) -> str:
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
    """Returns what a rank says about itself."""
    shape = degrees(size)
    rest, tp = divmod(rank, shape["tp_degree"])
    pp, dp = divmod(rest, shape["dp_degree"])
    return {"rank": rank, "dp_rank": dp, "pp_rank": pp, "tp_rank": tp, "available_frequencies": CLOCKS}


class MeasureOnce(FrequencyScheduler):
    """Runs a plan; publishes it again once the results of all ranks have been read."""

    def __init__(
        self, job_info: JobInfo, rank_infos: Sequence[RankInfo], pfo_settings: PFOSettings, solution_path: str
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        stages = [FrequencySchedule(rank=0, frequencies=steps) for steps in read_plan(Path(solution_path))]
        self._schedules = [stages[info.pp_rank].model_copy(update={"rank": info.rank}) for info in self.rank_infos]

    def _run(self) -> ScheduleGenerator:
        results = yield ScheduleRequest(self._schedules)
        assert len(results) == self.world_size, f"{len(results)} results of {self.world_size} ranks"
        yield ScheduleRequest(list(reversed(self._schedules)), message="the results of all ranks have been read")


# ---- hosts


class Host(Around):
    """One host: its helper's state, its files, and what the trainers of its ranks would hear."""

    def __init__(self, root: str, number: int, size: int, per_host: int) -> None:
        super().__init__()
        self.operations = DirectoryOperations(root, f"node{number}:1", load_settings().scheduler)
        self.state = HelperState("token", self)
        self.size = size
        self.ranks = range(number * per_host, min(size, (number + 1) * per_host))
        self.heard: list[Any] = []
        self.at = 0.0
        self.has_joined = False
        self.greeted: set[int] = set()
        self._waiting: deque[Operation] = deque()
        self.state.begin()
        self._work()

    def send(self, client: int, message: m.Message) -> None:
        self.heard.append(message)

    def run(self, operation: Operation) -> None:
        self._waiting.append(operation)

    def _work(self) -> None:
        """Carries out what the state wants done, one operation after the other, as the helper's worker does."""
        self.state.time_passed()
        while self._waiting:
            operation, result, problem = self._waiting.popleft(), None, None
            try:
                result = self.operations.execute(operation)
            except PfoError as error:
                problem = error
            self.state.operation_done(operation, result, problem)
            self.state.time_passed()

    def say(self, *messages: tuple[int, Any], role: str = "training") -> None:
        """Processes of ranks greet the helper, then send messages, before the worker gets to the first of them."""
        clients = [rank if role == "training" else -1 - rank for rank, _ in messages]
        for (rank, _), client in zip(messages, clients, strict=True):
            if client not in self.greeted:
                self.greeted.add(client)
                hello = m.Hello(rank=rank, role=role, token="token")  # type: ignore[arg-type]
                self.state.message_arrived(client, hello)
        for (_, message), client in zip(messages, clients, strict=True):
            self.state.message_arrived(client, message)
        self._work()

    def create(self, mode: str = "auto") -> dict[str, Any]:
        """Rank 0: makes the job and settles who schedules it."""
        attempt = secrets.token_hex(8)
        self.say((0, m.CreateJob(job={"job_info": degrees(self.size), "coordination": mode}, attempt=attempt)))
        (created,) = self.heard
        assert created.coordination == "daemon", "the daemon did not claim the job"
        return {"job_id": created.job_id, "attempt": attempt, "coordination": "daemon"}

    def join(self, job: dict[str, Any]) -> None:
        """All ranks register."""
        self.has_joined = True

        def body(rank: int) -> dict[str, Any]:
            about = {"nonce": secrets.token_hex(8), "host": "node", "gpu_name": "NVIDIA A100-SXM4-80GB"}
            return {"rank_info": rank_info(rank, self.size), **about}

        self.say(*((rank, m.JoinJob(rank_body=body(rank), **job)) for rank in self.ranks))

    def poll(self) -> float | None:
        """One look for the schedule; returns the seconds until the next one, None once all ranks have theirs."""
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
        self._work()
        return max(0.0, self.state.next_wake_s() - time.monotonic())

    def bye(self) -> None:
        """Rank 0 says goodbye."""
        self.say((0, m.Goodbye(reason="finished")))


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


# ---- client processes


class Clients:
    """Some hosts: of one job, or, where `size` is what a host holds, one job each."""

    def __init__(self, root: str, size: int, per_host: int, numbers: range) -> None:
        self.single = size <= per_host
        self.hosts = [Host(root, 0 if self.single else number, size, per_host) for number in numbers]
        self.step = 0

    def greet(self) -> dict[str, Any]:
        return {}

    def create(self) -> dict[str, Any]:
        return {"begin": time.monotonic(), "job": self.hosts[0].create()}

    def join(self, job: dict[str, Any] | None) -> dict[str, Any]:
        """All hosts join a job, or each one of its own, and look for their schedule until they have it."""
        begin = time.monotonic()

        def step(number: int) -> float | None:
            host = self.hosts[number]
            if host.has_joined:
                return host.poll()
            host.join(job or host.create("daemon"))
            return 0.0

        in_turn(step, range(len(self.hosts)))
        return {"begin": begin, "end": max(host.at for host in self.hosts)}

    def steady(self, seconds: float, iteration_s: float) -> dict[str, Any]:
        """Training goes on: each rank reports its iterations of `iteration_s`, and each host does what is due."""
        until = time.monotonic() + seconds
        begun = [time.monotonic() + random.uniform(0, iteration_s) for _ in self.hosts]
        done = [0] * len(self.hosts)

        def step(number: int) -> float | None:
            host, now = self.hosts[number], time.monotonic()
            if now >= until:
                return None
            host.heard.clear()
            if now >= begun[number] + done[number] * iteration_s:
                done[number] += 1
                at = self.step + done[number]
                times = [(at, 0, iteration_s)]
                report = m.ProgressReport(step=at, number=0, iter_time=iteration_s, iteration_times=times)
                host.say(*((rank, report) for rank in host.ranks), role="clocks")
            next_report_s = begun[number] + done[number] * iteration_s - time.monotonic()
            return max(0.0, min(host.look(), next_report_s))

        in_turn(step, range(len(self.hosts)))
        self.step += max(done)
        return {"seconds": seconds}

    def measure(self, iterations: int, microbatches: int, iteration_s: float) -> dict[str, Any]:
        """All ranks report what they measured under schedule 0."""
        rows = [[0.0123456789 + 1e-5 * i for i in range(microbatches)]] * iterations
        result = {
            "iter_time": [iteration_s] * iterations,
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


class ClientProcesses:
    """Processes that are all hosts together; `ask` gives them something to do.

    Args:
        root: The shared directory.
        size: Number of ranks of a job.
        per_host: Ranks of a host.
        hosts: Number of hosts.
        count: Number of processes.
    """

    def __init__(self, root: str, size: int, per_host: int, hosts: int, count: int) -> None:
        self._stack = ExitStack()
        bounds = [hosts * i // count for i in range(count + 1)]
        self._pools = [
            self._stack.enter_context(
                ProcessPoolExecutor(1, get_context("spawn"), _begin, (root, size, per_host, range(low, high)))
            )
            for low, high in pairwise(bounds)
        ]

    def __enter__(self) -> Self:
        self.ask("greet")  # until all have started
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, name: str, *arguments: object, first: bool = False) -> list[dict[str, Any]]:
        """Returns what each process says; with `first` only the process of rank 0 is asked."""
        asked = [pool.submit(_tell, name, arguments) for pool in (self._pools[:1] if first else self._pools)]
        return [one.result() for one in asked]


_CLIENTS: list[Clients] = []
"""Those of a client process."""


def _begin(root: str, size: int, per_host: int, numbers: range) -> None:
    common.count_operations()
    _CLIENTS.append(Clients(root, size, per_host, numbers))


def _tell(name: str, arguments: Sequence[Any]) -> dict[str, Any]:
    cpu = time.process_time()
    told: dict[str, Any] = getattr(_CLIENTS[0], name)(*arguments)
    told |= {"cpu_s": time.process_time() - cpu, "operations": common.Operations.count}
    common.Operations.count = 0
    return told
