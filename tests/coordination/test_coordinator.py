"""One job is scheduled from what its folder holds, and from nothing else."""

import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from coordinator_jobs import INFOS, Job, by_plan
from jobs import make_job, one_f_one_b, rank_infos, register, result_body, schedules_of, write_step
from schedulers import ThreeSteps

from pfo_fs.coordination.progress import PollPace, Progress
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.store import JobFolder, OffSwitch, bodies, load_dump
from pfo_fs.store.records import Header, encode


class Exploding(FrequencyScheduler):
    def _run(self) -> Generator[list[FrequencySchedule], list[ProfilingResult], None]:
        raise ZeroDivisionError("no plan today")
        yield []


def test_every_rank_gets_its_schedule_once_all_are_there_missing_ones_are_named(tmp_path: Path, clock: Clock) -> None:
    folder, infos = make_job(tmp_path / "pfo", 4), rank_infos(4)
    job = Job(folder, clock, **by_plan(tmp_path, 4, 3, 1200))
    register(folder, [infos[0], infos[2]])
    job.poll(29)
    assert (job.coordinator.state, job.coordinator.message, job.numbers) == ("waiting", "", [])
    job.poll(3)
    assert "ranks 1, 3 of 4 have not registered" in job.current.message
    register(folder, infos)
    assert job.poll(2).coordinator.state == "running"
    for rank, schedule in schedules_of(folder, infos).items():
        assert schedule.frequencies == one_f_one_b(rank, 4, 3, 1200)


def test_a_job_that_is_switched_off_gets_a_schedule_once_it_is_on_again(folder: JobFolder, clock: Clock) -> None:
    job, switch = Job(folder, clock), OffSwitch(folder.files)
    switch.turn_off(folder.job_id)
    job.poll(10)
    assert job.numbers == []
    assert "switched off" in job.coordinator.message
    switch.turn_on(folder.job_id)
    job.poll(10)
    assert (job.numbers, job.coordinator.message) == ([0], "")


def test_the_last_schedule_stays_and_dumps_are_in_zeus_format(folder: JobFolder, clock: Clock, tmp_path: Path) -> None:
    job = Job(folder, clock, scheduler=ThreeSteps, dump_data=True, dump_dir=tmp_path / "dump").poll()
    for number in range(3):
        job.measure(number)
    job.poll(5)
    assert (job.numbers, job.coordinator.state) == ([0, 1, 2], "running")
    dump = tmp_path / "dump" / folder.job_id
    assert load_dump(RankInfo, dump) == INFOS
    assert load_dump(FrequencySchedule, dump, 0)[0].frequencies[0] == ("forward", 1410)
    assert set(load_dump(ProfilingResult, dump, 0)[0].iter_time) == {1.0}


def test_late_ranks_are_left_out_where_their_stage_has_others(job: Job) -> None:
    job.restart(ThreeSteps)
    job.poll()
    for rank, (time_s, late) in enumerate([(1.0, False), (9.0, True)]):
        job.folder.write_results(job.numbers[-1], [result_body(rank, time_s, late=late)])
    assert job.poll().mhz == 1395


@pytest.mark.parametrize("later", [0, 50], ids=["no newer record comes", "a newer record comes"])
def test_a_schedule_starts_far_enough_ahead_also_after_a_takeover(folder: JobFolder, clock: Clock, later: int) -> None:
    """The record that a new coordinator finds may be old: the ranks have run many steps since."""
    write_step(folder, 500, iter_time_s=0.1)
    job = Job(folder, clock, scheduler=ThreeSteps)
    job.poll(1)
    assert job.numbers == []
    if later:
        write_step(folder, 500 + later, iter_time_s=0.1)
    job.poll(10)
    assert job.current.start_step >= 500 + later + 1.5 / 0.1


def test_a_rank_whose_clock_process_has_died_does_not_keep_the_jobs_step_back(folder: JobFolder, clock: Clock) -> None:
    progress = Progress(folder, PollPace(1.5, remote=False, adapts=False, now=clock.now), clock.now)
    progress.poll(clock.now)
    ranks = [bodies.RankProgress(rank=0, step=3), bodies.RankProgress(rank=1, step=900)]
    folder.write(bodies.ProgressBody(ranks=ranks))
    progress.poll(clock.now + 2)
    assert progress.step == 900


def two_at_one_place(root: Path) -> JobFolder:
    folder, infos = make_job(root, 2), rank_infos(2)
    register(folder, [infos[0], infos[1].model_copy(update={"pp_rank": 0})])
    return folder


def of_another_attempt(root: Path) -> JobFolder:
    old, folder = register(make_job(root, 1, attempt="old")), make_job(root, 1, attempt="new")
    (folder.location / "ranks/0.json").write_bytes((old.location / "ranks/0.json").read_bytes())
    return folder


def of_ranks(pp: int = 1, **fields: object) -> Callable[[Path], JobFolder]:
    return lambda root: register(make_job(root, pp, **fields))


BREAKS: dict[str, tuple[Callable[[Path], JobFolder], Callable[[Path], dict[str, Any]], str]] = {
    "a plan of other stages": (of_ranks(4), lambda root: by_plan(root, 8, 3, 1200), "8.*4|4.*8"),
    "a clock that is not offered": (of_ranks(), lambda root: by_plan(root, 1, 3, 1201), "1201"),
    "an error": (of_ranks(), lambda _: {"scheduler": Exploding}, "ZeroDivisionError: no plan"),
    "foreign code": (of_ranks(scheduler="this:d"), lambda _: {}, "built-in"),
    "one place": (two_at_one_place, lambda _: {}, "ranks 0 and 1 both registered as"),
    "records of another attempt": (of_another_attempt, lambda _: {}, "another training attempt"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_job_is_said_in_its_folder_and_the_log(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    folder, settings, said = BREAKS[name]
    job = Job(folder(tmp_path / "pfo"), clock, **settings(tmp_path)).poll()
    assert job.current.state == "broken"
    assert re.search(said, job.current.message)
    assert re.search(said, caplog.text)


def test_a_person_can_take_over_from_a_broken_scheduler(folder: JobFolder, clock: Clock) -> None:
    job = Job(folder, clock, scheduler=Exploding).poll()
    job.yaml("stages: {0: [forward 1200, backward 1200]}")
    assert (job.coordinator.state, job.mhz) == ("running", 1200)


def test_nothing_is_written_for_a_job_of_rank_0_or_if_deposed(tmp_path: Path, folder: JobFolder, clock: Clock) -> None:
    own = Job(register(make_job(tmp_path, 1, coordination="local")), clock).poll()
    assert not own.coordinator.is_mine
    for job in (own, Job(folder, clock, around={"still_leads": lambda: False}).poll(3)):
        assert job.folder.read(bodies.CurrentBody) is None
        assert job.numbers == []


def test_a_schedule_that_was_not_announced_is_published_again_for_later(folder: JobFolder, clock: Clock) -> None:
    """Its coordinator died after the commit; by now, the step at which all ranks were to switch may have passed."""
    job = Job(folder, clock, scheduler=ThreeSteps).poll()
    before = job.current
    write_step(folder, 10, number=0)
    job.measure(0, seconds=10)
    assert job.numbers == [0, 1]
    folder.write(before)

    write_step(folder, 500, number=0)
    job.restart(ThreeSteps)
    assert job.poll(0.5).current.number == 0
    assert job.poll(10).current.number == 2
    assert job.current.start_step > 500
    assert job.index(1).source.revision == job.index(2).source.revision


def test_a_new_coordinator_goes_on_from_the_announced_schedule_though_an_old_listing_lacks_it(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(folder, clock, scheduler=ThreeSteps).poll()
    job.measure(0)
    assert job.numbers == [0, 1]
    monkeypatch.setattr(JobFolder, "schedule_numbers", lambda self: [0])
    job.restart(ThreeSteps)
    job.train(40, number=1, seconds=10)
    assert job.current.number == 1


HEADER = Header("current", "attempt", "another user")
FORGED = {
    f"generation {generation}, number {number}": encode(
        HEADER, bodies.CurrentBody(generation=generation, number=number, state="running")
    )
    for generation in (0, 1, 999_999_999)
    for number in (-1, 7, 999_999_999)
}
NO_RECORDS = {"empty": b"", "no record": b"no record", "too long": b"x" * 300_000}


@pytest.mark.parametrize("content", [*FORGED.values(), *NO_RECORDS.values()], ids=[*FORGED, *NO_RECORDS])
def test_a_coordinator_puts_back_what_another_user_writes_over_its_announcement(job: Job, content: bytes) -> None:
    before = job.current
    job.folder.files.publish(f"{job.folder.path}/current.json", content)
    assert job.poll(10).current == before


def test_a_schedule_goes_into_force_under_the_next_number_where_another_user_has_written_one(job: Job) -> None:
    schedule = FrequencySchedule(rank=0, frequencies=[("forward", 210)])
    source = bodies.Source(kind="scheduler", policy="another")
    job.folder.write_schedule(1, 999_999_999, 0, source, [schedule], INFOS)
    job.yaml("all: 0\n", seconds=30)
    assert job.current.generation == 1
    assert job.current.number > 1
    assert job.current.source.kind == "yaml"
