"""A shared directory that fails, hangs or goes away under a job: training goes on, and no result is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from gluster_volume import Gluster
from jobs import results_by_rank
from running import Processes
from training_job import HERE, Job, all_made, told_on_failure

from pfo_fs.store import Files, SharedDirectory, bodies

pytestmark = pytest.mark.slow
Wait = Callable[..., Any]
OUTAGE = ("the shared directory does not answer", "the shared directory cannot be written")


class Faulty:
    """Two ranks under a daemon, whose helper meets the faults that a test sets."""

    def __init__(
        self, start_job: Callable[..., Job], processes: Processes, tmp_path: Path, wait_for: Wait, **more: str
    ) -> None:
        self._fault, self._wait_for = tmp_path / "fault", wait_for
        self.root = tmp_path / "pfo"
        self.daemon = processes.daemon(self.root)
        self.shared = SharedDirectory(Files(self.root, create=True))
        wait_for(self.shared.read_daemon, "the daemon")
        path = os.pathsep.join((str(HERE / "faulty"), str(HERE.parent), str(HERE.parents[1])))
        given = {"mesh": {"pp": 2}, "work_s": 0.01}
        self.job = start_job(2, given, PYTHONPATH=path, PFO_TEST_FAULT=str(self._fault), **more)
        with told_on_failure(self.job):
            wait_for(all_made(self.job, 2), "both ranks")
            wait_for(lambda: len(self.job.first_steps_of(0)) == 2, "the first schedule")

    def begin(self, fault: str) -> None:
        self._fault.with_suffix(".new").write_text(fault)
        self._fault.with_suffix(".new").replace(self._fault)

    def end(self) -> None:
        self._fault.unlink()

    def trains_on(self) -> None:
        at = max(line["step"] for line in self.job.having("step"))
        self._wait_for(lambda: len(self.job.of(step=at + 60)) == 2, "sixty more steps")

    def outages(self) -> list[str]:
        return [line for line in list(self.job.log) if any(text in line for text in OUTAGE)]

    def switches(self) -> None:
        self.job.put_yaml("all: 1200\n")
        self._wait_for(lambda: len(self.job.first_steps_of(1)) == 2, "the switch")
        assert len(set(self.job.first_steps_of(1).values())) == 1

    def ends_with_all_results(self) -> None:
        folder = self.job.folder
        self._wait_for(lambda: list(results_by_rank(folder, 0)) == [0, 1], "what was measured")
        self.ends()
        assert self._wait_for(lambda: folder.read(bodies.EndBody), "the end").reason == "finished"

    def ends(self) -> None:
        assert self.job.finish() == 0
        logs = self.job.clock_logs()
        assert len(logs) == 2
        assert all(log[-1]["action"] == "reset" for log in logs.values())


@pytest.mark.parametrize("error", ["ESTALE", "EIO", "EACCES", "ENOSPC", "EDQUOT"])
def test_errors_of_the_directory_are_said_once_and_lose_nothing(
    start_job: Callable[..., Job], processes: Processes, tmp_path: Path, wait_for: Wait, error: str
) -> None:
    faulty = Faulty(start_job, processes, tmp_path, wait_for)
    with told_on_failure(faulty.job):
        faulty.begin(error)
        wait_for(faulty.outages, "a message about the outage")
        faulty.trains_on()
        faulty.end()
        faulty.switches()
        faulty.ends_with_all_results()
        said = faulty.outages()
        assert len(said) == len({text for text in OUTAGE for line in said if text in line}), said


def test_a_directory_that_takes_a_fifth_of_a_second_per_call_is_only_slow(
    start_job: Callable[..., Job], processes: Processes, tmp_path: Path, wait_for: Wait
) -> None:
    faulty = Faulty(start_job, processes, tmp_path, wait_for)
    with told_on_failure(faulty.job):
        faulty.begin("slow")
        faulty.switches()
        faulty.end()
        faulty.ends_with_all_results()
        assert faulty.outages() == []


def test_a_host_whose_clock_is_an_hour_ahead_is_served_as_others_are(
    start_job: Callable[..., Job], processes: Processes, tmp_path: Path, wait_for: Wait
) -> None:
    faulty = Faulty(start_job, processes, tmp_path, wait_for, PFO_TEST_CLOCK_S="3600")
    with told_on_failure(faulty.job):
        faulty.switches()
        faulty.ends_with_all_results()
        assert faulty.outages() == []


def test_a_job_whose_folder_is_removed_trains_on(
    start_job: Callable[..., Job], processes: Processes, tmp_path: Path, wait_for: Wait
) -> None:
    faulty = Faulty(start_job, processes, tmp_path, wait_for)
    with told_on_failure(faulty.job):
        away = tmp_path / "away"
        (faulty.root / faulty.job.folder.path).rename(away)  # at once; a removal file by file meets new files
        shutil.rmtree(away, ignore_errors=True)
        wait_for(faulty.outages, "a message about the outage")
        faulty.trains_on()
        faulty.ends()
        assert faulty.daemon.poll() is None
        said = faulty.outages()
        assert len(said) == len({text for text in OUTAGE for line in said if text in line}), said


def test_a_host_that_was_frozen_goes_on_where_it_was(
    start_job: Callable[..., Job], processes: Processes, tmp_path: Path, wait_for: Wait
) -> None:
    faulty = Faulty(start_job, processes, tmp_path, wait_for)
    ranks = [psutil.Process(process.pid) for process in faulty.job.processes]
    everything = [each for rank in ranks for each in (rank, *rank.children(recursive=True))]
    with told_on_failure(faulty.job):
        for process in everything:
            process.send_signal(signal.SIGSTOP)
        try:
            beat = faulty.shared.read_daemon().counter  # type: ignore[union-attr]
            wait_for(lambda: faulty.shared.read_daemon().counter >= beat + 6, "heartbeats")  # type: ignore[union-attr]
        finally:
            for process in everything:
                process.send_signal(signal.SIGCONT)
        faulty.trains_on()
        faulty.switches()
        faulty.ends_with_all_results()


@pytest.mark.gluster
def test_a_mount_that_is_gone_stops_neither_training_nor_its_end(
    start_job: Callable[..., Job], gluster: Gluster, wait_for: Wait
) -> None:
    mount = gluster.mounts[0]
    job = start_job(2, {"mesh": {"pp": 2}, "shared_dir": str(mount / "pfo"), "work_s": 0.02})
    with told_on_failure(job):
        wait_for(all_made(job, 2), "both ranks")
        wait_for(lambda: len(job.first_steps_of(0)) == 2, "the first schedule")
        subprocess.run(["umount", "-l", str(mount)], check=True)
        at = max(line["step"] for line in job.having("step"))
        wait_for(lambda: len(job.of(step=at + 60)) == 2, "sixty more steps")
        assert job.finish() == 0
        assert list(mount.iterdir()) == [], "nothing is written beside the volume, on the host's own disk"
        assert all(log[-1]["action"] == "reset" for log in job.clock_logs().values())
