"""A person's `schedule.yaml`: when it counts, until when, what its status says, and what is no removal of it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from coordinator_jobs import ORDER, Job

from pfo_fs.errors import StoreUnavailable
from pfo_fs.store import JobFolder, bodies
from pfo_fs.turns import Term

FILE = "all: 1200\nturns: [1, 2, 3, 0]\nuntil: 500\n"


def test_an_edited_yaml_takes_the_schedulers_place_until_it_is_removed(job: Job) -> None:
    job.yaml("all: 1200  # slow\n")
    assert job.clocks == [("forward", 1200), ("backward", 1200)]
    assert job.yaml_status["state"] == "accepted, starts soon"
    job.train(40, number=1)
    assert job.yaml_status["state"] == "in force"
    job.yaml(None, seconds=0.5)
    assert job.numbers == [0, 1], "one listing without it proves nothing"
    job.poll(6)
    assert job.mhz == 1410
    assert job.yaml_status["state"] == "removed"


def test_a_yaml_half_written_is_not_acted_on(job: Job) -> None:
    job.yaml("all: 120", seconds=0.5)
    job.yaml("all: 1200", seconds=0.5)
    assert job.numbers == [0]
    assert not (job.folder.location / "schedule.status.yaml").exists()
    job.poll()
    assert job.numbers == [0, 1]


def test_a_wrong_yaml_is_reported_with_its_line_and_the_last_good_one_stays(job: Job) -> None:
    def meanwhile(text: str) -> str:
        job.yaml(text)
        assert job.yaml_status["state"] == "rejected"
        return str(job.yaml_status["in_force_meanwhile"])

    job.yaml("all: 1200\n")
    assert "which was accepted before" in meanwhile("# comment\nall: 1200\nstagse:\n  0: 900\n")
    (problem,) = job.yaml_status["problems"]
    assert problem["line"] == 3
    assert "stages" in problem["reason"]
    assert (job.numbers, job.mhz) == ([0, 1], 1200)
    job.yaml("target: {slowdown: 1.1}\n")
    assert meanwhile("all: [\n") == "the scheduler's own schedule"
    job.yaml(None)
    assert "in_force_meanwhile" not in job.yaml_status
    job.yaml("straggler: {slowdown: 1.2, pipeline: 2}\n")
    assert "there is no pipeline 2; the job has pipelines 0 to 1" in job.current.yaml_problem


def test_a_number_for_all_waits_for_the_first_step(job: Job) -> None:
    job.restart("Manual")  # no scheduler knows the order
    job.yaml("all: 1200\n")
    assert job.yaml_status["state"] == "waiting"
    job.folder.write(bodies.OrderBody(rank=0, instructions=ORDER))
    job.train(3, seconds=3)
    assert job.yaml_status["state"].startswith("accepted")
    assert job.clocks == [("forward", 1200), ("backward", 1200)]


@pytest.fixture
def training(job: Job) -> Job:
    """A job at step 101 that follows the scheduler's schedule 0."""
    job.train(100, number=0)
    job.train(101, number=0)
    return job


def test_turns_are_published_and_once_training_has_passed_the_end_the_scheduler_decides_again(training: Job) -> None:
    training.yaml(FILE)
    assert training.index(1).term == Term(500, 0, (1, 2, 3, 0), by_hand=True)
    assert training.mhz == 1200
    start_step = training.index(1).start_step + 7
    training.coordinator.applied(1, start_step)  # as rank 0 says that broadcasts: the end does not move with the start
    training.train(499, number=1)
    assert (training.yaml_status["state"], training.numbers) == ("in force", [0, 1])
    training.train(500, number=0)
    assert training.yaml_status["state"] == "ended at step 500"
    assert training.index(2).source.kind == "scheduler"
    assert training.index(2).stays
    training.train(900, number=2, seconds=20)
    assert training.numbers == [0, 1, 2]


def test_turns_without_an_end_stay_until_the_file_is_removed(training: Job) -> None:
    training.yaml("all: 1200\nturns: [1, 2]\n")
    assert training.index(1).term == Term(0, 0, (1, 2), by_hand=True)
    assert training.index(1).stays
    training.yaml("all: 1185\nuntil: 400\n")
    assert training.index(2).term == Term(400, 1, by_hand=True)


@pytest.mark.parametrize("until", [0, 7, 101])
def test_an_end_that_is_over_before_ranks_can_follow_is_refused_with_its_line(training: Job, until: int) -> None:
    training.yaml(f"all: 1200\n\nuntil: {until}\n")
    assert (training.numbers, training.yaml_status["state"]) == ([0], "rejected")
    assert training.current.yaml_problem.startswith("line 3: until: ranks can follow this file from step 1")


def test_a_new_coordinator_keeps_a_schedule_to_its_end_and_does_not_publish_it_again(training: Job) -> None:
    training.yaml(FILE)
    training.restart()
    training.train(300, number=1, seconds=15)
    assert (training.numbers, training.yaml_status["state"]) == ([0, 1], "in force")
    training.train(501, number=0)
    assert (training.numbers, training.yaml_status["state"]) == ([0, 1, 2], "ended at step 500")
    training.restart()
    training.train(700, number=2, seconds=15)
    assert (training.numbers, training.yaml_status["state"]) == ([0, 1, 2], "ended at step 500")
    assert training.current.yaml_problem == ""


def test_a_bad_file_leaves_a_schedule_in_force_only_until_its_end(training: Job) -> None:
    training.yaml(FILE)
    training.yaml("all: [")
    training.train(500, number=0)
    assert training.index(2).source.kind == "scheduler"
    assert training.yaml_status["state"] == "rejected"


def test_a_job_folder_that_is_away_for_a_while_does_not_count_as_a_removed_yaml(job: Job) -> None:
    job.yaml("all: 1200\n")
    path = job.folder.location
    os.rename(path, path.with_name("away"))
    job.poll(60)
    os.rename(path.with_name("away"), path)
    job.poll()
    assert (job.numbers, job.mhz, job.coordinator.state) == ([0, 1], 1200, "running")


NO_ANSWER = Mock(side_effect=StoreUnavailable(errno.EACCES, "schedule.yaml: Permission denied"))


@pytest.mark.parametrize(
    ("method", "answer", "problem"),
    [
        ("names", NO_ANSWER, ""),
        ("read_file", NO_ANSWER, "Permission denied; let the daemon's user read it (chmod a+r schedule.yaml)"),
        ("read_file", lambda *_: None, ""),  # listed, but not there when it is read: an editor puts a new file there
    ],
    ids=["no listing", "an expired ticket", "replaced again and again"],
)
def test_a_yaml_that_cannot_be_seen_for_a_while_stays_and_is_a_problem_only_so_long(
    job: Job, monkeypatch: pytest.MonkeyPatch, method: str, answer: Callable[..., Any], problem: str
) -> None:
    job.yaml("all: 1200\n")
    with monkeypatch.context() as outage:
        outage.setattr(JobFolder, method, answer)
        job.poll(60)
        assert job.current.yaml_problem.partition(": ")[2] == problem
    job.poll(10)
    assert (job.current.yaml_problem, job.numbers, job.mhz) == ("", [0, 1], 1200)


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, lambda path: path.write_bytes(b"#" * (10 << 20)), lambda path: path.symlink_to("/etc/passwd")],
    ids=["a folder", "a huge file", "a link out of the directory"],
)
def test_a_yaml_that_was_refused_unread_and_removed_is_no_problem_any_more(job: Job, make: Callable[..., Any]) -> None:
    path = job.folder.location / "schedule.yaml"
    make(path)
    job.poll(4)
    assert job.current.yaml_problem
    assert (job.numbers, job.yaml_status["state"]) == ([0], "rejected")
    path.rename(path.with_name("away"))
    job.poll(0.5)
    path.with_name("away").rename(path)
    assert job.poll().coordinator.poll() > 0.25, "a listing that lacked it does not count any more"
    path.rmdir() if path.is_dir() else path.unlink()
    job.poll(6)
    assert not job.current.yaml_problem
