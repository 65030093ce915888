"""`pfo-fs target` and `pfo-fs straggler`, and what `pfo-fs status` shows of them."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

import pytest
import yaml
from commands import Done, pfo_fs
from jobs import living_daemon, make_job, rank_infos, register

from pfo_fs.reports import status
from pfo_fs.store import Files, JobFolder, OffSwitch, bodies


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    folder = make_job(tmp_path, 1, 4)
    register(folder, rank_infos(1, 4))
    with living_daemon(tmp_path):
        yield folder


def request(folder: JobFolder, command: str, *arguments: str) -> Done:
    return pfo_fs(command, "latest", "-d", folder.files.root, *arguments)


def test_a_target_and_a_straggler_can_be_set_at_the_same_time_and_the_yaml_goes_with_the_last_one(
    folder: JobFolder,
) -> None:
    path, straggler = folder.location / "schedule.yaml", {"slowdown": 1.2, "pipeline": 3}
    for arguments, requests in (
        (("target", "--power", "18000"), {"target": {"power": 18000.0}}),
        (("straggler", "--slowdown", "1.2", "--pipeline", "3"), {"target": {"power": 18000.0}, "straggler": straggler}),
        (("target", "--slowdown", "1.05"), {"straggler": straggler, "target": {"slowdown": 1.05}}),
        (("target", "--none"), {"straggler": straggler}),
    ):
        assert request(folder, *arguments).returncode == 0
        assert yaml.safe_load(path.read_text()) == requests
    assert request(folder, "straggler", "--gone").returncode == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("target", "why"), [("--power=20", "about 500 W"), ("--deadline=0.5", "1 s"), ("--power=600", "")]
)
def test_a_target_that_the_job_cannot_keep_is_written_with_a_warning(folder: JobFolder, target: str, why: str) -> None:
    folder.write(bodies.ModelBody(blocking_power_w=80, delay_s=0, lowest_power_w=500, shortest_s=1))
    done = request(folder, "target", target)
    assert (done.returncode, why in done.stderr, "impossible" in done.stderr) == (0, True, bool(why))


def test_a_yaml_with_clocks_is_not_overwritten(folder: JobFolder) -> None:
    path = folder.location / "schedule.yaml"
    path.write_text("all: 1200  # typed by hand\n")
    done = request(folder, "target", "--power", "18000")
    assert done.returncode == 1
    assert "sets clocks" in done.stderr
    assert path.read_text() == "all: 1200  # typed by hand\n"


# ---- `pfo-fs off` and `pfo-fs on`, and which job a command takes


NOW = datetime.now(timezone.utc)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_LOCAL_SIGN_WITHIN_S", 0.3)


def job(root: Path, name: str, *, started: datetime | str = NOW, ended: bool = False, ranks: int = 1) -> JobFolder:
    """A job whose id is not that of its start."""
    info = {"job_id": name, "pp_degree": ranks, "dp_degree": 1, "tp_degree": 1, "world_size": ranks}
    start = started if isinstance(started, str) else started.isoformat()
    folder = register(make_job(root, ranks, started=start, job_info=info), rank_infos(ranks))
    if ended:
        folder.write(bodies.EndBody(reason="finished"))
    return folder


def held(folder: JobFolder, *ranks: int, of: int) -> None:
    progress = [bodies.RankProgress(rank=rank, held=rank in ranks) for rank in range(of)]
    folder.write(bodies.ProgressBody(ranks=progress))


def switched(root: Path) -> frozenset[str]:
    return OffSwitch(Files(root)).read().names


def test_off_and_on_of_one_job_and_of_all_without_any_daemon(tmp_path: Path) -> None:
    one = job(tmp_path, "one")
    pfo_fs("off", "one", "-d", tmp_path, "--why", "slow steps", code=0)
    assert "slow steps" in pfo_fs("status", tmp_path).said
    assert pfo_fs("off", "--all", "-d", tmp_path, "--why", "a power cut").returncode == 0
    assert switched(tmp_path) == {"all", one.job_id}
    assert "a power cut" in pfo_fs("status", tmp_path).said
    assert "pfo-fs on --all" in pfo_fs("on", "one", "-d", tmp_path, code=1).said
    pfo_fs("on", "--all", "-d", tmp_path, code=0)
    assert pfo_fs("on", one.location).returncode == 0
    assert switched(tmp_path) == frozenset()


def test_off_says_for_each_job_which_ranks_have_not_let_go(tmp_path: Path) -> None:
    held(job(tmp_path, "one", ranks=3), 0, of=3)
    held(job(tmp_path, "two"), 0, of=1)
    shown = pfo_fs("off", "--all", "-d", tmp_path, "--json").answer
    assert {row["job_id"]: (row["done"], row["held_ranks"]) for row in shown["jobs"]} == {
        "one": (False, [0]),
        "two": (True, [0]),
    }
    assert "not yet: 1, 2" in pfo_fs("off", "--all", "-d", tmp_path).said


@pytest.mark.parametrize(("let_go", "code"), [([0], 3), ([0, 1], 0)])
def test_waiting_ends_when_all_ranks_of_running_jobs_have_let_go_or_the_time_is_over(
    tmp_path: Path, let_go: list[int], code: int
) -> None:
    held(job(tmp_path, "one", ranks=2), *let_go, of=2)
    job(tmp_path, "old", ended=True)
    pfo_fs("off", "--all", "-d", tmp_path, "--wait", "--timeout", 0, code=code)


# ---- a change that no process applies


@pytest.mark.parametrize(
    ("kind", "off", "daemon", "said"),
    [
        ("daemon", False, False, "no daemon runs: nothing applies this"),
        ("local", False, True, "rank 0, which schedules this job itself, gives no sign of life"),
        ("daemon", True, True, "this job is switched off: nothing applies this before `pfo-fs on`"),
    ],
)
@pytest.mark.parametrize("command", ["target", "straggler"])
def test_a_request_that_no_process_applies_says_why(
    tmp_path: Path, command: str, kind: Literal["daemon", "local"], off: bool, daemon: bool, said: str
) -> None:
    job(tmp_path, "one").claim_coordinator(bodies.ClaimBody(kind=kind, nonce="n"))
    if off:
        pfo_fs("off", "--all", "-d", tmp_path)
    with living_daemon(tmp_path) if daemon else nullcontext():
        done = pfo_fs(command, "one", "--slowdown", 1.1, "-d", tmp_path)
    assert (done.returncode, said in done.said) == (3, True), done.said


# ---- which job is the latest

HOUR = timedelta(hours=1)
EAST, WEST = timezone(timedelta(hours=9)), timezone(timedelta(hours=-8))


@pytest.mark.parametrize(
    ("running", "ended", "taken"),
    [
        ({"zz-older": NOW - 2 * HOUR, "aa-newer": NOW - HOUR}, {"zz-newest": NOW}, "aa-newer"),
        ({"east": (NOW - 3 * HOUR).astimezone(EAST), "west": (NOW - HOUR).astimezone(WEST)}, {}, "west"),
        ({"one": NOW - HOUR}, {"a-clock-that-was-a-year-ahead": NOW + timedelta(days=365)}, "one"),
    ],
)
def test_the_latest_job_is_the_running_one_that_began_last_whatever_its_name(
    tmp_path: Path, running: dict[str, datetime], ended: dict[str, datetime], taken: str
) -> None:
    for name, started in running.items():
        job(tmp_path, name, started=started)
    for name, started in ended.items():
        job(tmp_path, name, started=started, ended=True)
    (tmp_path / "jobs" / "zzz-leftover").mkdir()
    done = pfo_fs("off", "latest", "-d", tmp_path, code=0)
    assert switched(tmp_path) == {taken}
    assert taken in done.said


@pytest.mark.parametrize(
    ("started", "said"),
    [(start, "other") for start in (NOW + timedelta(days=365), "", "soon", "9" * 200)] + [(NOW - HOUR, "one, other")],
)
def test_a_command_that_writes_takes_no_latest_job_where_another_one_may_be_meant(
    tmp_path: Path, started: datetime | str, said: str
) -> None:
    job(tmp_path, "one", started=NOW - HOUR)
    job(tmp_path, "other", started=started)
    done = pfo_fs("off", "latest", "-d", tmp_path)
    assert (done.returncode, said in done.said) == (1, True), done.said
    assert switched(tmp_path) == frozenset()


def test_where_no_job_runs_a_report_takes_the_last_one_and_a_change_none(tmp_path: Path) -> None:
    job(tmp_path, "over", started=NOW - HOUR, ended=True)
    job(tmp_path, "zz-over-before", started=NOW - 2 * HOUR, ended=True)
    assert "has ended" in pfo_fs("target", "latest", "--slowdown", 1.1, "-d", tmp_path).said
    reported = pfo_fs("report", "latest", "-d", tmp_path, "-o", tmp_path / "page.html", "--json")
    assert reported.answer["job_id"] == "over"


def test_a_leftover_folder_does_not_make_a_part_of_a_name_ambiguous(tmp_path: Path) -> None:
    job(tmp_path, "2026-one")
    (tmp_path / "jobs" / "2026-leftover").mkdir()
    pfo_fs("off", "2026", "-d", tmp_path, code=0)
    assert switched(tmp_path) == {"2026-one"}
