"""Waiting for changes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from pfo_fs.store import Watcher


def test_a_signal_handler_that_wakes_a_wait_never_deadlocks_wherever_the_signal_falls(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, "jobs", "poll")
    woken = 0

    def wake(_number: int, _frame: object) -> None:
        nonlocal woken
        woken += 1
        watcher.wake()

    before = signal.signal(signal.SIGPROF, wake)
    signal.setitimer(signal.ITIMER_PROF, 1e-4, 1e-4)
    try:
        deadline = time.monotonic() + 20
        while woken < 200 and time.monotonic() < deadline:
            watcher.wait(0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert woken >= 200


def test_a_wait_ends_at_a_wake_and_names_nothing(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, "jobs", "poll")
    watcher.wake()
    began = time.monotonic()
    assert watcher.wait(60) == set()
    assert time.monotonic() - began < 30
