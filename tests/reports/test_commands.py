"""`pfo-fs report` and `pfo-fs trace`, as people use them."""

from __future__ import annotations

import json
from pathlib import Path

from commands import pfo_fs

from pfo_fs.store import JobFolder, SharedDirectory


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
