"""Files that a job's own `job.json` names: which a daemon reads as its operator, and what its messages show of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from jobs import make_job, plan_text, rank_infos, register, schedule_of

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.policy_start import PLAN_ARG
from pfo_fs.scheduler import BUILTIN, load_scheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, SharedDirectory

SECRET = "password hunter2"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file of the daemon's user, outside of the shared directory."""
    path = tmp_path / "private.yaml"
    path.write_text(f"{SECRET}: [1\n")
    return path


def job_with(tmp_path: Path, solution_path: Any) -> JobFolder:
    folder = make_job(tmp_path / "pfo", 1, scheduler="PointSolution", scheduler_args={"solution_path": solution_path})
    register(folder, rank_infos(1))
    return folder


def serve(folder: JobFolder, clock: Clock, kind: str = "daemon", **settings: Any) -> Coordinator:
    fresh = SharedDirectory(folder.files, "coordinator").job(folder.job_id)
    coordinator = Coordinator(fresh, PFOSettings(**settings), kind=kind, monotonic=clock)  # type: ignore[arg-type]
    for _ in range(4):
        coordinator.poll()
        clock.now += 1
    return coordinator


def everything_in(folder: JobFolder) -> str:
    files = (path for path in (folder.files.root / folder.path).rglob("*") if path.is_file() and not path.is_symlink())
    return "".join(path.read_text() for path in files if path.name != "job.json")


def clock_of(folder: JobFolder) -> int:
    schedule = schedule_of(folder, rank_infos(1)[0])
    return schedule.frequencies[0][1]


def test_a_daemon_does_not_read_a_private_file_that_a_job_names(
    tmp_path: Path, private: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    folder = job_with(tmp_path, str(private))
    coordinator = serve(folder, clock)
    assert coordinator.state == "broken"
    assert "outside of the shared directory" in coordinator.message
    assert "copy the file into the shared directory" in coordinator.message
    assert SECRET not in everything_in(folder) + caplog.text


@pytest.mark.parametrize("steps_up", [1, 2, 3])
def test_a_path_that_leads_out_of_the_shared_directory_is_refused(
    tmp_path: Path, private: Path, clock: Clock, steps_up: int
) -> None:
    folder = job_with(tmp_path, "../" * steps_up + "private.yaml")
    assert serve(folder, clock).state == "broken"
    assert SECRET not in everything_in(folder)


@pytest.mark.parametrize("place", ["job", "root"])
def test_a_link_to_a_private_file_is_not_followed(tmp_path: Path, private: Path, clock: Clock, place: str) -> None:
    folder = job_with(tmp_path, "plan.yaml")
    at = folder.files.root / (folder.path if place == "job" else "")
    (at / "plan.yaml").symlink_to(private)
    assert serve(folder, clock).state == "broken"
    assert SECRET not in everything_in(folder)


def test_a_plan_in_the_jobs_folder_is_run_and_its_mistakes_are_shown(tmp_path: Path, clock: Clock) -> None:
    folder = job_with(tmp_path, "plan.py")
    plan = folder.files.root / folder.path / "plan.py"
    plan.write_text("[[('forward', 'fast')]]")
    coordinator = serve(folder, clock)
    assert coordinator.state == "broken"
    assert "fast" in coordinator.message
    assert coordinator.message.startswith("plan.py")
    plan.write_text(plan_text(1, 1, 1200))
    assert serve(folder, clock).state == "running"
    assert clock_of(folder) == 1200


@pytest.mark.parametrize("absolute", [False, True])
def test_a_plan_in_the_shared_directory_is_run(tmp_path: Path, clock: Clock, absolute: bool) -> None:
    (tmp_path / "pfo").mkdir(mode=0o700)
    plan = tmp_path / "pfo" / "plan.py"
    plan.write_text(plan_text(1, 1, 1200))
    folder = job_with(tmp_path, str(plan) if absolute else "plan.py")
    assert serve(folder, clock).state == "running"
    assert clock_of(folder) == 1200


@pytest.mark.parametrize("name", ["notes.yaml", "notes.py"])
def test_the_content_of_another_jobs_file_is_not_shown(tmp_path: Path, clock: Clock, name: str) -> None:
    other = make_job(tmp_path / "pfo", 1)
    (other.files.root / other.path / name).write_text(f"{SECRET}: [1\n")
    folder = job_with(tmp_path, f"{other.path}/{name}")
    coordinator = serve(folder, clock)
    assert coordinator.state == "broken"
    assert "is not a plan that fits this job" in coordinator.message
    assert SECRET not in everything_in(folder)


@pytest.mark.parametrize("value", [7, None, "", ["plan.py"]])
def test_a_path_that_is_not_a_path_is_refused(tmp_path: Path, clock: Clock, value: Any) -> None:
    coordinator = serve(job_with(tmp_path, value), clock)
    assert coordinator.state == "broken"
    assert "must be the path of a file" in coordinator.message


def test_the_operator_of_a_daemon_and_a_job_that_schedules_itself_may_name_any_file(
    tmp_path: Path, clock: Clock
) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text(plan_text(1, 1, 1200))
    asked_by_operator = make_job(tmp_path / "pfo", 1)
    register(asked_by_operator, rank_infos(1))
    arguments = {"scheduler": "PointSolution", "scheduler_args": {"solution_path": str(plan)}}
    assert serve(asked_by_operator, clock, **arguments).state == "running"
    assert serve(job_with(tmp_path, str(plan)), clock, kind="local").state == "running"


@pytest.mark.parametrize("name", BUILTIN)
def test_only_one_argument_of_built_in_schedulers_names_a_file(name: str) -> None:
    parameters = inspect.signature(load_scheduler(name)).parameters.values()
    assert {one.name for one in parameters if "path" in f"{one.name}{one.annotation}".lower()} <= {PLAN_ARG}
