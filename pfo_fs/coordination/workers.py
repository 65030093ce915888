"""Threads that poll jobs, so that the daemon's loop waits for none of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from pfo_fs.coordination.status_publisher import LogOnce

log = logging.getLogger(__name__)

_PATIENCE_S = 0.05
"""A call waits this long for the running thread before another thread takes it. Most polls take a millisecond; threads
that run at the same time compete for the interpreter, which costs more CPU time than one after the other."""


class Workers:
    """Runs calls one after the other in one thread, and in more threads where calls take long.

    The threads end with the process at any time. The interpreter would wait for those of `concurrent.futures`, but a
    daemon that is planning for minutes must end at once on a signal.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()  # with the time when each was added
        self._changed = threading.Condition()
        self._threads = self._idle = self._running = 0
        self._has_watcher = False  # one thread that runs no call watches the calls that wait
        self._wanted = False  # an idle thread is to become that watcher
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
            self._provide_watcher()

    def retry(self) -> None:
        """Starts a thread for calls that wait, if none could be started before."""
        with self._changed:
            self._provide_watcher()

    def close(self) -> None:
        """Ends the threads that are free; others end with their call, or with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _provide_watcher(self) -> None:
        if self._has_watcher or not self._calls:
            if not self._running:
                self._changed.notify_all()  # the watcher waits for a thread that has finished in the meantime
            return
        if self._idle:
            self._wanted = True
            self._changed.notify()
        elif self._threads < self._most:
            try:
                threading.Thread(target=self._run, daemon=True, name="pfo-fs-worker").start()
            except RuntimeError as error:  # the limit of processes is reached; `retry` tries again
                self._log.log(logging.WARNING, f"{error}; jobs wait until that works")
                return
            self._threads += 1
        else:
            return  # a running thread takes the call when its own has ended
        self._has_watcher = True

    def _run(self) -> None:
        call = self._watch()
        while call is not None:
            try:
                call()
            except BaseException:  # also SystemExit: one call must not end the thread that others need
                log.exception("a poll of a job failed")
            call = self._next()

    def _next(self) -> Callable[[], None] | None:
        """Returns the call that waits, at once, or the next one for which this thread is needed."""
        with self._changed:
            if self._calls and not self._closed:
                return self._calls.popleft()[1]
            self._running -= 1
            self._wait_until_wanted()
        return self._watch()

    def _wait_until_wanted(self) -> None:
        self._idle += 1
        self._changed.wait_for(lambda: self._wanted or self._closed)
        self._wanted = False
        self._idle -= 1

    def _watch(self) -> Callable[[], None] | None:
        """Returns the first call that no running thread takes in time; None when the workers are closed."""
        with self._changed:
            while not self._closed:
                if not self._calls:
                    self._has_watcher = False
                    self._wait_until_wanted()
                    continue
                wait_s = self._calls[0][0] + _PATIENCE_S - time.monotonic() if self._running else 0.0
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                self._has_watcher = False
                self._running += 1
                call = self._calls.popleft()[1]
                self._provide_watcher()
                return call
            self._threads -= 1
            return None
