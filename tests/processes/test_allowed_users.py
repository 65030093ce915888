"""`pfo-fs-daemon --allow-users`: a daemon serves the jobs of some users of a directory that many share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import make_job
from running import Processes, wait_for

from pfo_fs.store import JobFolder, bodies

ALICE, BOB = 12345, 23456


def give(folder: JobFolder, user: int) -> None:
    for above, _, names in os.walk(folder.location):
        for path in (Path(above), *(Path(above) / name for name in names)):
            os.chown(path, user, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make jobs of other users")
def test_only_jobs_of_allowed_users_are_served_and_files_of_others_in_them_are_refused(
    tmp_path: Path, processes: Processes
) -> None:
    root = tmp_path / "pfo"
    root.mkdir()
    root.chmod(0o2770)
    jobs = {name: make_job(root, 1, scheduler="Manual") for name in ("of bob", "of alice", "with bob's file")}
    for name, folder in jobs.items():
        give(folder, BOB if name == "of bob" else ALICE)
    planted = jobs["with bob's file"]
    os.chown(planted.location / "job.json", BOB, -1)
    daemon = processes.daemon(root, "--allow-users", f"root,{ALICE}", "--log-level", "info")
    wait_for(lambda: jobs["of alice"].read(bodies.ClaimBody), "the claim of alice's job")
    seen: list[str] = []
    assert daemon.stdout
    while sum(folder.job_id in line for folder in (planted, jobs["of bob"]) for line in seen) < 2:
        seen.append(daemon.stdout.readline())
        assert seen[-1], "the daemon has ended"
    text = "".join(seen)
    assert f"{jobs['of bob'].job_id}: belongs to user {BOB}, whose jobs are not served" in text
    assert f"job.json: belongs to user {BOB}, not read" in text
    assert jobs["of bob"].read(bodies.ClaimBody) is None
    assert planted.read(bodies.ClaimBody) is None


@pytest.mark.parametrize("names", ["nobody-of-this-name", " , "])
def test_a_list_without_a_known_user_is_wrong_usage(tmp_path: Path, names: str) -> None:
    command = [sys.executable, "-m", "pfo_fs", "daemon", str(tmp_path), "--allow-users", names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--allow-users" in done.stderr
