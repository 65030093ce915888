"""The jobs that a leading daemon schedules: starts the polls that are due, in threads."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from pfo_fs.coordination.coordinator import Coordinator, LogOnce
from pfo_fs.coordination.job_folders import Found, JobFolders
from pfo_fs.errors import StoreError

log = logging.getLogger(__name__)

AFTER_FAILURE_S = 5.0
MOST_THREADS = 128
"""At most this many jobs are planned for, or wait for a slow directory, at the same time; further jobs wait."""
_MOST_GRACE_S = 600.0
"""No job is ended before this daemon has watched it for this time, in s, or for a sixteenth of the time after which it
counts as idle, if that is shorter: after an outage of the file system, living processes write first."""

PATIENCE_S = 0.05
"""A call waits this long for a running thread before another thread takes it. Most polls take a millisecond; threads
that run at the same time compete for the interpreter, which costs more CPU time than calls one after the other."""
_EARLY = 0.25
"""When a job is due, others are polled too if only this share of their pause is left: each round costs CPU time."""
_FOLDERS = ""
"""Marks the poll of `jobs/` itself where a job's id is expected: ids are never empty."""


class Workers:
    """Runs calls one after the other in one thread, and in more threads where calls take long.

    The threads end when no call waits, and with the process at any time. The interpreter would wait for threads of
    `concurrent.futures`, but a daemon that is planning for minutes must end at once on a signal.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._threads = 0
        self._taken_s = 0.0  # when a thread has taken a call last
        self._log = LogOnce(log, time.monotonic)

    @property
    def busy(self) -> bool:
        """Whether a call is running or waiting."""
        return bool(self._threads or self._calls)

    @property
    def waits(self) -> bool:
        """Whether a call waits, so that `retry` is to be called after `PATIENCE_S`."""
        return bool(self._calls)

    def start(self, call: Callable[[], None]) -> None:
        """Runs `call` soon. It should not raise; an exception is logged."""
        self._calls.append(call)
        self.retry()

    def retry(self) -> None:
        """Starts a thread for calls that wait, if none runs, or none has taken a call for a while."""
        with self._lock:
            patient = self._threads and time.monotonic() - self._taken_s < PATIENCE_S
            if not self._calls or patient or self._threads >= self._most:
                return
            try:
                threading.Thread(target=self._run, daemon=True, name="pfo-fs-worker").start()
            except RuntimeError as error:  # the limit of processes is reached
                self._log.log(logging.WARNING, f"{error}; jobs wait until that works")
                return
            self._threads += 1
            self._taken_s = time.monotonic()

    def close(self) -> None:
        """Drops the calls that wait; threads end with their call, or with the process."""
        self._calls.clear()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except BaseException:  # also SystemExit: one call must not end the thread that others need
                log.exception("a poll of a job failed")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if not self._calls:
                self._threads -= 1
                return None
            self._taken_s = time.monotonic()
            return self._calls.popleft()


@dataclass
class _Entry:
    """One job: when its next poll is due, from when on it may be polled with others, when to look whether it is idle
    (all monotonic s), and whether a poll is running."""

    coordinator: Coordinator
    look_at: float
    due: float = -math.inf
    not_before: float = -math.inf
    polling: bool = False


@dataclass
class ServedJobs:
    """Serves jobs in the time of one leadership. No method waits for a poll.

    Args:
        max_idle_s: A job whose processes have done nothing for this time is ended and archived.
        interval_s: The longest time between two polls of a job that this daemon schedules and that is not calm.
        wake: Called from another thread when a poll has ended, so that `serve` is due.
    """

    folders: JobFolders
    _: KW_ONLY
    max_idle_s: float
    interval_s: float
    wake: Callable[[], None]
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._ended: deque[tuple[str, float | Found]] = deque()  # polls that have ended, and their results
        self._grace_s = min(_MOST_GRACE_S, self.max_idle_s / 16)
        self._workers = Workers(MOST_THREADS)
        self._folders_worker = Workers(1)  # separate: new jobs never wait for the plans of others
        self._folders_due = -math.inf
        self._folders_polling = False
        self._folders_changed = True

    @property
    def busy(self) -> bool:
        """Whether a poll is running."""
        return self._workers.busy or self._folders_worker.busy

    def list_soon(self) -> None:
        """Makes the poll of `jobs/` due, because something may be new there."""
        self._folders_changed = True
        self._folders_due = -math.inf

    def serve(self) -> float:
        """Uses the results of ended polls, and starts the polls that are due; returns s until the next one is due."""
        now = self.monotonic()
        while self._ended:
            job_id, outcome = self._ended.popleft()
            if isinstance(outcome, Found):
                self._take_over(outcome, now)
            elif job_id in self._entries:
                self._poll_ended(job_id, self._entries[job_id], outcome, now)
        if not self._folders_polling and now >= self._folders_due:
            self._folders_polling = True
            list_now, self._folders_changed = self._folders_changed, False
            self._folders_worker.start(lambda: self._poll_folders(list_now))
        self._workers.retry()
        self._folders_worker.retry()
        soonest = math.inf if self._folders_polling else self._folders_due
        free = {job_id: entry for job_id, entry in self._entries.items() if not entry.polling}
        if any(entry.due <= now for entry in free.values()):
            for job_id, entry in free.items():
                if entry.not_before <= now:
                    self._start_poll(job_id, entry)
        soonest = min((soonest, *(entry.due for entry in free.values() if not entry.polling)))
        waits = self._workers.waits or self._folders_worker.waits
        return min(PATIENCE_S if waits else math.inf, max(0.0, soonest - now))

    def restart_timers(self) -> None:
        """Restarts the timing of the jobs' silence: during an outage of the file system no activity is seen."""
        for entry in self._entries.values():
            entry.coordinator.last_alive = self.monotonic()
            entry.look_at = max(entry.look_at, self.monotonic() + self._grace_s)

    def close(self) -> None:
        """Drops the polls that wait, and ends the schedulers; running polls go on, but publish nothing any more."""
        for entry in self._entries.values():
            entry.coordinator.close()
        self._workers.close()
        self._folders_worker.close()

    # ---- in the threads

    def _poll_folders(self, list_now: bool) -> None:
        outcome = Found()
        try:
            outcome = self.folders.poll(list_now=list_now)
        except StoreError as error:
            log.debug("jobs/ cannot be listed: %s", error.args[-1])  # the heartbeat also fails, and that is logged
        finally:
            self._ended.append((_FOLDERS, outcome))
            self.wake()

    def _poll_job(self, job_id: str, entry: _Entry) -> None:
        coordinator, delay_s = entry.coordinator, AFTER_FAILURE_S
        try:
            delay_s = coordinator.poll()
            if coordinator.state != "ended" and self.monotonic() >= entry.look_at:
                idle_s = self.folders.silent_s(job_id)
                entry.look_at = self.monotonic() + max(0.0, self.max_idle_s - idle_s)
                if idle_s > self.max_idle_s and coordinator.still_leads():
                    coordinator.end("idle", f"no activity for {idle_s:.0f} s")
                    log.warning("job %s: no activity for %.0f s; ended and archived", job_id, idle_s)
                    self.folders.over(job_id, -math.inf)
                    delay_s = -1.0
        except StoreError as error:
            log.warning("job %s: %s", job_id, error.args[-1])
        finally:
            self._ended.append((job_id, delay_s))
            self.wake()

    # ---- in the loop

    def _start_poll(self, job_id: str, entry: _Entry) -> None:
        entry.polling = True
        self._workers.start(lambda: self._poll_job(job_id, entry))

    def _take_over(self, found: Found, now: float) -> None:
        self._folders_polling = False
        self._folders_due = -math.inf if self._folders_changed else now + found.again_in_s
        for coordinator in found.jobs:
            self._entries.setdefault(coordinator.folder.job_id, _Entry(coordinator, now + self._grace_s))
        for job_id in found.gone:
            entry = self._entries.pop(job_id, None)
            if entry is not None:
                log.warning("job %s: its folder has been removed", job_id)
                entry.coordinator.close()

    def _poll_ended(self, job_id: str, entry: _Entry, delay_s: float, now: float) -> None:
        coordinator = entry.coordinator
        entry.polling = False
        if coordinator.state == "ended" or delay_s < 0:
            del self._entries[job_id]
            coordinator.close()
            if delay_s >= 0:
                self.folders.over(job_id, now + self.max_idle_s)
            return
        if coordinator.is_mine and not coordinator.is_calm:
            delay_s = min(delay_s, self.interval_s)
        entry.due = now + delay_s
        entry.not_before = entry.due - _EARLY * delay_s
