"""Threads that poll jobs, so that the daemon's loop waits for none of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from pfo_fs.coordination.log_once import LogOnce

log = logging.getLogger(__name__)

PATIENCE_S = 0.05
"""A call waits this long for the running thread before another thread takes it. Most polls take a millisecond; threads
that run at the same time compete for the interpreter, which costs more CPU time than one after the other."""


class Workers:
    """Runs calls one after the other in one thread, and in more threads where calls take long.

    The threads end with the process at any time. The interpreter would wait for those of `concurrent.futures`, but a
    daemon that is planning for minutes must end at once on a signal.

    Args:
        most: The largest number of threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()  # with the time when each was added
        self._changed = threading.Condition()
        self._threads = self._idle = self._running = 0
        self._wanted = False  # an idle thread is to take the next call
        self._closed = False
        self._log = LogOnce(log, time.monotonic)

    @property
    def busy(self) -> bool:
        """Whether a call is running or waiting."""
        return bool(self._running or self._calls)

    def start(self, call: Callable[[], None]) -> None:
        """Runs `call` soon. It should not raise; an exception is logged."""
        with self._changed:
            self._calls.append((time.monotonic(), call))
            if not self._running:
                self._add_thread()

    def add_threads(self) -> float:
        """Lets another thread take the first call if it has waited too long; returns when this is due again, in s."""
        with self._changed:
            if not self._calls:
                return math.inf
            wait_s = self._calls[0][0] + PATIENCE_S - time.monotonic() if self._running else 0.0
            if wait_s <= 0:
                self._add_thread()
            return max(wait_s, PATIENCE_S)

    def close(self) -> None:
        """Ends the threads that are free; others end with their call, or with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add_thread(self) -> None:
        """Has one more thread take a call, unless one is about to."""
        if self._wanted or self._threads > self._idle + self._running:
            return
        if self._idle:
            self._wanted = True
            self._changed.notify()
        elif self._threads < self._most:
            try:
                threading.Thread(target=self._run, daemon=True, name="pfo-fs-worker").start()
            except RuntimeError as error:  # the limit of processes is reached; the next `add_threads` tries again
                self._log.log(logging.WARNING, f"{error}; jobs wait until that works")
                return
            self._threads += 1

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except BaseException:  # also SystemExit: one call must not end the thread that others need
                log.exception("a poll of a job failed")
            with self._changed:
                self._running -= 1

    def _next(self) -> Callable[[], None] | None:
        """Returns the call that waits, at once, or the next one for which this thread is needed; None at the end."""
        with self._changed:
            while not self._calls and not self._closed:
                self._idle += 1
                self._changed.wait_for(lambda: self._wanted or self._closed)
                self._wanted = False
                self._idle -= 1
            if self._closed:
                self._threads -= 1
                return None
            self._running += 1
            return self._calls.popleft()[1]
