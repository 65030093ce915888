"""When the daemon polls its jobs, and the threads that do it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from clock import Clock
from running import HANGS_AFTER_S

from pfo_fs.coordination.job_folders import Found, JobFolders
from pfo_fs.coordination.served_jobs import ServedJobs, Workers

Wait = Callable[..., Any]


class PolledJob:
    """A coordinator that only counts; it is also its own folder."""

    state, is_mine, is_calm = "running", True, False

    def __init__(self, job_id: str, clock: Clock, pause_s: float) -> None:
        self.job_id, self.pause_s, self.polls = job_id, pause_s, 0
        self.clock, self.polled_at = clock, 0.0
        self.folder = self
        self.last_alive = clock()

    def poll(self) -> float:
        self.polls += 1
        self.polled_at = self.clock()
        return self.pause_s

    def close(self) -> None:
        pass


class Folders:
    def __init__(self, jobs: list[PolledJob]) -> None:
        self.found = Found(jobs=cast(Any, jobs), again_in_s=1e9)

    def poll(self, *, list_now: bool) -> Found:
        return self.found


def serve(jobs: list[PolledJob], clock: Clock) -> ServedJobs:
    return ServedJobs(
        cast(JobFolders, Folders(jobs)),
        max_idle_s=1e9,
        interval_s=1e9,
        wake=lambda: None,
        monotonic=clock,
    )


def run(served: ServedJobs, clock: Clock, seconds: float, wait_for: Wait) -> None:
    until = clock() + seconds
    while clock() < until:
        served.serve()  # uses the results of the polls that have ended, and starts those that are due
        wait_for(lambda: not served.busy, what="the polls of this turn")
        clock.now += 0.01


def test_a_job_that_is_polled_often_makes_the_others_be_polled_hardly_more_often(clock: Clock, wait_for: Wait) -> None:
    eager, other = PolledJob("eager", clock, 0.02), PolledJob("other", clock, 0.2)
    served = serve([eager, other], clock)
    run(served, clock, 10.0, wait_for)
    served.close()
    assert eager.polls > 300
    assert 45 <= other.polls <= 75


def test_jobs_with_the_same_pause_come_to_be_polled_in_the_same_turn(clock: Clock, wait_for: Wait) -> None:
    first, second = PolledJob("first", clock, 1.0), PolledJob("second", clock, 1.0)
    served = serve([first, second], clock)
    run(served, clock, 0.5, wait_for)
    second.pause_s = 1.2  # its next poll moves by 0.2 s
    run(served, clock, 1.0, wait_for)
    second.pause_s = 1.0
    run(served, clock, 10.0, wait_for)
    assert first.polled_at == second.polled_at
    served.close()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(3)
    yield made
    made.close()


def test_a_call_that_takes_long_holds_up_no_other_and_each_runs_once(workers: Workers, wait_for: Wait) -> None:
    held, done = threading.Event(), []
    workers.start(lambda: held.wait(HANGS_AFTER_S) and None)
    for number in range(50):
        workers.start(lambda number=number: done.append(number))  # type: ignore[misc]
    wait_for(lambda: workers.retry() or len(done) == 50, what="the other calls")
    assert workers.busy
    held.set()
    wait_for(lambda: not workers.busy, what="the first call")
    assert sorted(done) == list(range(50))


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
