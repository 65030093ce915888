"""What the site's file allows jobs to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from jobs import make_job, rank_infos, register

from pfo_fs.coordination import Coordinator, SitePolicy, read_site_policy
from pfo_fs.coordination.site_policy import parse_site_policy
from pfo_fs.helper.coordination_choice import CoordinationChoice
from pfo_fs.helper.operations import ClaimForRank0, WhoSchedules
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, SharedDirectory, bodies

DAEMON_ONLY = SitePolicy("daemon-only")


def site(root: Path, content: str | None) -> SitePolicy:
    shared = SharedDirectory(Files(root, create=True))
    if content is not None:
        (root / "site.yaml").write_text(content)
    return read_site_policy(shared)


def test_without_the_file_everything_is_allowed(tmp_path: Path) -> None:
    assert site(tmp_path / "pfo", None) == SitePolicy("auto")


@pytest.mark.parametrize("content", ["", "# nothing\n", "coordination: auto\n", "{}"])
def test_a_file_that_asks_for_nothing_allows_everything(tmp_path: Path, content: str) -> None:
    assert site(tmp_path, content) == SitePolicy("auto")


def test_the_file_can_ask_for_daemon_only(tmp_path: Path) -> None:
    assert site(tmp_path, "coordination: daemon-only\n") == DAEMON_ONLY


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("coordination: deamon-only\n", "'deamon-only'; it can be auto or daemon-only"),
        ("coordination: [auto]\n", "it can be"),
        ("cordination: daemon-only\n", "'cordination'; only `coordination` is known"),
        ("- daemon-only\n", "must be a mapping"),
        ("coordination: {", "not YAML, see line 1"),
        ("a: &a [1]\ncoordination: *a\n", "references"),
        ("coordination: \x00", "not YAML"),
        ("#" * 20_000, "at most"),
    ],
)
def test_a_file_that_is_not_valid_counts_as_daemon_only_and_the_reason_is_kept(
    tmp_path: Path, content: str, problem: str
) -> None:
    found = site(tmp_path, content)
    assert found.daemon_only
    assert problem in found.problem


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("coordination: auto\n")
    (tmp_path / "pfo").mkdir(mode=0o700)
    (tmp_path / "pfo" / "site.yaml").symlink_to(tmp_path / "elsewhere")
    assert site(tmp_path / "pfo", None).daemon_only


@given(st.binary(max_size=200))
def test_no_content_raises(content: bytes) -> None:
    found = parse_site_policy(content)
    assert found.daemon_only or not found.problem


@pytest.mark.parametrize("asked_for", ["auto", "local"])
def test_under_daemon_only_rank_0_does_not_claim_its_job_and_a_daemon_does(
    tmp_path: Path, clock: Clock, asked_for: str
) -> None:
    folder = make_job(tmp_path, 1, coordination=asked_for)
    register(folder, rank_infos(1))

    def coordinator(kind: str) -> Coordinator:
        fresh = SharedDirectory(folder.files, kind).job(folder.job_id)
        return Coordinator(fresh, PFOSettings(), kind=kind, site=lambda: DAEMON_ONLY, monotonic=clock)  # type: ignore[arg-type]

    local = coordinator("local")
    local.poll()
    assert not local.is_mine
    assert folder.read_coordinator() is None
    assert folder.schedule_numbers() == []
    daemon = coordinator("daemon")
    daemon.poll()
    assert daemon.is_mine
    claim = folder.read_coordinator()
    assert claim is not None
    assert claim.kind == "daemon"


@pytest.mark.parametrize("mode", ["auto", "local"])
def test_under_daemon_only_rank_0_leaves_its_job_to_a_daemon_also_while_none_runs(mode: str) -> None:
    choice = CoordinationChoice(mode, 0.0)  # type: ignore[arg-type]
    assert choice.first_question() is not None
    assert choice.learn(WhoSchedules(claimed=False, daemon=None, site=DAEMON_ONLY), 0.0) is None
    assert choice.chosen == "daemon"
    assert "default clocks" in choice.warning


def test_without_a_site_file_a_job_that_wants_to_schedules_itself() -> None:
    choice = CoordinationChoice("local", 0.0)
    assert isinstance(choice.learn(WhoSchedules(claimed=False, daemon=None), 0.0), ClaimForRank0)


def heartbeat(counter: int, interval_s: float = 1.0) -> bodies.DaemonBody:
    return bodies.DaemonBody(
        generation=1, counter=counter, host="there", pid=1, version="1", scheduler="Manual", interval_s=interval_s
    )


def test_a_job_in_auto_does_not_schedule_itself_while_the_heartbeat_of_a_daemon_moves() -> None:
    choice, now_s = CoordinationChoice("auto", 0.0), 0.0
    while choice.chosen is None:
        found = WhoSchedules(claimed=False, daemon=heartbeat(int(now_s / 2)))  # a busy one: every other second
        assert not isinstance(choice.learn(found, now_s), ClaimForRank0)
        now_s += 0.1
    assert choice.chosen == "daemon"
    assert now_s < 20


@given(st.floats(min_value=1e-300, max_value=1e308))
def test_a_heartbeat_that_stands_still_is_not_waited_for_whatever_interval_it_names(interval_s: float) -> None:
    try:
        daemon = heartbeat(1, interval_s)
    except ValueError:
        return  # the record itself is refused
    choice = CoordinationChoice("auto", 0.0)
    choice.learn(WhoSchedules(claimed=False, daemon=daemon), 0.0)
    assert isinstance(choice.learn(WhoSchedules(claimed=False, daemon=daemon), 5.1), ClaimForRank0)
