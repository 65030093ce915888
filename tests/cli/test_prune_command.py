"""`pfo-fs prune`: what is over and old goes, and nothing else."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from commands import pfo_fs
from jobs import make_job, rank_infos, register

from pfo_fs.store import Files, JobFolder, OffSwitch, SharedDirectory, bodies

DAY_S = 86400.0


def prune(root: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = pfo_fs("prune", root, "--json", *arguments)
    assert done.returncode == code, done
    return done.answer


def aged(path: Path, days: float) -> None:
    """Makes all below a path as old as that."""
    then_s = time.time() - days * DAY_S
    for one in (path, *path.rglob("*")):
        os.utime(one, (then_s, then_s), follow_symlinks=False)


def job(root: Path, *, ended: bool, days: float) -> JobFolder:
    folder = make_job(root, 2)
    register(folder, rank_infos(2))
    folder.write(bodies.ProgressBody(ranks=[bodies.RankProgress(rank=0, step=5)]))
    if ended:
        folder.write(bodies.EndBody(reason="finished"))
    aged(folder.location, days)
    return folder


def test_ended_jobs_that_are_old_are_removed_archived_ones_too_and_a_dry_run_only_shows_them(tmp_path: Path) -> None:
    old, young = job(tmp_path, ended=True, days=40), job(tmp_path, ended=True, days=2)
    archived = job(tmp_path, ended=True, days=50)
    SharedDirectory(Files(tmp_path)).archive(archived.job_id)
    shown = prune(tmp_path, "-n")["removed"]
    assert old.location.exists()
    found = prune(tmp_path)
    assert [row["path"] for row in found["removed"]] == [row["path"] for row in shown]
    assert {row["path"] for row in shown} == {old.path, f"archive/{archived.job_id}"}
    assert found["bytes"] > 0
    assert not old.location.exists()
    assert young.location.exists()
    assert not list((tmp_path / "archive").iterdir())


@pytest.mark.parametrize("duration", ["30d", "1h", "0d"])
def test_a_job_that_has_not_ended_stays_however_old(tmp_path: Path, duration: str) -> None:
    running = job(tmp_path, ended=False, days=400)
    found = prune(tmp_path, "--older-than", duration, "--all-users")
    assert (found["removed"], found["running"], running.location.exists()) == ([], 1, True)


def test_a_job_that_still_writes_stays_although_its_end_is_written(tmp_path: Path) -> None:
    folder = job(tmp_path, ended=True, days=40)
    folder.write(bodies.ProgressBody(ranks=[]))
    assert prune(tmp_path, "--older-than", "0d")["removed"] == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    root = tmp_path / "pfo"
    folder = job(root, ended=True, days=40)
    (folder.location / "prof" / "link").symlink_to(outside)
    (folder.location / "sched" / "kept").symlink_to(outside / "kept")
    aged(folder.location, 40)
    (root / "jobs" / "linked").symlink_to(outside)
    (root / "archive" / "linked").symlink_to(outside)
    prune(root, code=1)
    assert not folder.location.exists()
    assert (outside / "kept").read_text() == "kept"
    assert (root / "jobs" / "linked").is_symlink(), "a link in the place of a job is left to its owner"


def test_jobs_of_other_users_stay_unless_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job(tmp_path, ended=True, days=40)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert prune(tmp_path)["of_other_users"] == 1
    assert folder.location.exists()
    assert len(prune(tmp_path, "--all-users")["removed"]) == 1
    assert not folder.location.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of two other users")
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_job_of_which_a_user_may_not_remove_all_keeps_its_name_and_content(mode: int) -> None:
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        root = Path(place) / "pfo"
        folder = job(root, ended=True, days=40)
        foreign = folder.location / "prof"
        (foreign / "0.json").write_text("{}")
        for path in (root, *root.rglob("*")):
            os.chown(path, 20002 if foreign in (path, path.parent) else 20001, 20000)
            path.chmod(mode if path == foreign else 0o2770 if path.is_dir() else 0o660)
        aged(folder.location, 40)
        before = sorted(root.rglob("*"))
        prune(job(Path(place) / "other", ended=True, days=0).location.parents[1])  # imports what another user cannot
        os.setegid(20000)
        os.seteuid(20001)
        try:
            found = prune(root, "--all-users", code=1)
        finally:
            os.seteuid(0)
            os.setegid(0)
        assert "all of it stays" in found["problems"][0]
        assert sorted(root.rglob("*")) == before


def test_what_is_no_job_and_what_an_interrupted_call_has_left_goes_when_it_is_old(tmp_path: Path) -> None:
    half = job(tmp_path, ended=True, days=40).location
    half.rename(half.with_name(".pfo-prune-abc"))
    leftover = tmp_path / "jobs" / "leftover"
    leftover.mkdir()
    assert [row["kind"] for row in prune(tmp_path, "--older-than", "1h")["removed"]] == ["half removed"]
    aged(leftover, 1)
    assert [row["kind"] for row in prune(tmp_path, "--older-than", "1h")["removed"]] == ["no job"]
    assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.parametrize("folder", ["jobs", "archive"])
def test_a_folder_with_files_of_another_program_stays_however_old(tmp_path: Path, folder: str) -> None:
    SharedDirectory(Files(tmp_path)).make_folders()
    weights = tmp_path / folder / "run-1" / "weights.bin"
    weights.parent.mkdir()
    weights.write_text("of another program")
    aged(weights.parent, 400)
    assert prune(tmp_path, "--older-than", "1h")["removed"] == []
    assert weights.exists()


def test_a_switch_goes_with_its_job_and_that_of_all_stays(tmp_path: Path) -> None:
    folder, switch = job(tmp_path, ended=False, days=40), OffSwitch(Files(tmp_path))
    for name in ("all", folder.job_id, "gone"):
        switch.turn_off(name)
    aged(tmp_path / "off", 40)
    assert [row["path"] for row in prune(tmp_path)["removed"]] == ["off/gone"]
    assert switch.read().names == {"all", folder.job_id}


def test_folders_that_lie_very_deep_are_reported_and_left(tmp_path: Path) -> None:
    folder = job(tmp_path, ended=True, days=40)
    deep = folder.location.joinpath(*["d"] * 30)
    deep.mkdir(parents=True)
    aged(folder.location, 40)
    assert "deep" in prune(tmp_path, code=1)["problems"][0]
    assert deep.exists()
