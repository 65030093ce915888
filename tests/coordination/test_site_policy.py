"""What the site's file allows jobs to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import Job, registered
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.coordination import Coordinator, SitePolicy, read_site_policy
from pfo_fs.coordination.site_policy import parse_site_policy
from pfo_fs.schedule_yaml import ScheduleProblems
from pfo_fs.settings import PFOSettings
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
def test_under_daemon_only_rank_0_does_not_claim_its_job_and_a_daemon_does(
    tmp_path: Path, clock: Clock, asked_for: str
) -> None:
    job = Job(registered(tmp_path, 1, coordination=asked_for)[0], clock)
    for kind in ("local", "daemon"):
        fresh = SharedDirectory(job.folder.files, kind).job(job.folder.job_id)
        job.coordinator = Coordinator(fresh, PFOSettings(), kind=kind, site=lambda: DAEMON_ONLY, monotonic=clock)  # type: ignore[arg-type]
        assert job.poll(1).coordinator.is_mine == (kind == "daemon")
        claim = job.folder.read(bodies.ClaimBody)
        assert (claim is not None and claim.kind) == (kind == "daemon" and "daemon")
