"""What the site's file allows jobs to do, which files a daemon reads for a job, and what its messages show of them."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from coordinator_jobs import Job, by_plan
from hypothesis import given
from hypothesis import strategies as st
from jobs import make_job, plan_text, register

from pfo_fs.coordination import SitePolicy, read_site_policy
from pfo_fs.coordination.policy_start import PLAN_ARG
from pfo_fs.coordination.site_policy import parse_site_policy
from pfo_fs.schedule_yaml import ScheduleProblems
from pfo_fs.scheduler import BUILTIN, load_scheduler
from pfo_fs.store import Files, SharedDirectory, bodies

AUTO, DAEMON_ONLY = SitePolicy(), SitePolicy("daemon-only")


def site(root: Path, content: str | None, before: SitePolicy = AUTO) -> SitePolicy:
    shared = SharedDirectory(Files(root, create=True))
    if content is not None:
        (root / "site.yaml").write_text(content)
    return read_site_policy(shared, before)


@pytest.mark.parametrize(
    "content", [None, "", "# nothing\n", "coordination: auto\n", "{}", "coordination: daemon-only\n"]
)
def test_without_the_file_or_a_rule_in_it_everything_is_allowed(tmp_path: Path, content: str | None) -> None:
    assert site(tmp_path / "pfo", content) == (DAEMON_ONLY if content and "only" in content else AUTO)


BROKEN = [
    ("coordination: deamon-only\n", "line 1: coordination is 'deamon-only'; it can be auto or daemon-only"),
    ("\ncoordination: [auto]\n", "line 2: coordination is a list of 1; it can be"),
    ("cordination: daemon-only\n", "unknown key 'cordination'; did you mean 'coordination'?"),
    ("- daemon-only\n", "expected `coordination: daemon-only`, got a list"),
    ("a: &a [1]\ncoordination: *a\n", "anchors"),
    ("coordination: auto\ncoordination: daemon-only\n", "given twice"),
    ("#" * 20_000, "at most"),
]


@pytest.mark.parametrize(("content", "problem"), BROKEN)
@pytest.mark.parametrize("before", [AUTO, DAEMON_ONLY], ids=lambda policy: policy.coordination)
def test_a_file_that_is_not_valid_changes_nothing_and_its_mistake_is_named(
    tmp_path: Path, before: SitePolicy, content: str, problem: str
) -> None:
    found = site(tmp_path, content, before)
    assert found.coordination == before.coordination
    assert problem in found.problem
    assert f"`coordination: {before.coordination}` is in force" in found.warning


def test_the_mended_file_is_in_force_when_it_is_read_next_and_a_link_is_not_followed(tmp_path: Path) -> None:
    broken = site(tmp_path, "coordination: daemon")
    assert broken.problem
    assert site(tmp_path, "coordination: daemon-only", broken) == DAEMON_ONLY
    (tmp_path / "site.yaml").rename(tmp_path / "elsewhere")
    (tmp_path / "site.yaml").symlink_to(tmp_path / "elsewhere")
    found = site(tmp_path, None)
    assert not found.daemon_only
    assert "links are not followed" in found.problem


@given(st.binary(max_size=200) | st.text(alphabet="[]{}:,-?&*!|>%@`'\"#\\ \n\tax0U", max_size=200).map(str.encode))
def test_no_content_raises_anything_but_the_one_problem(content: bytes) -> None:
    try:
        parse_site_policy(content)
    except ScheduleProblems as error:
        assert error.problems


@pytest.mark.parametrize("asked_for", ["auto", "local"])
def test_under_daemon_only_a_daemon_claims_a_job_and_not_rank_0(tmp_path: Path, clock: Clock, asked_for: str) -> None:
    job = Job(register(make_job(tmp_path, 1, coordination=asked_for)), clock)
    for kind in ("local", "daemon"):
        job.restart(around={"kind": kind, "site": lambda: DAEMON_ONLY})
        assert job.poll(1).coordinator.is_mine == (kind == "daemon")
        claim = job.folder.read(bodies.ClaimBody)
        assert (claim is not None and claim.kind) == (kind == "daemon" and "daemon")


SECRET = "password hunter2"


def job_with(tmp_path: Path, clock: Clock, solution_path: Any) -> Job:
    asked = {"scheduler": "PointSolution", "scheduler_args": {"solution_path": solution_path}}
    return Job(register(make_job(tmp_path / "pfo", 1, **asked)), clock)


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
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, path: Any, said: str
) -> None:
    other, private = make_job(tmp_path / "pfo", 1), tmp_path / "private.yaml"  # outside of the shared directory
    for secret in (private, other.location / "notes.yaml", other.location / "notes.py"):
        secret.write_text(f"{SECRET}: [1\n")
    path = path.format(private=private, other=other.path) if isinstance(path, str) else path
    job = job_with(tmp_path, clock, path)
    (job.folder.location / "in_job.yaml").symlink_to(private)
    (job.folder.files.root / "in_root.yaml").symlink_to(private)
    assert job.poll(4).current.state == "broken"
    assert re.search(said, job.current.message)
    for written in job.folder.location.rglob("*"):
        if written.is_file() and not written.is_symlink() and written.name != "job.json":
            assert SECRET not in written.read_text()
    assert SECRET not in caplog.text


def test_a_plan_in_the_jobs_folder_is_run_and_its_mistakes_are_shown(tmp_path: Path, clock: Clock) -> None:
    job = job_with(tmp_path, clock, "plan.py")
    plan = job.folder.location / "plan.py"
    plan.write_text("[[('forward', 'fast')]]")
    assert job.poll(4).current.state == "broken"
    assert re.match("plan.py: stage 0, position 0", job.current.message)
    plan.write_text(plan_text(1, 1, 1200))
    job.restart()
    assert job.poll(4).mhz == 1200


@pytest.mark.parametrize("absolute", [False, True])
def test_a_plan_in_the_shared_directory_is_run(tmp_path: Path, clock: Clock, absolute: bool) -> None:
    plan = tmp_path / "pfo" / "plan.py"
    job = job_with(tmp_path, clock, str(plan) if absolute else "plan.py")
    plan.write_text(plan_text(1, 1, 1200))
    assert job.poll(4).mhz == 1200


def test_a_daemons_operator_and_a_job_that_schedules_itself_may_name_any_file(tmp_path: Path, clock: Clock) -> None:
    plan = by_plan(tmp_path, 1, 1, 1200)
    assert Job(register(make_job(tmp_path / "pfo", 1)), clock, **plan).poll(4).mhz == 1200
    own = job_with(tmp_path, clock, plan["scheduler_args"]["solution_path"])
    own.restart(around={"kind": "local"})
    assert own.poll(4).mhz == 1200


@pytest.mark.parametrize("name", BUILTIN)
def test_only_one_argument_of_built_in_schedulers_names_a_file(name: str) -> None:
    parameters = inspect.signature(load_scheduler(name)).parameters.values()
    assert {one.name for one in parameters if "path" in f"{one.name}{one.annotation}".lower()} <= {PLAN_ARG}
