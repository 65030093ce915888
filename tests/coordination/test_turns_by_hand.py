"""A person's schedule that is followed in turns, or ends at a step: what is published, and who schedules afterwards."""

from __future__ import annotations

import pytest
import yaml
from clock import Clock
from coordinator_jobs import clock_mhz, coordinate, poll, say_yaml
from jobs import current_of, index_of, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.store import JobFolder
from pfo_fs.turns import Term

FILE = "all: 1200\nturns: [1, 2, 3, 0]\nuntil: 500\n"


@pytest.fixture
def coordinator(folder: JobFolder, clock: Clock) -> Coordinator:
    """A job at step 101 that follows the scheduler's schedule 0."""
    coordinator = coordinate(folder, clock)
    for step in (100, 101):
        write_step(folder, step, number=0)
        poll(coordinator, clock, 2)
    return coordinator


def status_of(folder: JobFolder) -> dict[str, object]:
    return dict(yaml.safe_load((folder.location / "schedule.status.yaml").read_text()))


def newest(folder: JobFolder) -> int:
    return folder.schedule_numbers()[-1]


def test_turns_and_the_end_are_published_and_the_scheduler_s_schedule_is_to_follow(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, FILE)
    poll(coordinator, clock, 3)
    assert index_of(folder, 1).term == Term(500, 0, (1, 2, 3, 0), by_hand=True)
    assert clock_mhz(folder) == 1200


def test_once_training_has_passed_the_end_the_scheduler_decides_again_and_the_status_says_so(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, FILE)
    poll(coordinator, clock, 3)
    write_step(folder, 499, number=1)
    poll(coordinator, clock, 3)
    assert status_of(folder)["state"] == "in force"
    assert newest(folder) == 1
    write_step(folder, 500, number=0)
    poll(coordinator, clock, 3)
    assert status_of(folder)["state"] == "ended at step 500"
    assert index_of(folder, 2).source.kind == "scheduler"
    assert index_of(folder, 2).stays
    write_step(folder, 900, number=2)
    poll(coordinator, clock, 20)
    assert newest(folder) == 2


def test_turns_without_an_end_stay_until_the_file_is_removed(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, "all: 1200\nturns: [1, 2]\n")
    poll(coordinator, clock, 3)
    assert index_of(folder, 1).term == Term(0, 0, (1, 2), by_hand=True)
    assert index_of(folder, 1).stays
    say_yaml(folder, "all: 1185\nuntil: 400\n")
    poll(coordinator, clock, 3)
    assert index_of(folder, 2).term == Term(400, 1, by_hand=True)


@pytest.mark.parametrize("until", [0, 7, 101])
def test_an_end_that_is_over_before_ranks_can_follow_is_refused_with_its_line(
    coordinator: Coordinator, folder: JobFolder, clock: Clock, until: int
) -> None:
    say_yaml(folder, f"all: 1200\n\nuntil: {until}\n")
    poll(coordinator, clock, 3)
    assert newest(folder) == 0
    assert status_of(folder)["state"] == "rejected"
    (problem,) = status_of(folder)["problems"]  # type: ignore[misc]
    assert problem["line"] == 3
    assert "until: ranks can follow this file from step 1" in problem["reason"]
    assert current_of(folder).yaml_problem.startswith("line 3: until: ")


def test_a_new_coordinator_does_not_publish_a_file_again_whose_schedule_has_ended(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, FILE)
    poll(coordinator, clock, 3)
    write_step(folder, 500, number=0)
    poll(coordinator, clock, 3)
    write_step(folder, 700, number=2)
    after = coordinate(folder, clock)
    poll(after, clock, 15)
    assert newest(folder) == 2
    assert status_of(folder)["state"] == "ended at step 500"
    assert current_of(folder).yaml_problem == ""


def test_a_new_coordinator_leaves_a_schedule_in_force_that_has_not_ended(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, FILE)
    poll(coordinator, clock, 3)
    after = coordinate(folder, clock)
    write_step(folder, 300, number=1)
    poll(after, clock, 15)
    assert (newest(folder), status_of(folder)["state"]) == (1, "in force")
    write_step(folder, 501, number=0)
    poll(after, clock, 3)
    assert (newest(folder), status_of(folder)["state"]) == (2, "ended at step 500")


def test_a_bad_file_leaves_a_schedule_in_force_only_until_its_end(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, FILE)
    poll(coordinator, clock, 3)
    say_yaml(folder, "all: [")
    poll(coordinator, clock, 3)
    write_step(folder, 500, number=0)
    poll(coordinator, clock, 3)
    assert index_of(folder, 2).source.kind == "scheduler"
    assert status_of(folder)["state"] == "rejected"


def test_the_end_that_a_person_has_named_does_not_move_with_the_start(
    coordinator: Coordinator, folder: JobFolder, clock: Clock
) -> None:
    say_yaml(folder, FILE)
    poll(coordinator, clock, 3)
    coordinator.applied(1, index_of(folder, 1).start_step + 7)  # as rank 0 says that broadcasts
    write_step(folder, 499, number=1)
    poll(coordinator, clock, 3)
    assert newest(folder) == 1
    write_step(folder, 500, number=0)
    poll(coordinator, clock, 3)
    assert newest(folder) == 2
