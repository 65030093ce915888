"""`pfo-fs report` and `pfo-fs trace`, as people use them."""

from __future__ import annotations

import json
from pathlib import Path

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
        done = pfo_fs("trace", job, "-d", played.files.root, "-o", tmp_path / "trace.json", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["iterations"] == 5


def test_a_job_is_found_by_the_path_of_its_folder(played_once: Path, tmp_path: Path) -> None:
    (folder,) = (played_once / "jobs").iterdir()
    done = pfo_fs("trace", folder, "-o", tmp_path / "trace.json", "--number", "1")
    assert done.returncode == 0, done.stderr
    assert "under schedule 1," in done.stdout
    assert "reconstructed" in done.stdout


def test_a_job_that_is_not_there_is_exit_code_1(played_once: Path, tmp_path: Path) -> None:
    done = pfo_fs("report", "nobody", "-d", played_once, "-o", tmp_path / "report.html")
    assert done.returncode == 1
    assert "'nobody' is not a job in" in done.stderr


def test_a_schedule_without_results_is_exit_code_1(played_once: Path, tmp_path: Path) -> None:
    done = pfo_fs("trace", "latest", "-d", played_once, "-o", tmp_path / "trace.json", "--number", "99")
    assert done.returncode == 1
    assert "no results of schedule 99; it has results of 0, 1," in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_exit_code_1(played_once: Path, tmp_path: Path) -> None:
    done = pfo_fs("report", "latest", "-d", played_once, "-o", tmp_path / "nowhere" / "report.html")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


def test_wrong_usage_is_exit_code_2() -> None:
    assert pfo_fs("trace").returncode == 2
