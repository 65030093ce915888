"""The process of a daemon in which one job's policy runs, with limits of memory and time.

A policy that needs too much ends its own process, and no other job notices. `multiprocessing`'s server forks these
processes (`policy_preload.py` has loaded what they need); each ends with the daemon.
"""

from __future__ import annotations

import logging
import os
import pickle
import resource
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from pfo_fs.coordination.policy_start import PolicyCall
from pfo_fs.errors import ConfigError, PlanError, plain_text
from pfo_fs.models import MAX_JOB_INSTRUCTIONS, FrequencySchedule
from pfo_fs.scheduler import FrequencyScheduler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PolicyLimits:
    """What the process of a job's policy may take; `docs/threat-model.md` states the numbers.

    Attributes:
        memory_bytes: Memory, beyond what the process has at its start.
        cpu_s: Processor time in s for one call: to take in results, or to make a plan.
        wall_s: Time in s for the same; longer, since many policies may share few processors.
    """

    memory_bytes: int = 1 << 30
    cpu_s: int = 300
    wall_s: float = 900.0


_MOST_LOG_LINES = 20
_ADDRESSES = 4
"""Times the memory. Threads reserve addresses that they do not use; before Linux 4.7, only addresses can be limited."""
_NICE = 5
"""A policy that plans for minutes leaves the processor to the daemon and to training."""


def serve(connection: Connection, limits: PolicyLimits, log_level: int) -> None:
    """Makes a scheduler and calls its methods, as `RemotePolicy` asks, until the daemon closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C means the daemon
    lines = _LogLines()
    logging.getLogger().handlers = [lines]
    logging.getLogger().setLevel(log_level)
    with suppress(OSError):
        os.nice(_NICE)
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    policy = _Policy()
    _limit_memory(limits.memory_bytes)
    while True:
        try:
            method, args = connection.recv()
        except (EOFError, OSError):
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
        value = getattr(scheduler, method)(*args)
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
