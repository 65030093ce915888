"""What ranks measured: awaited, lost and measured again, left out; after a restart, what was published stays in force
and is what the results belong to, however the new scheduler plans."""

import errno
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from clock import Clock
from coordinator_jobs import INFOS, ORDER, Job, ReactingScheduler, schedules_at
from jobs import instead_of, make_job, rank_infos, write_step
from record_corpus import Place, load, plant, sign

from pfo_fs.coordination.coordinator import GONE_AFTER_S, LogOnce
from pfo_fs.coordination.progress import PollPace
from pfo_fs.coordination.publication import Publication
from pfo_fs.errors import PolicyFailed, StoreError
from pfo_fs.models import FrequencySchedule, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest
from pfo_fs.store import JobFolder, bodies


@pytest.mark.parametrize("come", [True, False], ids=["orders come", "orders never come"])
def test_results_wait_a_limited_time_for_orders_not_listed_yet(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, come: bool
) -> None:
    monkeypatch.setattr(ReactingScheduler, "purpose", "measure")
    monkeypatch.setattr(ReactingScheduler, "_for_plan_inputs", lambda _, yielded: yielded)  # no clocks, and no orders
    job = Job(folder, clock).poll()
    job.measure(0, seconds=60)
    assert ReactingScheduler.calls == []
    if come:
        job.tell_orders()
    job.poll(2 if come else 40)
    assert ReactingScheduler.calls == [[1.0, 1.0]]


def train_on(job: Job, steps: range, infos: Sequence[RankInfo] = ()) -> None:
    """Training goes on under the newest schedule, and these ranks measure."""
    for step in steps:
        write_step(job.folder, step, number=job.numbers[-1])
        job.measure(job.numbers[-1], infos=infos)


def test_results_that_were_lost_are_measured_again_a_limited_number_of_times(job: Job) -> None:
    train_on(job, range(0, 2000, 25), INFOS[:1])  # rank 1's never comes
    assert (job.numbers, job.coordinator.state) == ([0, 1, 2], "running")
    assert "rank 1 measured nothing under schedule 2, nor when it was repeated" in job.coordinator.message
    job.measure(2, infos=INFOS[1:])
    assert ReactingScheduler.calls == [[1.0, 1.0]]
    assert job.coordinator.message == ""


def test_lost_results_are_measured_again_also_by_a_coordinator_that_came_after_the_window(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReactingScheduler, "purpose", "measure")
    write_step(folder, 0, number=-1)
    job = Job(folder, clock).poll(10)
    job.restart()
    for step in range(0, job.index(0).until + 200, 10):
        job.train(step, number=-1)  # the window is over, and ranks say so
    assert job.numbers[:2] == [0, 1]


def test_the_last_complete_comparison_stays_while_another_is_made(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([{"energy_saved": 0.1}, {"more_time": 0.02}])
    monkeypatch.setattr(ReactingScheduler, "model", lambda _: {"blocking_power_w": 1.0, "delay_s": 0.0, **next(told)})
    for number in (0, 1):
        job.train(10 * number, number)
        job.measure(number)
    model = job.folder.read(bodies.ModelBody)
    assert (model.energy_saved, model.last.energy_saved, model.last.number) == (None, 0.1, 0)


def test_what_could_not_be_published_was_not_tried(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.train(0, number=0)
    with monkeypatch.context() as disk:
        disk.setattr(JobFolder, "write_schedule", Mock(side_effect=StoreError(errno.ENOSPC, "no space left")))
        train_on(job, range(0, 1000, 10))
    assert job.poll().numbers == [0, 1]


def test_another_schedule_has_its_own_tries_and_a_persons_needs_no_results(job: Job) -> None:
    for number, text in ((2, "target: {slowdown: 1.1}\n"), (5, "all: 1200\n")):
        train_on(job, range(number * 1000, number * 1000 + 2000, 25))
        assert job.numbers[-1] == number
        assert f"schedule {number}, nor when it was repeated" in job.coordinator.message
        job.yaml(text)
        assert job.coordinator.message == ""


def test_a_result_that_cannot_be_read_is_left_out(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.measure(0, seconds=0)
    (job.folder.location / "prof" / "0" / "1.json").write_text("junk")
    job.poll()
    assert ReactingScheduler.calls == [[1.0]]
    assert job.coordinator.state == "running"
    assert "left out" in caplog.text


@pytest.mark.parametrize(("number", "left"), [(1, 3), (3, 3)], ids=["in the middle", "the newest"])
def test_a_schedule_that_cannot_be_read_any_more_starts_the_scheduler_afresh(job: Job, number: int, left: int) -> None:
    for measured in range(3):
        job.measure(measured)
    assert (job.numbers[-1], job.mhz) == (3, 1410 - 3 * 15)
    (job.folder.location / "sched" / str(number) / "index.json").write_text("damaged")
    job.restart()
    job.poll(10)
    assert ReactingScheduler.calls == [], "results are not handed to a scheduler that has not asked for them"
    assert (job.coordinator.state, job.numbers[-1], job.mhz) == ("running", left + 1, 1410)


def test_a_policy_that_met_a_limit_is_tried_again_after_an_hour(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    observe, limits = ReactingScheduler.observe, [PolicyFailed("the scheduler has not answered for 600 s.")]

    def busy(scheduler: ReactingScheduler, results: Sequence[ProfilingResult]) -> None:
        if limits:
            raise limits.pop()
        observe(scheduler, results)

    monkeypatch.setattr(ReactingScheduler, "observe", busy)
    job.measure(0)
    for pause_s in (0, 3588):
        job.clock.now += pause_s
        assert job.poll().coordinator.state == "broken"
        assert "an hour" in job.coordinator.message
    assert job.poll(30).coordinator.state == "running"
    job.measure(job.numbers[-1])
    assert job.mhz == 1410 - 15, "it goes on"


def test_another_scheduler_does_not_take_over_what_one_before_has_made(job: Job) -> None:
    job.measure(0)
    assert job.mhz == 1410 - 15
    job.restart("Manual")
    assert job.poll().clocks == [], "all clocks are left alone"
    job.restart()
    assert job.poll().mhz == 1410
    assert ReactingScheduler.calls == []


@pytest.mark.parametrize("failing", ["write", "read"])
def test_a_directory_that_fails_while_a_failure_is_reported_is_no_reason_to_raise_and_is_logged_once(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    given = ReactingScheduler._for_plan_inputs
    says = lambda self, yielded: replace(given(self, yielded), message="it goes on")  # noqa: E731
    monkeypatch.setattr(ReactingScheduler, "_for_plan_inputs", says)
    caplog.set_level("INFO")
    job = Job(folder, clock)
    fails = Mock(side_effect=StoreError(errno.EIO, "no current.json"))
    instead_of(monkeypatch, failing, bodies.CurrentBody, fails)
    job.poll(30)
    write_step(folder, 3)
    (folder.location / "progress" / "0.json").write_text("junk")
    job.poll(30)
    assert caplog.text.count("no current.json") == 1
    assert caplog.text.count("it goes on") <= 1


def test_training_that_is_silent_for_long_is_named_so_that_a_killed_job_does_not_read_as_running(job: Job) -> None:
    messages = []
    for silent_s in (300, 400, 3600):
        job.clock.now += silent_s
        messages.append(job.poll().current.message.partition(":")[0])
    assert messages == ["", *(f"training has reported no step for {words}" for words in ("ten minutes", "an hour"))]


@pytest.mark.parametrize("damage", ["torn", "of another release"])
def test_a_rank_record_that_is_damaged_or_of_another_release_is_reported_once_and_healed(
    folder: JobFolder, clock: Clock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    place, path = Place(f"{folder.path}/ranks/1.json", bodies.RanksBody), folder.location / "ranks/1.json"
    whole, root = path.read_bytes(), folder.files.root
    plant(root, place, whole[:100] if damage == "torn" else sign({**load(root, place), "schema": "pfo-fs/3"}))
    job = Job(folder, clock).poll(600)
    assert (job.coordinator.state, job.numbers) == ("broken", [])
    assert "ranks/1.json" in job.coordinator.message
    assert ("'pfo-fs/3', and this release reads 'pfo-fs/5'" in job.coordinator.message) == (damage != "torn")
    assert caplog.text.count("ranks/1.json") == 1
    path.write_bytes(whole)
    assert job.poll(4).coordinator.state == "running"


@pytest.mark.parametrize(
    ("pause_s", "times"), [(GONE_AFTER_S / 2, 1), (1 + GONE_AFTER_S, 100)], ids=["they stay", "they were gone for long"]
)
def test_causes_in_turn_are_logged_once_each_until_they_were_gone_for_long(
    clock: Clock, caplog: pytest.LogCaptureFixture, pause_s: float, times: int
) -> None:
    once = LogOnce(logging.getLogger("once"), clock)
    for _ in range(100):
        for text in ("full disk", "no answer"):
            once.log(logging.WARNING, text)
        clock.now += pause_s
    assert caplog.text.count("full disk") == caplog.text.count("no answer") == times


def test_of_more_and_more_causes_the_first_are_forgotten(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logging.getLogger("once"), clock)
    for number in (*range(500), 499, 0):
        once.log(logging.WARNING, f"job {number} is damaged")
    assert len(caplog.records) == 501
    assert caplog.records[-1].getMessage() == "job 0 is damaged"


# ---- after a restart


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
            yield ScheduleRequest(schedules_at(self.rank_infos, 1005 - 15 * number), purpose)
        while True:
            yield ScheduleRequest(kept, "run", "kept", converged=True)


@pytest.mark.parametrize("news", ["results", "target"])
def test_after_a_restart_with_a_scheduler_that_plans_otherwise_only_news_bring_the_new_plan(
    job: Job, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    before = ReactingScheduler._for_plan_inputs

    def otherwise(self: ReactingScheduler, yielded: ScheduleRequest) -> ScheduleRequest:
        request = before(self, yielded)
        return replace(request, schedules=schedules_at(INFOS, request.schedules[0].frequencies[0][1] - 300))

    monkeypatch.setattr(ReactingScheduler, "_for_plan_inputs", otherwise)
    for _ in range(2):
        job.restart()
        job.poll(10)
        assert (job.numbers, job.mhz) == ([0], 1410)
    if news == "results":
        job.measure(0, seconds=10)
    else:
        job.yaml("target: {slowdown: 1.1}\n", seconds=10)
    assert job.mhz == 1410 - (15 if news == "results" else 150) - 300


def test_replayed_results_are_of_clocks_used(folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_after_another_order_the_scheduler_begins_from_nothing(folder: JobFolder, clock: Clock, restarts: bool) -> None:
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
