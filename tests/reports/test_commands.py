"""`pfo-fs report` and `pfo-fs trace`, as people use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import pfo_fs

from pfo_fs.store import JobFolder, SharedDirectory


def test_a_report_is_one_file_of_html(played_once: Path, tmp_path: Path) -> None:
    done = pfo_fs("report", "latest", "-d", played_once, "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert "written:" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_an_archived_job_is_found_by_a_part_of_its_id_and_as_the_latest(played: JobFolder, tmp_path: Path) -> None:
    SharedDirectory(played.files).archive(played.job_id)
    for job in ("ParetoScheduler", "latest"):
        done = pfo_fs("trace", job, "-d", played.files.root, "-o", tmp_path / "trace.csv", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["pipelines"] == 2


def test_a_job_is_found_by_the_path_of_its_folder(played_once: Path, tmp_path: Path) -> None:
    (folder,) = (played_once / "jobs").iterdir()
    done = pfo_fs("trace", folder, "-o", tmp_path / "trace.csv")
    assert done.returncode == 0, done.stderr
    assert "instructions of 2 pipelines" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "nobody"], 1, "'nobody' is not a job in"),
        (["trace", "latest", "-o", "missing/trace.csv"], 1, "cannot be written"),
        (["report", "latest", "-o", "missing/report.html"], 1, "cannot be written"),
        (["trace"], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_no_file(
    played_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = pfo_fs(*arguments, "-d", played_once)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert list(tmp_path.iterdir()) == []
