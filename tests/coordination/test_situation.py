"""Schedulers that heed people and the pace of pipelines: what they are told, and what is written down for a restart."""

from __future__ import annotations

import errno
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from jobs import make_job, rank_infos, register, write_results, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.pace import PaceReader
from pfo_fs.coordination.shelf import ProfileShelf
from pfo_fs.errors import StoreError
from pfo_fs.models import FrequencySchedule, ProfilingResult, Situation, Straggler, Target
from pfo_fs.scheduler import FrequencyScheduler, Pace
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, SharedDirectory, bodies

ORDER: list[tuple[str, int | None]] = [("forward", None), ("backward", None)]


class Heeding(FrequencyScheduler):
    """Runs at 1410 MHz, less 15 for each result, less 150 with a target, less 300 for a slow pipeline."""

    watches_pace = True
    told: list[object] = []  # noqa: RUF012  what the last one made was told, for the tests

    def _run(self) -> Generator[list[FrequencySchedule], list[ProfilingResult], None]:
        Heeding.told = []
        self._results = 0
        self._kept: dict[object, list[FrequencySchedule]] = {}
        while True:
            results = yield []
            self._results += min(1, round(results[0].iter_time[0]))  # results of 0 s change nothing
            Heeding.told.append([result.iter_time[0] for result in results])

    def next_schedule(self) -> list[FrequencySchedule]:
        super().next_schedule()
        situation = self.situation
        mhz = 1410 - 15 * self._results - 150 * (situation.target is not None) - 300 * bool(situation.slow_pipelines)
        if mhz not in self._kept:
            self._kept[mhz] = [
                FrequencySchedule(rank=info.rank, frequencies=[(name, mhz) for name, _ in ORDER])
                for info in self.rank_infos
            ]
        return self._kept[mhz]

    def react(self, situation: Situation) -> None:
        Heeding.told.append(situation)
        super().react(situation)

    def assess(self, pace: Sequence[Pace]) -> Situation:
        Heeding.told.append(list(pace))
        slow = {one.pipeline: one.span_s for one in pace if one.span_s > 1}
        return self.situation.model_copy(update={"slow_pipelines": slow})

    def findings(self) -> str:
        return f"stage,instruction,frequency,time,energy\n0,forward,{1410 - self._results},1,1\n"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = make_job(tmp_path, 1, 2)
    register(folder, rank_infos(1, 2))
    return folder


def coordinate(folder: JobFolder, clock: Clock) -> Coordinator:
    fresh = SharedDirectory(folder.files, "coordinator").job(folder.job_id)
    settings = PFOSettings(scheduler=f"{Heeding.__module__}:Heeding")
    return Coordinator(fresh, settings, kind="daemon", generation=1, monotonic=clock)


def poll(coordinator: Coordinator, clock: Clock, seconds: float = 10.0) -> None:
    end = clock.now + seconds
    while clock.now < end:
        coordinator.poll()
        clock.now += 0.5


def clock_mhz(folder: JobFolder) -> int:
    current = folder.read_current()
    assert current is not None
    index = folder.read_index(current.number)
    assert index is not None
    schedule = folder.read_schedule(index, rank_infos(1, 2)[0])
    assert schedule is not None
    return schedule.frequencies[0][1]


def result_of(rank: int) -> bodies.ResultBody:
    return bodies.ResultBody(result=ProfilingResult(rank=rank, iter_time=[1.0], iter_energy=[1.0]))


def say_yaml(folder: JobFolder, text: str) -> None:
    folder.files.publish(f"{folder.path}/schedule.yaml", text.encode())


def test_a_target_in_the_yaml_reaches_the_scheduler_which_keeps_the_wheel(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    assert clock_mhz(folder) == 1410
    say_yaml(folder, "target: {power: 18000}\n")
    poll(coordinator, clock, 4)
    assert clock_mhz(folder) == 1260
    current = folder.read_current()
    assert current is not None
    assert current.source is not None
    assert current.source.kind == "scheduler"
    assert current.source.situation.target == Target(power=18000)
    status = (folder.files.root / folder.path / "schedule.status.yaml").read_text()
    assert "heeded by the scheduler" in status
    assert "schedule_number: 1" in status


def test_removing_the_yaml_takes_the_target_back(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)
    (folder.files.root / folder.path / "schedule.yaml").unlink()
    poll(coordinator, clock, 8)
    assert clock_mhz(folder) == 1410


def test_a_target_that_was_removed_while_no_daemon_ran_is_taken_back_too(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)
    assert clock_mhz(folder) == 1260
    (folder.files.root / folder.path / "schedule.yaml").unlink()
    another = coordinate(folder, clock)
    poll(another, clock, 8)
    assert clock_mhz(folder) == 1410


def test_a_restart_keeps_the_situation_and_publishes_nothing_new(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2))
    poll(coordinator, clock, 2)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)
    numbers = folder.schedule_numbers()
    assert clock_mhz(folder) == 1410 - 15 - 150
    poll(coordinate(folder, clock), clock, 5)
    assert folder.schedule_numbers() == numbers
    assert clock_mhz(folder) == 1410 - 15 - 150


def test_a_restart_tells_the_scheduler_what_the_first_one_was_told_in_the_same_order(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)  # schedule 2, before schedule 1 was measured
    write_results(folder, 2, rank_infos(1, 2), time_s=2.0)
    poll(coordinator, clock, 2)
    first = list(Heeding.told)
    poll(coordinate(folder, clock), clock, 2)
    assert Heeding.told == first
    assert first == [[1.0, 1.0], Situation(target=Target(slowdown=1.1)), [2.0, 2.0]]


def test_a_situation_that_changed_no_clocks_is_told_again_where_results_were_seen_in_it(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "straggler: {slowdown: 1.2}\n")
    poll(coordinator, clock, 4)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    first = list(Heeding.told)
    assert first == [Situation(straggler=Straggler(slowdown=1.2)), [1.0, 1.0]]
    poll(coordinate(folder, clock), clock, 2)
    assert Heeding.told == first


def test_results_of_a_measuring_window_wait_for_orders_that_a_listing_does_not_show_yet(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heeding, "measuring", True)
    monkeypatch.setattr(Heeding, "next_schedule", FrequencyScheduler.next_schedule)  # which says nothing of orders
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 60)
    assert Heeding.told == []
    for rank in (0, 1):
        folder.write_order(bodies.OrderBody(rank=rank, instructions=ORDER))
    poll(coordinator, clock, 2)
    assert Heeding.told == [[1.0, 1.0]]


def test_results_do_not_wait_for_ever_for_orders(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heeding, "measuring", True)
    monkeypatch.setattr(Heeding, "next_schedule", FrequencyScheduler.next_schedule)
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 100)
    assert Heeding.told == [[1.0, 1.0]]


def test_results_that_change_nothing_make_no_new_number(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=0.0)
    poll(coordinator, clock, 5)
    assert Heeding.told == [[0.0, 0.0]]
    assert folder.schedule_numbers() == [0]


def test_the_pace_of_pipelines_changes_the_situation_at_once(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for rank in (0, 1):
        folder.write_pace(bodies.PaceBody(rank=rank, steps=[(7, 0, 0.5 + rank)]))
    write_step(folder, 7, number=0)
    poll(coordinator, clock, 12)
    assert clock_mhz(folder) == 1110
    index = folder.read_index(1)
    assert index is not None
    assert index.source.situation.slow_pipelines == {1: 1.5}


def test_the_pace_of_a_straggler_is_held_by_words_and_other_schedules_need_none(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    said = [folder.read_current()]
    for number, span_s in enumerate((1.5, 0.5)):
        for rank in (0, 1):
            folder.write_pace(bodies.PaceBody(rank=rank, steps=[(7 + number, number, span_s)]))
        write_step(folder, 7 + number, number=number)
        for seconds in (20, 30):
            poll(coordinator, clock, seconds)
            said.append(folder.read_current())
    assert [round(current.hold_s) for current in said if current] == [0, 60, 60, 0, 0]
    words = [current.word for current in said if current]
    assert words[1] != words[2]
    assert words[0] == words[3] == words[4] == 0
    assert folder.schedule_numbers() == [0, 1, 2], "a word is no new schedule"


def test_results_that_were_lost_are_measured_again_but_not_for_ever(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for step in range(0, 4000, 10):
        number = folder.schedule_numbers()[-1]
        write_step(folder, step, number=number)
        folder.write_result(number, result_of(0))  # rank 1's never comes
        poll(coordinator, clock, 2)
    assert folder.schedule_numbers() == [0, 1, 2]
    assert coordinator.state == "running"
    assert "rank 1 measured nothing under schedule 2, nor when it was repeated" in coordinator.message
    folder.write_result(2, result_of(1))
    poll(coordinator, clock, 2)
    assert Heeding.told == [[1.0, 1.0]]
    assert coordinator.message == ""


def test_lost_results_are_measured_again_also_by_a_coordinator_that_came_after_the_window(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heeding, "measuring", True)
    write_step(folder, 0, number=-1)
    poll(coordinate(folder, clock), clock, 2)
    index = folder.read_index(0)
    assert index is not None
    another = coordinate(folder, clock)
    for step in range(0, index.start_step + index.steps + 200, 10):
        write_step(folder, step, number=-1)  # the window is over, and ranks say so
        poll(another, clock, 2)
    assert folder.schedule_numbers()[:2] == [0, 1]


def test_what_could_not_be_published_was_not_tried(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError(errno.ENOSPC, "no space left")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_step(folder, 0, number=0)
    poll(coordinator, clock, 2)
    with monkeypatch.context() as disk:
        disk.setattr(JobFolder, "write_schedule", full)
        for step in range(0, 1000, 10):
            write_step(folder, step, number=0)
            poll(coordinator, clock, 2)
    poll(coordinator, clock, 2)
    assert folder.schedule_numbers() == [0, 1]


def test_another_schedule_has_its_own_tries(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    numbers = []
    for text in ("target: {slowdown: 1.1}\n", "straggler: {slowdown: 1.2}\n"):
        for step in range(len(numbers) * 4000, len(numbers) * 4000 + 4000, 10):
            write_step(folder, step, number=folder.schedule_numbers()[-1])
            poll(coordinator, clock, 2)
        numbers.append(folder.schedule_numbers()[-1])
        assert f"schedule {numbers[-1]}, nor when it was repeated" in coordinator.message
        say_yaml(folder, text)
        poll(coordinator, clock, 4)
        assert coordinator.message == ""
    assert numbers == [2, 5]


def test_a_schedule_in_the_middle_that_cannot_be_read_any_more_starts_the_scheduler_afresh(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    for number in range(3):
        poll(coordinator, clock, 2)
        write_results(folder, number, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    assert clock_mhz(folder) == 1410 - 3 * 15
    (folder.files.root / folder.path / "sched" / "1" / "index.json").write_text("damaged")
    poll(coordinate(folder, clock), clock, 2)
    assert folder.schedule_numbers()[-1] in (3, 4)
    told = [seen for seen in Heeding.told if isinstance(seen, list)]
    assert len(told) <= 2, "results of schedules before the damaged one are not another one's"


def test_a_scheduler_that_plans_for_long_is_given_word_for_longer(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plans_for_long(self: Heeding, situation: Situation) -> None:
        clock.now += 100
        FrequencyScheduler.react(self, situation)

    monkeypatch.setattr(Heeding, "react", plans_for_long)
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for rank in (0, 1):
        folder.write_pace(bodies.PaceBody(rank=rank, steps=[(7, 0, 1.5)]))
    write_step(folder, 7, number=0)
    poll(coordinator, clock, 120)
    assert coordinator.hold[0] == pytest.approx(160, abs=1)


def test_a_coordinator_that_has_no_scheduler_yet_gives_no_word(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for rank in (0, 1):
        folder.write_pace(bodies.PaceBody(rank=rank, steps=[(7, 0, 1.5)]))
    write_step(folder, 7, number=0)
    poll(coordinator, clock, 10)
    assert coordinator.hold[1] > 0
    (folder.files.root / folder.path / "ranks" / "1.json").unlink()
    another = coordinate(folder, clock)
    poll(another, clock, 10)
    assert another.state == "waiting"
    assert another.hold == (60.0, 0)


def test_a_failure_is_logged_with_its_traceback_once(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("again and again")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    monkeypatch.setattr("pfo_fs.coordination.override.YamlOverride.look", fails)
    poll(coordinator, clock, 50)
    assert caplog.text.count("Traceback") == 1


def test_a_result_that_cannot_be_read_is_left_out(
    folder: JobFolder, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    (folder.files.root / folder.path / "prof" / "0" / "1.json").write_text("junk")
    poll(coordinator, clock, 2)
    assert Heeding.told == [[1.0]]
    assert coordinator.state == "running"
    assert "left out" in caplog.text


def test_another_scheduler_does_not_take_over_what_one_before_has_made(folder: JobFolder, clock: Clock) -> None:
    poll(coordinate(folder, clock), clock, 2)
    assert clock_mhz(folder) == 1410
    manual = Coordinator(
        SharedDirectory(folder.files, "coordinator").job(folder.job_id),
        PFOSettings(scheduler="Manual"),
        kind="daemon",
        generation=2,
        monotonic=clock,
    )
    poll(manual, clock, 2)
    index = folder.read_index(folder.schedule_numbers()[-1])
    assert index is not None
    assert folder.read_schedule(index, rank_infos(1, 2)[0]) is None, "all clocks are left alone"
    again = coordinate(folder, clock)
    poll(again, clock, 2)
    assert clock_mhz(folder) == 1410


def test_a_schedule_that_cannot_be_read_any_more_is_replaced(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for rank in (0, 1):
        folder.write_pace(bodies.PaceBody(rank=rank, steps=[(7, 0, 1.5)]))
    write_step(folder, 7, number=0)
    poll(coordinator, clock, 10)
    assert clock_mhz(folder) == 1110
    (folder.files.root / folder.path / "sched" / "1" / "index.json").write_text("damaged")
    another = coordinate(folder, clock)
    poll(another, clock, 10)
    assert another.state == "running"
    assert folder.schedule_numbers() == [0, 1, 2]
    assert clock_mhz(folder) == 1410


@pytest.mark.parametrize("failing", ["write_current", "read_current"])
def test_a_directory_that_fails_while_a_failure_is_reported_is_no_reason_to_raise(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    def fails(*_: object) -> None:
        raise StoreError(errno.EIO, "no current.json")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    monkeypatch.setattr(JobFolder, failing, fails)
    (folder.files.root / folder.path / "progress").mkdir(exist_ok=True)
    (folder.files.root / folder.path / "progress" / "0.json").write_text("junk")
    poll(coordinator, clock, 30)
    assert caplog.text.count("no current.json") <= 1


def test_a_straggler_in_a_pipeline_that_is_not_there_is_refused(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "straggler: {slowdown: 1.2, pipeline: 2}\n")
    poll(coordinator, clock, 4)
    current = folder.read_current()
    assert current is not None
    assert "there is no pipeline 2; the job has pipelines 0 to 1" in current.yaml_problem
    assert "rejected" in (folder.files.root / folder.path / "schedule.status.yaml").read_text()


def test_a_refused_yaml_is_not_said_to_be_heeded_where_one_before_was(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    say_yaml(folder, "target: {slowdown: 1.1}\n")
    poll(coordinator, clock, 4)
    status = folder.files.root / folder.path / "schedule.status.yaml"
    assert "heeded" in status.read_text()
    say_yaml(folder, "straggler: 1.2\n")
    poll(coordinator, clock, 6)
    assert "rejected" in status.read_text()


def test_half_a_surrogate_pair_in_the_yaml_is_a_problem_of_the_yaml(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, 'stages: {0: ["\\ud800 885"]}\n')
    poll(coordinator, clock, 4)
    assert coordinator.state == "running"
    current = folder.read_current()
    assert current is not None
    assert current.yaml_problem
    (folder.files.root / folder.path / "schedule.yaml").unlink()
    poll(coordinator, clock, 10)
    assert coordinator.message == ""


def test_iterations_under_an_older_schedule_tell_nothing(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2))
    poll(coordinator, clock, 2)
    folder.write_pace(bodies.PaceBody(rank=0, steps=[(7, 0, 9.0)]))
    poll(coordinator, clock, 12)
    assert clock_mhz(folder) == 1395


def test_an_iteration_is_handed_on_once_and_throttling_goes_with_its_pipeline(tmp_path: Path) -> None:
    folder = make_job(tmp_path, 2, 2)
    infos = {info.rank: info for info in rank_infos(2, 2)}
    reader = PaceReader(folder)
    folder.write_pace(bodies.PaceBody(rank=0, steps=[(3, 0, 1.0), (4, 0, 1.1)]))
    folder.write_pace(bodies.PaceBody(rank=1, steps=[(4, 0, 1.2)]))
    folder.write_pace(bodies.PaceBody(rank=3, steps=[], throttled="thermal slowdown"))
    first = reader.read(100.0, infos, 1.0)
    assert [(one.pipeline, one.step, one.span_s) for one in first] == [(0, 3, 1.0), (0, 4, 1.1), (1, 4, 1.2)]
    assert [one.throttled for one in first] == ["", "", "rank 3: thermal slowdown"]
    assert reader.read(200.0, infos, 1.0) == []
    folder.write_pace(bodies.PaceBody(rank=0, steps=[(4, 0, 1.1), (5, 0, 1.0)]))
    assert [one.step for one in reader.read(300.0, infos, 1.0)] == [5]


# ---- profiles on the shelf


def job_body(model: str = "gpt", pp: int = 2) -> bodies.JobBody:
    return bodies.JobBody.model_validate(
        {
            "job_info": {"pp_degree": pp, "dp_degree": 1, "tp_degree": 1, "world_size": pp, "job_metadata": model},
            "coordination": "auto",
            "versions": {"torch": "2.13.0", "python": "3.11"},
        }
    )


ORDERS = {0: ORDER, 1: ORDER}
GPUS = {0: "A100", 1: "A100"}
CSV = "stage,instruction,frequency,time,energy\n0,forward,1410,1,1\n"


def test_a_later_job_of_the_same_kind_finds_the_profile(tmp_path: Path) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileShelf(first)
    assert shelf.known(job_body(), ORDERS, GPUS) is None
    shelf.keep(CSV)
    known = ProfileShelf(second).known(job_body(), ORDERS, GPUS)
    assert known is not None
    assert (known.csv, known.source) == (CSV, first.job_id)


@pytest.mark.parametrize(
    ("body", "orders", "gpus"),
    [
        (job_body("bert"), ORDERS, GPUS),
        (job_body(), {0: ORDER, 1: [*ORDER, *ORDER]}, GPUS),
        (job_body(), ORDERS, {0: "A100", 1: "H100"}),
        (job_body().model_copy(update={"versions": {"torch": "2.14.0"}}), ORDERS, GPUS),
    ],
    ids=["model", "micro-batches", "GPUs", "software"],
)
def test_a_job_of_another_kind_does_not(tmp_path: Path, body: bodies.JobBody, orders: dict, gpus: dict) -> None:  # type: ignore[type-arg]
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileShelf(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    assert ProfileShelf(second).known(body, orders, gpus) is None


def test_what_was_known_at_the_begin_stays_known_whatever_others_measure_meanwhile(tmp_path: Path) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileShelf(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    before = ProfileShelf(second).known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV + "0,backward,1410,1,1\n")
    assert ProfileShelf(second).known(job_body(), ORDERS, GPUS) == before


def test_without_all_orders_nothing_is_looked_for(tmp_path: Path) -> None:
    shelf = ProfileShelf(make_job(tmp_path, 2))
    assert shelf.known(job_body(), {0: ORDER, 1: None}, GPUS) is None
    assert not shelf.consulted


def test_a_profile_gives_way_only_to_one_that_is_complete_or_larger(tmp_path: Path) -> None:
    def kept() -> str:
        return folder.read_own_profile(next((tmp_path / "profiles").iterdir()).name)

    folder = make_job(tmp_path, 2, attempt="a")
    full = CSV + "0,backward,1410,1,1\n"
    for attempt in range(2):
        shelf = ProfileShelf(folder)
        shelf.known(job_body(), ORDERS, GPUS)
        if attempt == 0:
            shelf.keep(full)
        shelf.keep(CSV.splitlines()[0] + "\n")
        shelf.keep(CSV, measuring=True)
        assert kept() == full, "also after a restart"
    shelf.keep(CSV)
    assert kept() == CSV


def test_a_profile_without_measurements_is_nothing_to_begin_with(tmp_path: Path) -> None:
    first, second = (make_job(tmp_path, 2, attempt=name) for name in ("a", "b"))
    shelf = ProfileShelf(first)
    shelf.known(job_body(), ORDERS, GPUS)
    shelf.keep(CSV)
    path = next((tmp_path / "profiles").rglob("*.csv"))
    path.write_text(CSV.splitlines()[0] + "\n")
    later = ProfileShelf(second)
    assert later.known(job_body(), ORDERS, GPUS) is None
    known = second.read_known()
    assert known is not None
    assert known.source == ""


def test_a_yaml_that_the_daemon_may_not_read_is_refused_and_says_so(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> None:
        raise StoreError(errno.EACCES, "schedule.yaml: Permission denied")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "all: 0\n")
    monkeypatch.setattr(JobFolder, "read_yaml", denied)
    poll(coordinator, clock, 4)
    current = folder.read_current()
    assert current is not None
    assert "Permission denied; let the daemon's user read it" in current.yaml_problem


def test_news_that_cannot_be_written_is_logged_once(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise StoreError(errno.EIO, "no current.json")

    caplog.set_level("INFO")
    coordinator = coordinate(folder, clock)
    monkeypatch.setattr(JobFolder, "write_current", fails)
    monkeypatch.setattr(Heeding, "news", "it goes on")
    poll(coordinator, clock, 30)
    assert caplog.text.count("it goes on") == 1
