"""Threads that poll jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import HANGS_AFTER_S

from pfo_fs.coordination.served_jobs import Workers

Wait = Callable[..., Any]


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(3)
    yield made
    made.close()


def test_a_call_that_takes_long_holds_up_no_other(workers: Workers, wait_for: Wait) -> None:
    held, done = threading.Event(), []
    workers.start(lambda: held.wait(HANGS_AFTER_S) and None)
    workers.start(lambda: done.append(1))
    wait_for(lambda: workers.retry() or done, what="the second call")
    assert workers.busy
    held.set()
    wait_for(lambda: not workers.busy, what="the first call")


def test_an_exception_is_logged_and_the_next_call_runs(
    workers: Workers, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []
    workers.start(lambda: 1 // 0 and None)
    workers.start(lambda: done.append(1))
    wait_for(lambda: done, what="the next call")
    assert "ZeroDivisionError" in caplog.text


def test_closed_workers_end_their_threads(wait_for: Wait) -> None:
    before = threading.active_count()
    workers = Workers(2)
    workers.start(lambda: None)
    workers.close()
    wait_for(lambda: threading.active_count() <= before, what="the end of the threads")


@settings(max_examples=20)
@given(pauses=st.lists(st.sampled_from([0.0, 0.0, 0.002, 0.08]), min_size=1, max_size=12))
def test_every_call_runs_once_however_long_others_take(pauses: list[float]) -> None:
    workers, done, all_done = Workers(4), [], threading.Event()

    def call(number: int, pause_s: float) -> None:
        threading.Event().wait(pause_s)
        done.append(number)
        if len(done) == len(pauses):
            all_done.set()

    for number, pause_s in enumerate(pauses):
        workers.start(lambda number=number, pause_s=pause_s: call(number, pause_s))  # type: ignore[misc]
    assert all_done.wait(HANGS_AFTER_S)
    workers.close()
    assert sorted(done) == list(range(len(pauses)))


def test_a_call_begins_at_once_when_no_other_runs(monkeypatch: pytest.MonkeyPatch, wait_for: Wait) -> None:
    monkeypatch.setattr("pfo_fs.coordination.served_jobs.PATIENCE_S", 60.0)
    workers, begun, held, done = Workers(3), threading.Event(), threading.Event(), []
    workers.start(lambda: begun.set() or (held.wait(HANGS_AFTER_S) and None))
    assert begun.wait(HANGS_AFTER_S)
    workers.start(lambda: done.append(1))
    held.set()
    wait_for(lambda: done and not workers.busy, what="the first two calls")
    workers.start(lambda: done.append(2))
    wait_for(lambda: len(done) == 2, what="the third call")
    workers.close()
