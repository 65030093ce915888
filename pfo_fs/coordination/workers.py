"""Threads that poll jobs, so that the daemon's loop waits for none of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)


class Workers:
    """Runs calls in threads: one is started when none is free, up to a limit; further calls wait for a free one.

    The threads end with the process at any time. The interpreter would wait for those of `concurrent.futures`, but a
    daemon that is planning for minutes must end at once on a signal.

    Args:
        most: The largest number of threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    @property
    def busy(self) -> bool:
        """Whether a call is running or waiting."""
        return self._unfinished > 0

    def start(self, call: Callable[[], None]) -> None:
        """Runs `call` soon. It should not raise; an exception is logged."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished > self._threads and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, daemon=True, name="pfo-fs-worker").start()
        self._calls.put(call)

    def close(self) -> None:
        """Ends the threads that are free; others end with their call, or with the process."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:  # also SystemExit: one call must not end the thread that others need
                log.exception("a poll of a job failed")
            with self._lock:
                self._unfinished -= 1
