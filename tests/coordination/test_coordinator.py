"""One job is scheduled from what its folder holds, and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import by_plan, coordinate, coordinate_by, poll, registered, say_yaml, use
from jobs import (
    current_of,
    make_job,
    one_f_one_b,
    rank_infos,
    register,
    schedule_of,
    schedules_of,
    write_results,
    write_step,
)
from schedulers import ThreeSteps

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.progress import PollPace, Progress
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, OffSwitch, SharedDirectory, bodies, layout, load_dump
from pfo_fs.store.records import Header, encode


class Exploding(FrequencyScheduler):
    def _run(self) -> Generator[list[FrequencySchedule], list[ProfilingResult], None]:
        raise ZeroDivisionError("no plan today")
        yield []


def test_every_rank_gets_its_schedule_once_all_are_there(tmp_path: Path, clock: Clock) -> None:
    folder, infos = make_job(tmp_path / "pfo", 2), rank_infos(2)
    coordinator = coordinate_by(folder, clock, **by_plan(tmp_path, 2, 3, 1200))
    register(folder, infos[:1])
    poll(coordinator, clock, 5)
    assert coordinator.state == "waiting"
    assert folder.schedule_numbers() == []
    register(folder, infos[1:])
    poll(coordinator, clock, 2)
    assert coordinator.state == "running"
    for rank, schedule in schedules_of(folder, infos).items():
        assert schedule is not None
        assert schedule.frequencies == one_f_one_b(rank, 2, 3, 1200)


def test_a_job_that_is_switched_off_gets_no_schedule_and_one_when_it_is_on_again(tmp_path: Path, clock: Clock) -> None:
    folder, _ = registered(tmp_path / "pfo", 2)
    switch = OffSwitch(folder.files)
    switch.turn_off(folder.job_id)
    coordinator = coordinate_by(folder, clock, **by_plan(tmp_path, 2, 3, 1200))
    poll(coordinator, clock)
    assert folder.schedule_numbers() == []
    assert "switched off" in coordinator.message
    switch.turn_on(folder.job_id)
    poll(coordinator, clock)
    assert folder.schedule_numbers() == [0]
    assert coordinator.message == ""


def test_the_status_of_a_wrong_yaml_names_the_schedule_in_force_and_none_that_is_over(
    tmp_path: Path, clock: Clock
) -> None:
    folder, _ = registered(tmp_path, 1)
    folder.write(bodies.OrderBody(rank=0, instructions=[("forward", None)]))
    coordinator, file = coordinate_by(folder, clock), folder.location / layout.YAML
    yaml_status = folder.location / layout.YAML_STATUS

    def after(content: str | None) -> str:
        file.unlink(missing_ok=True) if content is None else file.write_text(content)
        poll(coordinator, clock)
        return yaml_status.read_text()

    after("all: 1200\n")
    assert "which was accepted before" in after("all: [\n")
    assert "in_force_meanwhile" not in after(None)
    assert "the scheduler's own schedule" in after("all: [\n")
    after("all: 1200\n")
    after("target: {slowdown: 1.1}\n")
    assert "the scheduler's own schedule" in after("all: [\n")


def test_missing_ranks_are_named_after_thirty_seconds(tmp_path: Path, clock: Clock) -> None:
    folder, infos = make_job(tmp_path, 4), rank_infos(4)
    register(folder, [infos[0], infos[2]])
    coordinator = coordinate_by(folder, clock)
    poll(coordinator, clock, 29)
    assert coordinator.message == ""
    poll(coordinator, clock, 3)
    assert "ranks 1, 3 of 4 have not registered" in coordinator.message
    current = current_of(folder)
    assert "ranks 1, 3" in current.message


def test_the_last_schedule_stays_when_the_scheduler_is_done(tmp_path: Path, clock: Clock) -> None:
    folder, infos = registered(tmp_path, 2)
    coordinator = coordinate(folder, clock, ThreeSteps)
    for number in range(3):
        poll(coordinator, clock, 2)
        write_results(folder, number, infos)
    poll(coordinator, clock, 5)
    assert folder.schedule_numbers() == [0, 1, 2]
    assert coordinator.state == "running"


def test_late_ranks_are_left_out_where_their_stage_has_others(tmp_path: Path, clock: Clock) -> None:
    folder, infos = registered(tmp_path, 1, dp=2)
    coordinator = coordinate(folder, clock, ThreeSteps)
    poll(coordinator, clock, 2)
    for rank, (time_s, late) in enumerate([(1.0, False), (9.0, True)]):
        result = ProfilingResult(rank=rank, iter_time=[time_s], iter_energy=[1.0])
        folder.write_results(0, [bodies.ResultBody(result=result, late=late)])
    poll(coordinator, clock, 2)
    schedule = schedule_of(folder, infos[0])
    assert schedule.frequencies[0] == ("forward", 1395)


def test_a_schedule_starts_far_enough_ahead_for_all_ranks_also_after_a_takeover(tmp_path: Path, clock: Clock) -> None:
    """The record that a new coordinator finds may be old: the ranks have run many steps since."""
    folder, _ = registered(tmp_path, 1)
    write_step(folder, 500, iter_time_s=0.1)
    coordinator = coordinate(folder, clock, ThreeSteps)
    coordinator.poll()
    assert folder.schedule_numbers() == []
    clock.now += 1.0
    write_step(folder, 550, iter_time_s=0.1)
    coordinator.poll()
    current = current_of(folder)
    assert current.start_step >= 550 + 1.5 / 0.1


def test_the_record_that_a_new_coordinator_finds_counts_if_no_newer_one_comes(tmp_path: Path, clock: Clock) -> None:
    folder, _ = registered(tmp_path, 1)
    write_step(folder, 500, iter_time_s=0.1)
    poll(coordinate(folder, clock, ThreeSteps), clock, 10)
    current = current_of(folder)
    assert current.start_step >= 500 + 1.5 / 0.1


def test_a_rank_whose_clock_process_has_died_does_not_keep_the_jobs_step_back(tmp_path: Path, clock: Clock) -> None:
    folder = make_job(tmp_path, 2)
    pace = PollPace(1.5, remote=False, adapts=False, now=clock.now)
    progress = Progress(folder, pace, clock.now)
    progress.poll(clock.now)
    ranks = [bodies.RankProgress(rank=0, step=3), bodies.RankProgress(rank=1, step=900)]
    folder.write(bodies.ProgressBody(ranks=ranks))
    progress.poll(clock.now + 2)
    assert progress.step == 900


def two_at_one_place(root: Path) -> JobFolder:
    folder, infos = make_job(root, 2), rank_infos(2)
    register(folder, [infos[0], infos[1].model_copy(update={"pp_rank": 0})])
    return folder


def that_asks_for(root: Path, scheduler: str) -> JobFolder:
    folder = make_job(root, 1, scheduler=scheduler)
    register(folder, rank_infos(1))
    return folder


@pytest.mark.parametrize(
    ("job", "settings", "said"),
    [
        (lambda root: registered(root, 4)[0], lambda root: by_plan(root, 8, 3, 1200), r"8.*4|4.*8"),
        (lambda root: registered(root, 1)[0], lambda root: by_plan(root, 1, 3, 1201), "1201"),
        (lambda root: registered(root, 1)[0], lambda _: use(Exploding), "ZeroDivisionError: no plan today"),
        (lambda root: that_asks_for(root, "this:d"), lambda _: {}, "built-in"),
        (two_at_one_place, lambda _: {}, "ranks 0 and 1 both registered as"),
    ],
    ids=["a plan of other stages", "a clock that the GPU does not offer", "an error", "foreign code", "one place"],
)
def test_what_breaks_a_job_is_said_in_its_folder_and_the_log(
    tmp_path: Path,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    job: Callable[[Path], JobFolder],
    settings: Callable[[Path], dict[str, object]],
    said: str,
) -> None:
    folder = job(tmp_path / "pfo")
    poll(coordinate_by(folder, clock, **settings(tmp_path)), clock, 2)
    assert current_of(folder).state == "broken"
    assert re.search(said, current_of(folder).message)
    assert re.search(said, caplog.text)


def test_a_person_can_take_over_from_a_broken_scheduler(tmp_path: Path, clock: Clock) -> None:
    folder, infos = registered(tmp_path, 1)
    coordinator = coordinate(folder, clock, Exploding)
    poll(coordinator, clock, 2)
    folder.files.publish(f"{folder.path}/schedule.yaml", b"stages: {0: [forward 1200, backward 1200]}")
    poll(coordinator, clock, 4)
    assert coordinator.state == "running"
    assert schedules_of(folder, infos)[0] is not None


def test_a_torn_rank_record_is_reported_and_healed(tmp_path: Path, clock: Clock) -> None:
    folder, _ = registered(tmp_path, 2)
    path = tmp_path / folder.path / "ranks/1.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    coordinator = coordinate_by(folder, clock)
    poll(coordinator, clock, 2)
    assert coordinator.state == "broken"
    assert "ranks/1.json" in coordinator.message
    path.write_bytes(whole)
    poll(coordinator, clock, 4)
    assert coordinator.state == "running"


def test_a_job_of_its_own_rank_0_is_left_to_it(tmp_path: Path, clock: Clock) -> None:
    folder = make_job(tmp_path, 1, coordination="local")
    register(folder, rank_infos(1))
    coordinator = coordinate_by(folder, clock)
    poll(coordinator, clock, 2)
    assert not coordinator.is_mine
    assert folder.read(bodies.CurrentBody) is None


def test_records_of_another_attempt_are_left_out(tmp_path: Path, clock: Clock) -> None:
    old = make_job(tmp_path, 1, attempt="old")
    register(old, rank_infos(1))
    folder = make_job(tmp_path, 1, attempt="new")
    (tmp_path / folder.path / "ranks/0.json").write_bytes((tmp_path / old.path / "ranks/0.json").read_bytes())
    coordinator = coordinate_by(folder, clock)
    poll(coordinator, clock, 2)
    assert "another training attempt" in coordinator.message


def test_dumps_are_in_zeus_format(tmp_path: Path, clock: Clock) -> None:
    folder, infos = registered(tmp_path / "pfo", 1)
    coordinator = coordinate_by(folder, clock, **use(ThreeSteps), dump_data=True, dump_dir=tmp_path / "dump")
    poll(coordinator, clock, 2)
    write_results(folder, 0, infos)
    poll(coordinator, clock, 2)
    dump = tmp_path / "dump" / folder.job_id
    assert load_dump(RankInfo, dump) == infos
    assert load_dump(FrequencySchedule, dump, 0)[0].frequencies[0] == ("forward", 1410)
    assert set(load_dump(ProfilingResult, dump, 0)[0].iter_time) == {1.0}


# ---- a person's YAML


def status_of(folder: JobFolder) -> str:
    return (folder.files.root / folder.path / "schedule.status.yaml").read_text()


@pytest.fixture
def running(tmp_path: Path, clock: Clock) -> tuple[JobFolder, Coordinator]:
    folder, _ = registered(tmp_path, 2)
    coordinator = coordinate(folder, clock, ThreeSteps)
    poll(coordinator, clock, 2)
    return folder, coordinator


def test_an_edited_yaml_takes_the_schedulers_place(running: tuple[JobFolder, Coordinator], clock: Clock) -> None:
    folder, coordinator = running
    say_yaml(folder, "all: 1200  # slow\n")
    poll(coordinator, clock, 3)
    schedule = schedule_of(folder, rank_infos(2)[1])
    assert schedule.frequencies == [("forward", 1200), ("backward", 1200)]
    assert "state: accepted, starts soon" in status_of(folder)
    write_step(folder, 40, number=1)
    poll(coordinator, clock, 2)
    assert "state: in force" in status_of(folder)


def test_a_yaml_half_written_is_not_acted_on(running: tuple[JobFolder, Coordinator], clock: Clock) -> None:
    folder, coordinator = running
    say_yaml(folder, "all: 120")
    coordinator.poll()
    clock.now += 0.6
    coordinator.poll()
    say_yaml(folder, "all: 1200")
    clock.now += 0.6
    coordinator.poll()
    assert folder.schedule_numbers() == [0]
    assert not (folder.files.root / folder.path / "schedule.status.yaml").exists()
    poll(coordinator, clock, 3)
    assert folder.schedule_numbers() == [0, 1]


def test_a_wrong_yaml_is_reported_with_its_line_and_the_last_good_one_stays(
    running: tuple[JobFolder, Coordinator], clock: Clock
) -> None:
    folder, coordinator = running
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 3)
    say_yaml(folder, "# comment\nall: 1200\nstagse:\n  0: 900\n")
    poll(coordinator, clock, 3)
    status = status_of(folder)
    assert "state: rejected" in status
    assert "line: 3" in status
    assert "stages" in status
    assert folder.schedule_numbers() == [0, 1]
    current = current_of(folder)
    assert current.source is not None
    assert current.source.kind == "yaml"


def test_after_the_yaml_is_removed_the_scheduler_decides_again(
    running: tuple[JobFolder, Coordinator], clock: Clock
) -> None:
    folder, coordinator = running
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 3)
    (folder.files.root / folder.path / "schedule.yaml").unlink()
    coordinator.poll()
    assert folder.schedule_numbers() == [0, 1], "one listing without it proves nothing"
    poll(coordinator, clock, 6)
    schedule = schedule_of(folder, rank_infos(2)[0])
    assert schedule.frequencies[0] == ("forward", 1410)
    assert "state: removed" in status_of(folder)


def test_a_number_for_all_waits_for_the_first_step(tmp_path: Path, clock: Clock) -> None:
    folder, infos = registered(tmp_path, 1, dp=2)
    coordinator = coordinate_by(folder, clock)  # Manual: no scheduler knows the order
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 3)
    assert "state: waiting" in status_of(folder)
    write_step(folder, 3)
    folder.write(bodies.OrderBody(rank=0, instructions=[("forward", None), ("backward", None)]))
    poll(coordinator, clock, 3)
    assert "state: accepted" in status_of(folder)
    schedule = schedule_of(folder, infos[1])
    assert schedule.frequencies == [("forward", 1200), ("backward", 1200)]


def test_a_deposed_coordinator_writes_nothing(tmp_path: Path, clock: Clock) -> None:
    folder, _ = registered(tmp_path, 1)
    fresh = SharedDirectory(folder.files, "coordinator").job(folder.job_id)
    coordinator = Coordinator(
        fresh, PFOSettings(), kind="daemon", generation=1, still_leads=lambda: False, monotonic=clock
    )
    poll(coordinator, clock, 3)
    assert folder.read(bodies.CurrentBody) is None
    assert folder.schedule_numbers() == []


def test_a_schedule_that_was_not_announced_is_published_again_with_a_later_first_step(
    tmp_path: Path, clock: Clock
) -> None:
    """Its coordinator died after the commit; by now, the step at which all ranks were to switch may have passed."""
    folder, infos = registered(tmp_path, 1)
    poll(coordinate(folder, clock, ThreeSteps), clock, 2)
    before = current_of(folder)
    write_results(folder, before.number, infos)
    write_step(folder, 10, number=before.number, iter_time_s=0.1)
    poll(coordinate(folder, clock, ThreeSteps), clock, 10)
    committed = folder.schedule_numbers()[-1]
    folder.write(before)

    write_step(folder, 500, number=before.number, iter_time_s=0.1)
    next_one = coordinate(folder, clock, ThreeSteps)
    next_one.poll()
    waiting = folder.read(bodies.CurrentBody)
    poll(next_one, clock, 10)
    after = folder.read(bodies.CurrentBody)
    assert waiting is not None
    assert after is not None
    assert (before.number, waiting.number, after.number) == (0, before.number, committed + 1)
    assert after.start_step > 500
    one, other = (folder.read(bodies.IndexBody, number=number) for number in (committed, after.number))
    assert one is not None
    assert other is not None
    assert one.source.revision == other.source.revision


def test_a_new_coordinator_goes_on_from_the_announced_schedule_though_an_old_listing_lacks_it(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, infos = registered(tmp_path, 1)
    poll(coordinate(folder, clock, ThreeSteps), clock, 2)
    write_results(folder, 0, infos)
    poll(coordinate(folder, clock, ThreeSteps), clock, 2)
    assert folder.schedule_numbers() == [0, 1]
    monkeypatch.setattr(JobFolder, "schedule_numbers", lambda self: [0])
    write_step(folder, 40, number=1, iter_time_s=0.1)
    poll(coordinate(folder, clock, ThreeSteps), clock, 10)
    current = current_of(folder)
    assert current.number == 1


def forged(generation: int, number: int) -> bytes:
    header = Header("current", "attempt", "another user")
    return encode(header, bodies.CurrentBody(generation=generation, number=number, state="running"))


FORGED = {
    f"generation {generation}, number {number}": forged(generation, number)
    for generation in (0, 1, 2, 999_999_999)
    for number in (-1, 0, 7, 999_999_999)
}
NO_RECORDS = {"empty": b"", "no record": b"no record", "too long": b"x" * 300_000}


@pytest.mark.parametrize("content", [*FORGED.values(), *NO_RECORDS.values()], ids=[*FORGED, *NO_RECORDS])
def test_a_coordinator_puts_back_what_another_user_writes_over_its_announcement(
    tmp_path: Path, clock: Clock, content: bytes
) -> None:
    folder, _ = registered(tmp_path, 1)
    coordinator = coordinate(folder, clock, ThreeSteps)
    poll(coordinator, clock, 2)
    before = folder.read(bodies.CurrentBody)
    folder.files.publish(f"{folder.path}/current.json", content)
    poll(coordinator, clock, 10)
    assert folder.read(bodies.CurrentBody) == before


def test_a_schedule_goes_into_force_under_the_next_number_where_another_user_has_written_one(
    tmp_path: Path, clock: Clock
) -> None:
    folder, infos = registered(tmp_path, 1)
    coordinator = coordinate(folder, clock, ThreeSteps)
    poll(coordinator, clock, 2)
    schedule = FrequencySchedule(rank=0, frequencies=[("forward", 210)])
    source = bodies.Source(kind="scheduler", policy="another")
    folder.write_schedule(1, 999_999_999, 0, source, [schedule], infos)
    (folder.files.root / folder.path / "schedule.yaml").write_text("all: 0\n")
    poll(coordinator, clock, 30)
    current = current_of(folder)
    assert current.generation == 1
    assert current.number > 1
    assert current.source is not None
    assert current.source.kind == "yaml"
