"""A scheduler for the daemon whose policy runs in a process of its own, with limits of memory and time.

A policy that needs too much ends its own process, and no other job notices. `multiprocessing`'s server forks these
processes (`policy_preload.py` has loaded what they need), and they end with the daemon. The first half runs in them.
"""

import logging
import os
import pickle
import resource
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from pfo_fs.coordination.policy_start import PolicyCall
from pfo_fs.errors import ConfigError, PlanError, PolicyFailed, PolicyLost, plain_text
from pfo_fs.ipc.spawn import why_no_processes
from pfo_fs.models import MAX_JOB_INSTRUCTIONS, FrequencySchedule, InstructionOrder, PlanInputs, ProfilingResult
from pfo_fs.scheduler import (
    FixedSchedules,
    FrequencyScheduler,
    IterationTime,
    Manual,
    ScheduleRequest,
    is_builtin,
    load_scheduler,
)
from pfo_fs.scheduler.base import ScheduleGenerator

log = logging.getLogger(__name__)

Orders: TypeAlias = Mapping[int, InstructionOrder | None]


@dataclass(frozen=True)
class PolicyLimits:
    """What the process of a job's policy may take; `docs/threat-model.md` states the numbers.

    Attributes:
        memory_bytes: Memory, beyond what the process has at its start.
        cpu_s: Processor time in s for one call: to take in results, or to make a plan.
        wall_s: Elapsed time in s for one call; longer than `cpu_s`, since many policies may share few processors.
    """

    memory_bytes: int = 1 << 30
    cpu_s: int = 300
    wall_s: float = 900.0


_MOST_LOG_LINES = 20
_NICE = 5
"""A policy that plans for minutes leaves the processor to the daemon and to training."""


def serve(connection: Connection, limits: PolicyLimits, log_level: int, call: PolicyCall) -> None:
    """Makes a scheduler and calls its methods, as `RemotePolicy` asks, until the daemon closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C means the daemon
    lines = _LogLines()
    logging.getLogger().handlers = [lines]
    logging.getLogger().setLevel(log_level)
    with suppress(OSError):
        os.nice(_NICE)
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    _limit_memory(limits.memory_bytes)
    scheduler: FrequencyScheduler | None = None
    asked: object = None  # the last request that was sent
    while True:
        try:
            method, args, orders = connection.recv()
        except (EOFError, OSError):
            return
        _limit_processor_time(limits.cpu_s)
        try:
            scheduler = scheduler or call.make()
            if orders is not None:
                scheduler.orders = orders
            value = getattr(scheduler, method)(*args) if method else None
            state: dict[str, object] = {"_done": scheduler.done, "plan_inputs": scheduler.plan_inputs}
            # The text of a request may change with the iterations.
            if method in ("request", "assess") and (request := scheduler.request()) is not asked:
                asked = request
                state["_answer"] = replace(request, schedules=_bounded(request.schedules))
            data = pickle.dumps(("done", (None if method == "request" else value, state), lines.taken()))
        except MemoryError:
            connection.send(("memory",))
            return
        except (PlanError, ConfigError) as error:
            data = pickle.dumps(("refused", (str(error), getattr(error, "line", None)), lines.taken()))
        except BaseException as error:  # a user's scheduler may raise anything, SystemExit too
            log.exception("the scheduler failed")
            text = f"the scheduler failed: {type(error).__name__}: {plain_text(str(error))}"
            data = pickle.dumps(("failed", (text, None), lines.taken()))
        if len(data) > _MOST_REPLY_BYTES:
            text = f"the scheduler's answer is longer than {_MOST_REPLY_BYTES >> 20} MiB"
            data = pickle.dumps(("failed", (text, None), []))
        connection.send_bytes(data)


def _end_with_daemon() -> None:
    """Ends this process as soon as the daemon has ended, also while a policy plans."""
    daemon = parent_process()
    assert daemon is not None
    daemon.join()
    os._exit(0)


class _LogLines(logging.Handler):
    """Keeps the first lines that are logged in a call."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) < _MOST_LOG_LINES:
            self._lines.append((record.levelno, plain_text(self.format(record), keep_lines=True)))

    def taken(self) -> list[tuple[int, str]]:
        lines, self._lines = self._lines, []
        return lines


def _bounded(schedules: Iterable[FrequencySchedule]) -> list[FrequencySchedule]:
    """Returns schedules as the daemon keeps them: equal ones share their lists, and all together are not too long.

    Raises:
        PlanError: They would take too much memory of the daemon.
    """
    known: dict[object, FrequencySchedule] = {}
    sharing = []
    for schedule in schedules:
        first = known.setdefault((tuple(schedule.frequencies), schedule.stages and tuple(schedule.stages)), schedule)
        sharing.append(first if first is schedule else first.model_copy(update={"rank": schedule.rank}))
    if sum(len(schedule.frequencies) for schedule in known.values()) > MAX_JOB_INSTRUCTIONS:
        raise PlanError(f"the schedules have more than {MAX_JOB_INSTRUCTIONS:,} instructions, the most that is taken")
    return sharing


def _limit_memory(memory_bytes: int) -> None:
    _set_limit(resource.RLIMIT_CORE, 0, 0)
    with open("/proc/self/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
    most = int(sizes["VmData"].split()[0]) * 1024 + memory_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    _set_limit(resource.RLIMIT_DATA, most, most)


def _limit_processor_time(cpu_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
    _set_limit(resource.RLIMIT_CPU, soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)


def _set_limit(limit: int, soft: int, hard: int) -> None:
    try:
        resource.setrlimit(limit, (soft, hard))
    except (OSError, ValueError) as error:  # a container or a systemd unit may refuse the call
        log.warning("the scheduler's process runs without a limit, as setrlimit is refused: %s", error)


# ---- in the daemon

_POLICY_LIMITS = PolicyLimits()
_PLAN_LIMITS = PolicyLimits(memory_bytes=256 << 20, cpu_s=60, wall_s=300.0)
"""Limits of a process that reads a plan file. The largest plan needs half of the memory, and a tenth of the time."""
_PLANS_READ_AT_ONCE = 4
"""At most this many plans are read at once, because that many take as much memory as one policy; further jobs wait."""
_MOST_REPLY_BYTES = 64 << 20
"""The largest answer of a policy's process."""
_ENDS_WITHIN_S = 10.0
"""A process whose connection is closed ends within this time, in s: only the kernel has work left."""
_SERVER_ENDED = 255
"""The exit code that `multiprocessing` reports if its server, which would know the real one, has ended too."""
_TO_DO = "Give the job fewer clocks, stages or instructions, or a plan file (PointSolution)."


_processes = get_context("forkserver")
_starts = threading.Lock()
"""Held while a process is started or its end is read: `multiprocessing` reads the ends of all when it starts one."""


class PolicyProcesses:
    """Starts a process for each policy; `make` is a `MakePolicy`."""

    def __init__(self, limits: PolicyLimits = _POLICY_LIMITS) -> None:
        self._limits = limits
        self._reading = threading.BoundedSemaphore(_PLANS_READ_AT_ONCE)
        _processes.set_forkserver_preload(["__main__", "pfo_fs.coordination.policy_preload"])

    def make(self, call: PolicyCall) -> FrequencyScheduler:
        """Makes a policy in a process of its own (`Manual`: here); for a plan file, the process only reads the plan."""
        cls = load_scheduler(call.name)
        if cls is Manual or why_no_processes():
            return call.make()
        if not (is_builtin(call.name) and issubclass(cls, FixedSchedules)):
            return RemotePolicy(call, self._limits)
        with self._reading:
            policy = RemotePolicy(call, _PLAN_LIMITS)
            try:
                schedules = policy.request().schedules
            finally:
                policy.close()
        return FixedSchedules(call.job_info, call.rank_infos, call.settings, schedules)


class RemotePolicy(FrequencyScheduler):
    """A scheduler whose methods run in another process.

    Every call has limits of memory and time. If it meets one, the process is gone, and the call raises `PolicyFailed`.
    If the process was ended from outside, the call raises `PolicyLost`: a replay in another process goes on.
    """

    def __init__(self, call: PolicyCall, limits: PolicyLimits) -> None:
        super().__init__(call.job_info, call.rank_infos, call.settings)
        cls = load_scheduler(call.name)
        self.watches_iteration_times = cls.watches_iteration_times
        self._limits = limits
        self._given_orders: Orders | None = None
        self._is_old = True  # whether the answer may have changed
        self._process: BaseProcess | None = None
        try:
            self._connection, theirs = _processes.Pipe()
            with theirs, _starts:
                given = theirs, limits, logging.getLogger().level, call
                self._process = _processes.Process(target=serve, args=given, daemon=True)
                self._process.start()
        except (OSError, EOFError) as error:
            raise PolicyLost(f"no process for the scheduler: {error or 'it has ended'}; trying again") from error
        try:
            self._call("")
        except BaseException:
            self.close()
            raise

    def _run(self) -> ScheduleGenerator:
        raise NotImplementedError

    # ---- what a scheduler does

    def request(self) -> ScheduleRequest:
        if self._is_old and not (self._done and self._answer is not None):
            self._call("request")
            self._is_old = False
        assert self._answer is not None
        return self._answer

    def was_published(self, schedules: list[FrequencySchedule], stays: bool = False) -> None:
        self._change("was_published", schedules, stays)

    def continue_from(self, revision: int) -> None:
        self._change("continue_from", revision)

    def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
        self._change("observe", profiling_results)

    def react(self, plan_inputs: PlanInputs) -> None:
        self._change("react", plan_inputs)

    def export_profile(self) -> str:
        return str(self._call("export_profile"))

    def model(self) -> dict[str, float]:
        values: dict[str, float] = self._call("model")
        return values

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        plan_inputs: PlanInputs = self._call("assess", iteration_times)
        return plan_inputs

    def close(self) -> None:
        """Ends the process, also while another thread waits for it."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()

    def __del__(self) -> None:
        self.close()

    # ---- how

    def _change(self, method: str, *args: object) -> None:
        self._is_old = True
        self._call(method, *args)

    def _call(self, method: str, *args: object) -> Any:
        """Returns the result of a method, and takes over the changed state of the scheduler.

        Raises:
            PlanError: The scheduler has raised it.
            PolicyFailed: The scheduler has raised something else, or needs more than it may have.
            PolicyLost: The process has ended, but not by a limit.
        """
        orders = self.orders if self.orders is not self._given_orders else None
        try:
            self._connection.send((method, args, orders))
            if not self._connection.poll(self._limits.wall_s):
                self.close()
                raise PolicyFailed(f"the scheduler has not answered for {self._limits.wall_s:.0f} s. {_TO_DO}")
            data = self._connection.recv_bytes(_MOST_REPLY_BYTES)
            kind, *content = pickle.loads(data)  # noqa: S301  our own process has made it
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise self._of_end() from error
        if kind == "memory":
            raise PolicyFailed(self._memory_text())
        for level, text in content[1:] and content[1]:
            log.log(level, "job %s: %s", self.job_info.job_id, text)
        if kind in ("failed", "refused"):
            text, line = content[0]
            raise PlanError(text, line=line) if kind == "refused" else PolicyFailed(text)
        self._given_orders = self.orders
        value, state = content[0]
        vars(self).update(state)
        return value

    def _memory_text(self) -> str:
        return f"the scheduler needs more than {self._limits.memory_bytes >> 20} MiB of memory for this job. {_TO_DO}"

    def _of_end(self) -> PolicyFailed | PolicyLost:
        """Returns the error for the end of the process."""
        assert self._process is not None
        with _starts:
            self._process.join(_ENDS_WITHIN_S)
            how = self._process.exitcode
        self.close()
        if how == -signal.SIGXCPU:
            seconds = self._limits.cpu_s
            return PolicyFailed(f"the scheduler needs more than {seconds} s of processor time for this job. {_TO_DO}")
        if how in (None, 0, -signal.SIGKILL, -signal.SIGTERM, _SERVER_ENDED):
            return PolicyLost("the scheduler's process was ended from outside, perhaps for want of memory on this host")
        name = signal.Signals(-how).name if how < 0 else f"exit code {how}"
        return PolicyFailed(f"the scheduler's process has ended with {name}: {self._memory_text()}")
