"""Files that a job's own `job.json` names: which a daemon reads as its operator, and what its messages show of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from coordinator_jobs import Job, by_plan, registered
from jobs import make_job, plan_text

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.policy_start import PLAN_ARG
from pfo_fs.scheduler import BUILTIN, load_scheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder

SECRET = "password hunter2"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file of the daemon's user, outside of the shared directory."""
    path = tmp_path / "private.yaml"
    path.write_text(f"{SECRET}: [1\n")
    return path


def job_with(tmp_path: Path, clock: Clock, solution_path: Any) -> Job:
    asked = {"scheduler": "PointSolution", "scheduler_args": {"solution_path": solution_path}}
    return Job(registered(tmp_path / "pfo", 1, **asked)[0], clock)


def everything_in(folder: JobFolder) -> str:
    files = (path for path in (folder.files.root / folder.path).rglob("*") if path.is_file() and not path.is_symlink())
    return "".join(path.read_text() for path in files if path.name != "job.json")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("{private}", "outside of the shared directory.*copy the file into the shared directory"),
        ("../private.yaml", "outside of the shared directory"),
        ("../../../private.yaml", "outside of the shared directory"),
        ("in_job.yaml", "links are not followed"),
        ("in_root.yaml", "links are not followed"),
        ("{other}/notes.yaml", "is not a plan that fits this job"),
        ("{other}/notes.py", "is not a plan that fits this job"),
        ("plan.py", "'plan.py' is not in the job's folder or in"),
        ("", "must be the path of a file"),
        (7, "must be the path of a file"),
        (["plan.py"], "must be the path of a file"),
    ],
)
def test_what_a_job_may_not_name_is_refused_and_its_content_is_not_shown(
    tmp_path: Path, private: Path, clock: Clock, caplog: pytest.LogCaptureFixture, path: Any, said: str
) -> None:
    other = make_job(tmp_path / "pfo", 1)
    for name in ("notes.yaml", "notes.py"):
        (other.location / name).write_text(f"{SECRET}: [1\n")
    path = path.format(private=private, other=other.path) if isinstance(path, str) else path
    job = job_with(tmp_path, clock, path)
    (job.folder.location / "in_job.yaml").symlink_to(private)
    (job.folder.files.root / "in_root.yaml").symlink_to(private)
    assert job.poll(4).current.state == "broken"
    assert re.search(said, job.current.message)
    assert SECRET not in everything_in(job.folder) + caplog.text


def test_a_plan_in_the_jobs_folder_is_run_and_its_mistakes_are_shown(tmp_path: Path, clock: Clock) -> None:
    job = job_with(tmp_path, clock, "plan.py")
    plan = job.folder.location / "plan.py"
    plan.write_text("[[('forward', 'fast')]]")
    assert job.poll(4).current.state == "broken"
    assert re.match("plan.py.*fast", job.current.message)
    plan.write_text(plan_text(1, 1, 1200))
    job.restart()
    assert job.poll(4).mhz == 1200


@pytest.mark.parametrize("absolute", [False, True])
def test_a_plan_in_the_shared_directory_is_run(tmp_path: Path, clock: Clock, absolute: bool) -> None:
    plan = tmp_path / "pfo" / "plan.py"
    job = job_with(tmp_path, clock, str(plan) if absolute else "plan.py")
    plan.write_text(plan_text(1, 1, 1200))
    assert job.poll(4).mhz == 1200


def test_the_operator_of_a_daemon_and_a_job_that_schedules_itself_may_name_any_file(
    tmp_path: Path, clock: Clock
) -> None:
    plan = by_plan(tmp_path, 1, 1, 1200)
    assert Job(registered(tmp_path / "pfo", 1)[0], clock, **plan).poll(4).mhz == 1200
    own = job_with(tmp_path, clock, plan["scheduler_args"]["solution_path"])
    own.coordinator = Coordinator(own.folder, PFOSettings(), kind="local", monotonic=clock)
    assert own.poll(4).mhz == 1200


@pytest.mark.parametrize("name", BUILTIN)
def test_only_one_argument_of_built_in_schedulers_names_a_file(name: str) -> None:
    parameters = inspect.signature(load_scheduler(name)).parameters.values()
    assert {one.name for one in parameters if "path" in f"{one.name}{one.annotation}".lower()} <= {PLAN_ARG}
