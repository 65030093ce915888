"""What ranks measured: awaited, lost and measured again, left out."""

from __future__ import annotations

import errno

import pytest
from clock import Clock
from coordinator_jobs import ORDER, ReactingScheduler, coordinate, poll, say_yaml
from jobs import index_of, rank_infos, write_results, write_step

from pfo_fs.errors import StoreError
from pfo_fs.scheduler import ScheduleRequest
from pfo_fs.store import JobFolder, bodies


class MeasuresDefaultClocks(ReactingScheduler):
    """Measures under a schedule without clocks, which says nothing of orders."""

    purpose = "measure"

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        return yielded


def test_results_of_a_measuring_window_wait_for_orders_that_a_listing_does_not_show_yet(
    folder: JobFolder, clock: Clock
) -> None:
    coordinator = coordinate(folder, clock, MeasuresDefaultClocks)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 60)
    assert ReactingScheduler.calls == []
    for rank in (0, 1):
        folder.write(bodies.OrderBody(rank=rank, instructions=ORDER))
    poll(coordinator, clock, 2)
    assert ReactingScheduler.calls == [[1.0, 1.0]]


def test_results_wait_for_orders_a_limited_time(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock, MeasuresDefaultClocks)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    poll(coordinator, clock, 100)
    assert ReactingScheduler.calls == [[1.0, 1.0]]


def test_results_that_were_lost_are_measured_again_a_limited_number_of_times(folder: JobFolder, clock: Clock) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    for step in range(0, 4000, 10):
        number = folder.schedule_numbers()[-1]
        write_step(folder, step, number=number)
        write_results(folder, number, rank_infos(1, 2)[:1])  # rank 1's never comes
        poll(coordinator, clock, 2)
    assert folder.schedule_numbers() == [0, 1, 2]
    assert coordinator.state == "running"
    assert "rank 1 measured nothing under schedule 2, nor when it was repeated" in coordinator.message
    write_results(folder, 2, rank_infos(1, 2)[1:])
    poll(coordinator, clock, 2)
    assert ReactingScheduler.calls == [[1.0, 1.0]]
    assert coordinator.message == ""


def test_lost_results_are_measured_again_also_by_a_coordinator_that_came_after_the_window(
    folder: JobFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReactingScheduler, "purpose", "measure")
    write_step(folder, 0, number=-1)
    poll(coordinate(folder, clock), clock, 10)
    index = index_of(folder, 0)
    another = coordinate(folder, clock)
    for step in range(0, index.until + 200, 10):
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
    for step in range(8000, 12_000, 10):
        write_step(folder, step, number=folder.schedule_numbers()[-1])
        poll(coordinator, clock, 2)
    assert "nor when it was repeated" in coordinator.message
    say_yaml(folder, "all: 1200\n")
    poll(coordinator, clock, 4)
    assert coordinator.message == "", "a person's schedule needs no results"


def test_a_result_that_cannot_be_read_is_left_out(
    folder: JobFolder, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 2)
    write_results(folder, 0, rank_infos(1, 2), time_s=1.0)
    (folder.files.root / folder.path / "prof" / "0" / "1.json").write_text("junk")
    poll(coordinator, clock, 2)
    assert ReactingScheduler.calls == [[1.0]]
    assert coordinator.state == "running"
    assert "left out" in caplog.text
