"""The processes in which a daemon's policies run: one for each job, forked by one that has loaded what they need.

A policy that needs too much memory or time ends its own process, and no other job notices. The process that forks has
no threads and does nothing else; it ends with the daemon, and ends the others then.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from pfo_fs.coordination.bounds import PolicyLimits
from pfo_fs.coordination.policy_start import PolicyCall
from pfo_fs.errors import ConfigError, PlanError, plain_text
from pfo_fs.models import MAX_JOB_INSTRUCTIONS, FrequencySchedule
from pfo_fs.scheduler import FrequencyScheduler

log = logging.getLogger(__name__)

_PRELOADED = (
    *("numpy", "numpy.random", "pandas", "highspy"),
    *("pfo_fs.autotune.pareto_scheduler", "pfo_fs.autotune.instruction_profiler"),
)
"""What is loaded before the forks is in memory once for all jobs; a job's process has some 20 MB of its own."""
_MOST_LOG_LINES = 20
_ADDRESSES = 4
"""Times the memory. Threads reserve addresses that they do not use; before Linux 4.7, only addresses can be limited."""
_NICE = 5
"""A policy that plans for minutes leaves the processor to the daemon and to training."""


def main(given: dict[str, int]) -> None:
    """Forks a process for each connection that comes in; ends when the daemon does."""
    if "stderr_fd" in given:  # what the scheduler of an operator prints belongs into the daemon's log
        os.dup2(given["stderr_fd"], 2)
    # Before numpy is loaded: threads of its libraries would not outlive a fork, and one processor for a job is enough.
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
    logging.getLogger().setLevel(given["log_level"])
    with suppress(OSError):
        os.nice(_NICE)
    for name in _PRELOADED:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    _Forks(socket.socket(fileno=given["control_fd"])).run()


class _Forks:
    """Forks, and tells each daemon's end of a connection how the process at the other end has ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}  # the descriptor of each one's connection, by process
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        while True:
            ready: list[object]
            ready, _, _ = select.select([self._control, self._woken], [], [])  # type: ignore[type-var]
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._control in ready:
                message, fds, _, _ = socket.recv_fds(self._control, 1, 1)
                if not message:
                    break
                for fd in fds:
                    self._fork(fd)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _fork(self, fd: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            _say_end(fd, f"no process could be started: {error.strerror}")
            return
        if pid:
            self._children[pid] = fd
            return
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGXCPU):
                signal.signal(number, signal.SIG_DFL)
            for other in (self._control.fileno(), self._woken, self._wake, *self._children.values()):
                os.close(other)
            _serve(Connection(fd))
        finally:
            os._exit(0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            _say_end(self._children.pop(pid), os.waitstatus_to_exitcode(status))


def _say_end(fd: int, how: int | str) -> None:
    """Sends as the last message how the process has ended: its exit code, or a text if it has never started."""
    os.set_blocking(fd, False)  # the daemon may not read
    with Connection(fd) as connection, suppress(OSError):
        connection.send(("ended", how))


# ---- in the process of one job


def _serve(connection: Connection) -> None:
    lines = _LogLines()
    logging.getLogger().handlers = [lines]
    policy = _Policy()
    connection.send(("started", os.getpid()))
    limits: PolicyLimits = connection.recv()
    _limit_memory(limits.memory_bytes)
    while True:
        try:
            method, args = connection.recv()
        except EOFError:
            return
        _limit_processor_time(limits.cpu_s)
        try:
            reply = "done", getattr(policy, method)(*args), lines.taken()
            data = pickle.dumps(reply)
        except MemoryError:
            connection.send(("memory",))
            return
        except (PlanError, ConfigError) as error:
            data = pickle.dumps(("refused", (str(error), getattr(error, "line", None)), lines.taken()))
        except BaseException as error:  # a user's scheduler may raise anything, SystemExit too
            log.exception("the scheduler failed")
            text = f"the scheduler failed: {type(error).__name__}: {plain_text(str(error))}"
            data = pickle.dumps(("failed", (text, None), lines.taken()))
        connection.send_bytes(data)


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


class _Policy:
    """A scheduler, as `RemotePolicy` calls it. `asked` is the last request that was sent."""

    def __init__(self) -> None:
        self._scheduler: FrequencyScheduler | None = None
        self._asked: object = None

    def make(self, call: PolicyCall) -> None:
        self._scheduler = call.make()

    def call(self, method: str, args: tuple[Any, ...], orders: Any) -> tuple[Any, dict[str, Any]]:
        """Calls a method; returns its result, and what has changed of the scheduler's state."""
        scheduler = self._scheduler
        assert scheduler is not None
        if orders is not None:
            scheduler.orders = orders
        found: Callable[..., Any] = getattr(scheduler, method)
        value = found(*args)
        state: dict[str, Any] = {"_done": scheduler.done, "plan_inputs": scheduler.plan_inputs}
        if method in ("request", "assess"):  # what is said of a request may change with the iterations
            asked = scheduler.request()
            if asked is not self._asked:
                self._asked, state["_answer"] = asked, replace(asked, schedules=_bounded(asked.schedules))
        return (None if method == "request" else value), state


def _bounded(schedules: Iterable[FrequencySchedule]) -> list[FrequencySchedule]:
    """Returns schedules as the daemon keeps them: equal ones share their lists, and all together are not too long.

    Raises:
        PlanError: They would take too much memory of the daemon.
    """
    known: dict[object, FrequencySchedule] = {}
    sharing = []
    for one in schedules:
        first = known.setdefault((tuple(one.frequencies), one.stages and tuple(one.stages)), one)
        sharing.append(first if first is one else first.model_copy(update={"rank": one.rank}))
    if sum(len(one.frequencies) for one in known.values()) > MAX_JOB_INSTRUCTIONS:
        raise PlanError(f"the schedules have more than {MAX_JOB_INSTRUCTIONS:,} instructions, the most that is taken")
    return sharing


def _limit_memory(memory_bytes: int) -> None:
    _set_limit(resource.RLIMIT_CORE, 0, 0)
    with open("/proc/self/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
    for limit, field, most in (
        (resource.RLIMIT_DATA, "VmData", memory_bytes),
        (resource.RLIMIT_AS, "VmSize", _ADDRESSES * memory_bytes),
    ):
        most += int(sizes[field].split()[0]) * 1024
        _, hard = resource.getrlimit(limit)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        _set_limit(limit, most, most)


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
