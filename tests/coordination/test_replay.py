"""After a restart, what was published stays in force and is what the results belong to, however the new one plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import ORDER, ReactingScheduler, clock_mhz, coordinate, poll, say_yaml
from jobs import current_of, index_of, instead_of, make_job, rank_infos, write_results

from pfo_fs.coordination.progress import PollPace
from pfo_fs.coordination.publication import Publication
from pfo_fs.errors import StoreUnavailable
from pfo_fs.models import FrequencySchedule, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest
from pfo_fs.store import JobFolder, bodies


def schedules_at(infos: list[RankInfo], mhz: int) -> list[FrequencySchedule]:
    return [FrequencySchedule(rank=info.rank, frequencies=[(name, mhz) for name, _ in ORDER]) for info in infos]


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
    folder: JobFolder, clock: Clock, otherwise: Callable[[], None], news: str
) -> None:
    poll(coordinate(folder, clock), clock)
    otherwise()
    for _ in range(2):  # restarts
        after = coordinate(folder, clock)
        poll(after, clock)
        assert (folder.schedule_numbers(), clock_mhz(folder)) == ([0], 1410)
    if news == "results":
        write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    else:
        say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(after, clock)
    assert clock_mhz(folder) == 1410 - (15 if news == "results" else 150) - 300


def test_replayed_results_are_booked_under_the_clocks_that_ran(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        folder.write(bodies.OrderBody(rank=rank, instructions=ORDER))
    before = coordinate(folder, clock, Books)
    for number in range(2):
        poll(before, clock, 15)
        write_results(folder, number, rank_infos(1, 2), time_s=1.0 + number)
    poll(before, clock, 15)
    assert clock_mhz(folder) == 1005
    monkeypatch.setattr(Books, "clocks", (1395, 1185, 990, 885))  # what a new release would measure
    after = coordinate(folder, clock, Books)
    poll(after, clock, 15)
    assert Books.booked == [(1410, 1.0), (1200, 2.0)]
    assert clock_mhz(folder) == 1005
    write_results(folder, 2, rank_infos(1, 2), time_s=3.0)
    poll(after, clock, 15)
    assert Books.booked[-1] == (1005, 3.0)
    assert clock_mhz(folder) == 885


@pytest.mark.parametrize("purpose", ["run", "measure"])
def test_what_a_scheduler_had_measured_and_kept_stays_though_the_next_one_would_go_on(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    for rank in (0, 1):
        folder.write(bodies.OrderBody(rank=rank, instructions=ORDER))
    before = coordinate(folder, clock, Settles)
    poll(before, clock, 15)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(before, clock, 15)
    assert before.scheduler is not None
    assert before.scheduler.request().converged
    monkeypatch.setattr(Settles, "goes_on", (purpose,))
    for _ in range(2):  # restarts
        after = coordinate(folder, clock, Settles)
        poll(after, clock, 15)
        assert folder.schedule_numbers() == [0]
        current = current_of(folder)
        assert current.converged
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(after, clock, 15)
    assert folder.schedule_numbers() == ([0, 1] if purpose == "measure" else [0])


def test_a_history_without_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, infos = make_job(tmp_path, 1), rank_infos(1)
    slow = PlanInputs(slow_pipelines=dict.fromkeys(range(100), 1.5))
    for number in range(8):
        source = bodies.Source(kind="scheduler", policy="p", revision=number, plan_inputs=slow)
        folder.write_schedule(number, 1, 0, source, [], infos)
    publication = Publication(folder, 1, PollPace(1.0, remote=False, adapts=False, now=0.0))
    assert publication.restore("p") == []
    assert len(publication.made) == 8
    monkeypatch.setattr("pfo_fs.coordination.publication._MOST_REPLAYED", 500)
    problems = publication.restore("p")
    assert publication.made == {}
    assert publication.number == 7
    assert any("starts afresh" in problem for problem in problems)


def test_a_publication_stays_as_it_was_when_the_directory_gives_no_answer_while_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_job(tmp_path, 1)
    for number in range(3):
        source = bodies.Source(kind="scheduler", policy="p", revision=number)
        folder.write_schedule(number, 1, 0, source, [], rank_infos(1))
    publication = Publication(folder, 1, PollPace(1.0, remote=False, adapts=False, now=0.0))
    publication.restore("p")

    def read_some(read: Callable[[], bodies.IndexBody | None], place: dict[str, int]) -> bodies.IndexBody | None:
        if place["number"] == 2:
            raise StoreUnavailable(116, "stale")
        return read()

    instead_of(monkeypatch, "read", bodies.IndexBody, read_some)
    with pytest.raises(StoreUnavailable):
        publication.restore("p")
    assert publication.number == 2
    assert list(publication.made) == [0, 1, 2]


@pytest.mark.parametrize("restarts", [False, True])
def test_after_another_order_of_instructions_the_scheduler_begins_from_nothing(
    folder: JobFolder, clock: Clock, restarts: bool
) -> None:
    def write_orders(times: int) -> None:
        for rank in (0, 1):
            folder.write(bodies.OrderBody(rank=rank, instructions=ORDER * times))

    write_orders(1)
    coordinator = coordinate(folder, clock, OfOrders)
    poll(coordinator, clock, 15)
    for number in range(2):
        write_results(folder, number, rank_infos(1, 2), time_s=1.0)
        poll(coordinator, clock, 15)
    assert clock_mhz(folder) == 1200
    for times, number in ((3, 3), (2, 4)):  # the second one comes before anything is measured
        write_orders(times)
        if restarts and times == 3:
            coordinator = coordinate(folder, clock, OfOrders)
        poll(coordinator, clock, 30)
        assert current_of(folder).number == number
        assert folder.read(bodies.IndexBody, number=number).source.revision == 0  # type: ignore[union-attr]
    write_results(folder, number, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 15)
    schedule = folder.read_schedule(index_of(folder, current_of(folder).number), rank_infos(1, 2)[0])
    assert schedule is not None
    assert schedule.frequencies == [(name, 1410) for name, _ in ORDER * 2]
