"""`pfo-fs off` and the removal of the directory, on real training without a daemon."""

from __future__ import annotations

import shutil

import pytest
from commands import pfo_fs
from running import wait_for
from training_job import StartJob


@pytest.mark.slow
def test_without_a_daemon_clocks_are_freed_by_the_switch_and_by_removing_the_directory(start_job: StartJob) -> None:
    job = start_job(2, {"mesh": {"pp": 2}}, torchrun=True)

    def last_clocks() -> set[tuple[str, int]]:
        return {(log[-1]["action"], log[-1]["mhz"]) for log in job.clock_logs().values()}

    with job:
        job.follows(0)
        job.switches("all: 900\n")
        done = pfo_fs("off", "--all", "--wait", "--json", "-d", job.shared_dir, code=0)
        assert [row["held_ranks"] for row in done.answer["jobs"]] == [[0, 1]]
        wait_for(lambda: last_clocks() == {("reset", 0)}, "default clocks")
        job.trains_on(20)
        assert last_clocks() == {("reset", 0)}, "and they stay so"
        pfo_fs("on", "--all", "--wait", "--json", "-d", job.shared_dir, code=0)
        wait_for(lambda: all(log[-1]["mhz"] == 900 or log[-2]["mhz"] == 900 for log in job.clock_logs().values()))
        shutil.rmtree(job.shared_dir, ignore_errors=True)
        shutil.rmtree(job.shared_dir, ignore_errors=True)  # what was written meanwhile
        steps = max(line["step"] for line in job.having("step"))
        wait_for(lambda: last_clocks() == {("reset", 0)} and job.of(step=steps + 200), "default clocks that stay")
        assert job.finish() == 0
