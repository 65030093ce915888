"""Threads that poll jobs, so that the daemon's loop waits for none of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from pfo_fs.coordination.log_once import LogOnce

log = logging.getLogger(__name__)

PATIENCE_S = 0.05
"""A call waits this long for a running thread before another thread takes it. Most polls take a millisecond; threads
that run at the same time compete for the interpreter, which costs more CPU time than one after the other."""


class Workers:
    """Runs calls one after the other in one thread, and in more threads where calls take long.

    The threads end when no call waits, and with the process at any time. The interpreter would wait for those of
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
