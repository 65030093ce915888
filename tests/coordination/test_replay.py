"""After a restart, what was published stays in force and is what the results belong to, however the new one plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import ORDER, Job, ReactingScheduler, schedules_at
from jobs import make_job, rank_infos

from pfo_fs.coordination.progress import PollPace
from pfo_fs.coordination.publication import Publication
from pfo_fs.models import FrequencySchedule, PlanInputs, ProfilingResult
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest
from pfo_fs.store import JobFolder, bodies


class Books(FrequencyScheduler):
    """Keeps the list that it yielded, as sweeps do, and books results under the clocks in it."""

    clocks = (1410, 1200, 1005, 900)
    booked: list[tuple[int, float]] = []  # noqa: RUF012

    def _run(self) -> ScheduleGenerator:
        Books.booked = []
        for mhz in Books.clocks:
            schedules = schedules_at(self.rank_infos, mhz)
            results: list[ProfilingResult] = yield ScheduleRequest(schedules, "measure")
            Books.booked.append((schedules[0].frequencies[0][1], results[0].iter_time[0]))


class OfOrders(FrequencyScheduler):
    """Measures at default clocks, then one clock after another for the instructions that ranks run."""

    def _run(self) -> ScheduleGenerator:
        yield ScheduleRequest([], "measure")
        for mhz in Books.clocks:
            yield [
                FrequencySchedule(rank=rank, frequencies=[(name, mhz) for name, _ in order or ()])
                for rank, order in self.orders.items()
            ]


class Settles(FrequencyScheduler):
    """Measures one clock and keeps it; the next release goes on to others after that."""

    goes_on: tuple[str, ...] = ()

    def _run(self) -> ScheduleGenerator:
        kept = schedules_at(self.rank_infos, 1200)
        yield ScheduleRequest(kept, "run", "to be measured")
        for number, purpose in enumerate(Settles.goes_on):
            yield ScheduleRequest(schedules_at(self.rank_infos, 1005 - 15 * number), purpose)  # type: ignore[arg-type]
        while True:
            yield ScheduleRequest(kept, "run", "kept", converged=True)


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets schedulers plan otherwise from now on, as another release does."""
    before = ReactingScheduler._for_plan_inputs

    def other(self: ReactingScheduler, yielded: ScheduleRequest) -> ScheduleRequest:
        request = before(self, yielded)
        lower = [
            schedule.model_copy(update={"frequencies": [(name, mhz - 300) for name, mhz in schedule.frequencies]})
            for schedule in request.schedules
        ]
        return ScheduleRequest(lower, request.purpose)

    return lambda: monkeypatch.setattr(ReactingScheduler, "_for_plan_inputs", other)


@pytest.mark.parametrize("news", ["results", "target"])
def test_after_a_restart_with_a_scheduler_that_plans_otherwise_only_news_bring_the_new_plan(
    job: Job, otherwise: Callable[[], None], news: str
) -> None:
    otherwise()
    for _ in range(2):
        job.restart()
        job.poll(10)
        assert (job.numbers, job.mhz) == ([0], 1410)
    if news == "results":
        job.measure(0, seconds=10)
    else:
        job.yaml("target: {slowdown: 1.1}\n", seconds=10)
    assert job.mhz == 1410 - (15 if news == "results" else 150) - 300


def test_replayed_results_are_booked_under_the_clocks_that_ran(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(folder, clock, scheduler=Books)
    job.tell_orders()
    job.poll(15)
    for number in range(2):
        job.measure(number, time_s=1.0 + number, seconds=15)
    assert job.mhz == 1005
    monkeypatch.setattr(Books, "clocks", (1395, 1185, 990, 885))  # what a new release would measure
    job.restart(Books)
    assert job.poll(15).mhz == 1005
    assert Books.booked == [(1410, 1.0), (1200, 2.0)]
    job.measure(2, time_s=3.0, seconds=15)
    assert Books.booked[-1] == (1005, 3.0)
    assert job.mhz == 885


@pytest.mark.parametrize("purpose", ["run", "measure"])
def test_what_a_scheduler_had_measured_and_kept_stays_though_the_next_one_would_go_on(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    job = Job(folder, clock, scheduler=Settles)
    job.tell_orders()
    job.poll(15)
    job.measure(0, seconds=15)
    assert job.current.converged
    monkeypatch.setattr(Settles, "goes_on", (purpose,))
    for _ in range(2):
        job.restart(Settles)
        assert job.poll(15).current.converged
        assert job.numbers == [0]
    job.yaml("target: {slowdown: 1.1}\n", seconds=15)
    assert job.numbers == ([0, 1] if purpose == "measure" else [0])


def test_a_history_without_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, slow = make_job(tmp_path, 1), PlanInputs(slow_pipelines=dict.fromkeys(range(100), 1.5))
    for number in range(8):
        source = bodies.Source(kind="scheduler", policy="p", revision=number, plan_inputs=slow)
        folder.write_schedule(number, 1, 0, source, [], rank_infos(1))
    publication = Publication(folder, 1, PollPace(1.0, remote=False, adapts=False, now=0.0))
    assert publication.restore("p") == []
    assert list(publication.made) == list(range(8))
    monkeypatch.setattr("pfo_fs.coordination.publication._MOST_REPLAYED", 500)
    assert any("starts afresh" in problem for problem in publication.restore("p"))
    assert (publication.made, publication.number) == ({}, 7)


@pytest.mark.parametrize("restarts", [False, True])
def test_after_another_order_of_instructions_the_scheduler_begins_from_nothing(
    folder: JobFolder, clock: Clock, restarts: bool
) -> None:
    job = Job(folder, clock, scheduler=OfOrders)
    job.tell_orders()
    job.poll(15)
    for number in range(2):
        job.measure(number, seconds=15)
    assert job.mhz == 1200
    for times, number in ((3, 3), (2, 4)):  # the second one comes before anything is measured
        job.tell_orders(times)
        if restarts and times == 3:
            job.restart(OfOrders)
        assert job.poll(30).current.number == number
        assert job.index(number).source.revision == 0
    job.measure(4, seconds=15)
    assert job.clocks == [(name, 1410) for name, _ in ORDER * 2]
