"""A policy that runs in a process of its own, with limits, and stands in the daemon as a scheduler like others."""

from __future__ import annotations

import logging
import pickle
import signal
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from pfo_fs.coordination.policy_process import PolicyLimits, serve
from pfo_fs.coordination.policy_start import PolicyCall
from pfo_fs.errors import PlanError, PolicyFailed, PolicyLost
from pfo_fs.ipc.spawn import why_no_processes
from pfo_fs.models import FrequencySchedule, InstructionOrder, PlanInputs, ProfilingResult
from pfo_fs.scheduler import (
    FixedSchedules,
    FrequencyScheduler,
    IterationTime,
    Manual,
    ScheduleRequest,
    load_scheduler,
    only_reads_a_plan,
)
from pfo_fs.scheduler.base import ScheduleGenerator

log = logging.getLogger(__name__)

_POLICY_LIMITS = PolicyLimits()
_PLAN_LIMITS = PolicyLimits(memory_bytes=256 << 20, cpu_s=60, wall_s=300.0)
"""What the process may take that reads the largest plan. It needs half of that memory, and a tenth of that time."""
_PLANS_READ_AT_ONCE = 4
"""So many plans of 256 MiB take as much memory as one policy; further jobs wait for them."""
_MOST_REPLY_BYTES = 64 << 20
"""The largest answer of a policy's process."""
_ENDS_WITHIN_S = 10.0
"""A process whose connection is closed has ended, but for what the kernel does."""
_SERVER_ENDED = 255
"""The exit code that `multiprocessing` gives where its server, which would know it, has ended too."""
_TO_DO = "Give the job fewer clocks, stages or instructions, or a plan file (PointSolution)."


_processes = get_context("forkserver")
_starts = threading.Lock()
"""`multiprocessing` reads the ends of all processes when it starts another one: not while a thread reads one."""


class PolicyProcesses:
    """Starts a process for each policy; `make` is a `MakePolicy`."""

    def __init__(self, limits: PolicyLimits = _POLICY_LIMITS) -> None:
        self._limits = limits
        self._reading = threading.BoundedSemaphore(_PLANS_READ_AT_ONCE)
        _processes.set_forkserver_preload(["__main__", "pfo_fs.coordination.policy_preload"])

    def make(self, call: PolicyCall) -> FrequencyScheduler:
        """Makes a policy that runs in a process of its own; a plan is read in one, which ends then."""
        if load_scheduler(call.name) is Manual or why_no_processes():
            return call.make()
        if not only_reads_a_plan(call.name):
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

    Every call has limits of memory and time. When it ends by one of them, the process is gone, and the call raises
    `PolicyFailed`; when the process has ended for a reason outside, `PolicyLost`: a replay in another one goes on.
    """

    def __init__(self, call: PolicyCall, limits: PolicyLimits) -> None:
        super().__init__(call.job_info, call.rank_infos, call.settings)
        cls = load_scheduler(call.name)
        self.planning_takes_seconds = cls.planning_takes_seconds
        self.watches_iteration_times = cls.watches_iteration_times
        self._limits = limits
        self._given_orders: Mapping[int, InstructionOrder | None] | None = None
        self._is_old = True  # whether the answer may have changed
        self._process: BaseProcess | None = None
        try:
            self._connection, theirs = _processes.Pipe()
            with theirs, _starts:
                given = theirs, limits, logging.getLogger().level
                self._process = _processes.Process(target=serve, args=given, daemon=True)
                self._process.start()
        except (OSError, EOFError) as error:
            raise PolicyLost(f"no process for the scheduler: {error or 'it has ended'}; trying again") from error
        try:
            self._exchange("make", (call,))
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

    def _change(self, method: str, *args: Any) -> None:
        self._is_old = True
        self._call(method, *args)

    def _call(self, method: str, *args: Any) -> Any:
        orders = self.orders if self.orders is not self._given_orders else None
        value, state = self._exchange("call", (method, args, orders))
        self._given_orders = self.orders
        vars(self).update(state)
        return value

    def _exchange(self, method: str, args: tuple[Any, ...]) -> Any:
        """Returns what a method of the process returns.

        Raises:
            PlanError: The scheduler has raised it.
            PolicyFailed: The scheduler has raised something else, or needs more than it may have.
            PolicyLost: The process has ended, but not by a limit.
        """
        try:
            self._connection.send((method, args))
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
        return content[0]

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
