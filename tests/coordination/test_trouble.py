"""Damaged files, failing directories, and other schedulers than the one before."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

import pytest
from clock import Clock
from coordinator_jobs import ReactingScheduler, clock_mhz, coordinate, poll, say_yaml, straggle
from jobs import current_of, index_of, instead_of, rank_infos, write_results

from pfo_fs.coordination import Coordinator
from pfo_fs.errors import PolicyFailed, StoreError
from pfo_fs.models import ProfilingResult
from pfo_fs.scheduler import ScheduleRequest
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, SharedDirectory, bodies


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
    assert ReactingScheduler.calls == [], "results are not handed to a scheduler that has not asked for them"
    assert folder.schedule_numbers()[-1] == 4
    assert clock_mhz(folder) == 1410


class _Busy(ReactingScheduler):
    """Meets a limit while its results are there for the first time."""

    failures = 0

    def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
        if _Busy.failures < 1:
            _Busy.failures += 1
            raise PolicyFailed("the scheduler has not answered for 600 s.")
        super().observe(profiling_results)


def test_a_policy_that_met_a_limit_is_tried_again_after_an_hour(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Busy, "failures", 0)
    coordinator = coordinate(folder, clock, _Busy)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    assert coordinator.state == "broken"
    assert "an hour" in coordinator.message
    clock.now += 3590
    poll(coordinator, clock, 2)
    assert coordinator.state == "broken"
    poll(coordinator, clock, 30)
    assert coordinator.state == "running"
    write_results(folder, folder.schedule_numbers()[-1], rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    assert clock_mhz(folder) == 1410 - 15, "it goes on"


def test_another_scheduler_does_not_take_over_what_one_before_has_made(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 2)
    assert clock_mhz(folder) == 1410 - 15
    manual = Coordinator(
        SharedDirectory(folder.files, "coordinator").job(folder.job_id),
        PFOSettings(scheduler="Manual"),
        kind="daemon",
        generation=2,
        monotonic=clock,
    )
    poll(manual, clock, 2)
    index = index_of(folder, folder.schedule_numbers()[-1])
    assert folder.read_schedule(index, rank_infos(1, 2)[0]) is None, "all clocks are left alone"
    poll(coordinate(folder, clock), clock, 2)
    assert ReactingScheduler.calls == []
    assert clock_mhz(folder) == 1410


def test_a_schedule_that_cannot_be_read_any_more_is_replaced(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    straggle(folder)
    poll(coordinator, clock, 10)
    assert clock_mhz(folder) == 1110
    (folder.files.root / folder.path / "sched" / "1" / "index.json").write_text("damaged")
    another = coordinate(folder, clock)
    poll(another, clock, 10)
    assert another.state == "running"
    assert folder.schedule_numbers() == [0, 1, 2]
    assert clock_mhz(folder) == 1410


@pytest.mark.parametrize("failing", ["write", "read"])
def test_a_directory_that_fails_while_a_failure_is_reported_is_no_reason_to_raise(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    def fails(*_: object) -> None:
        raise StoreError(errno.EIO, "no current.json")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    instead_of(monkeypatch, failing, bodies.CurrentBody, fails)
    (folder.files.root / folder.path / "progress").mkdir(exist_ok=True)
    (folder.files.root / folder.path / "progress" / "0.json").write_text("junk")
    poll(coordinator, clock, 30)
    assert caplog.text.count("no current.json") <= 1


def test_a_yaml_that_the_daemon_may_not_read_is_refused_with_the_reason(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise StoreError(errno.EACCES, "schedule.yaml: Permission denied")

    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    say_yaml(folder, "all: 0\n")
    monkeypatch.setattr(JobFolder, "read_file", denied)
    poll(coordinator, clock, 4)
    current = current_of(folder)
    assert "Permission denied; let the daemon's user read it" in current.yaml_problem


class Says(ReactingScheduler):
    """Has a message for people."""

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        return replace(super()._for_plan_inputs(yielded), message="it goes on")


def test_a_status_that_cannot_be_written_is_logged_once(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise StoreError(errno.EIO, "no current.json")

    caplog.set_level("INFO")
    coordinator = coordinate(folder, clock, Says)
    instead_of(monkeypatch, "write", bodies.CurrentBody, fails)
    poll(coordinator, clock, 30)
    assert caplog.text.count("it goes on") == 1


def test_training_that_is_silent_for_long_is_named_so_that_a_killed_job_does_not_read_as_running(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    messages = []
    for silent_s in (300, 400, 3600):
        clock.now += silent_s
        poll(coordinator, clock, 2)
        current = current_of(folder)
        messages.append(current.message)
    assert messages[0] == ""
    assert "no step for ten minutes" in messages[1]
    assert "no step for an hour" in messages[2]
