"""A shared directory that fails, hangs or goes away under a job: training goes on, and no result is lost."""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gluster_volume import Gluster
from jobs import results_by_rank
from running import Processes, wait_for
from training_job import HERE, StartJob

pytestmark = pytest.mark.slow
OUTAGE = ("the shared directory does not answer", "the shared directory cannot be written")


class Faulty:
    """Two ranks under a daemon, whose helper meets the faults that a test sets."""

    def __init__(self, start_job: StartJob, processes: Processes, tmp_path: Path, **more: str) -> None:
        self._fault = tmp_path / "fault"
        self.root = tmp_path / "pfo"
        self.daemon = processes.leader(self.root)
        path = os.pathsep.join((str(HERE / "faulty"), str(HERE.parent), str(HERE.parents[1])))
        given = {"mesh": {"pp": 2}, "work_s": 0.01}
        self.job = start_job(2, given, PYTHONPATH=path, PFO_TEST_FAULT=str(self._fault), **more)
        with self.job:
            self.job.follows(0)

    def begin(self, fault: str) -> None:
        self._fault.with_suffix(".new").write_text(fault)
        self._fault.with_suffix(".new").replace(self._fault)

    def end(self) -> None:
        self._fault.unlink()

    def outages(self) -> list[str]:
        return [line for line in list(self.job.log) if any(text in line for text in OUTAGE)]

    def ends_with_all_results(self) -> None:
        wait_for(lambda: list(results_by_rank(self.job.folder, 0)) == [0, 1], "what was measured")
        self.job.ends()
        assert len(self.job.clock_logs()) == 2


@pytest.fixture
def start(start_job: StartJob, processes: Processes, tmp_path: Path) -> Callable[..., Faulty]:
    """Starts such a job, with more variables."""
    return partial(Faulty, start_job, processes, tmp_path)


@pytest.mark.parametrize("error", ["ESTALE", "ENOSPC"])
def test_errors_of_the_directory_are_said_once_and_lose_nothing(start: Callable[..., Faulty], error: str) -> None:
    faulty = start()
    with faulty.job:
        faulty.begin(error)
        wait_for(faulty.outages, "a message about the outage")
        faulty.job.trains_on()
        faulty.end()
        faulty.job.switches()
        faulty.ends_with_all_results()
        said = faulty.outages()
        assert len(said) == len({text for text in OUTAGE for line in said if text in line}), said


def test_a_slow_directory_and_a_clock_an_hour_ahead_are_no_outage(start: Callable[..., Faulty]) -> None:
    faulty = start(PFO_TEST_CLOCK_S="3600")
    with faulty.job:
        faulty.begin("slow")
        faulty.job.switches()
        faulty.end()
        faulty.ends_with_all_results()
        assert faulty.outages() == []


def test_a_job_whose_folder_is_removed_trains_on(start: Callable[..., Faulty], tmp_path: Path) -> None:
    faulty = start()
    with faulty.job:
        away = tmp_path / "away"
        (faulty.root / faulty.job.folder.path).rename(away)  # at once; a removal file by file meets new files
        shutil.rmtree(away, ignore_errors=True)
        wait_for(faulty.outages, "a message about the outage")
        faulty.job.trains_on()
        assert faulty.job.finish() == 0
        assert faulty.job.has_default_clocks()
        assert faulty.daemon.poll() is None
        said = faulty.outages()
        assert len(said) == len({text for text in OUTAGE for line in said if text in line}), said


@pytest.mark.gluster
def test_a_mount_that_is_gone_stops_neither_training_nor_its_end(start_job: StartJob, gluster: Gluster) -> None:
    mount = gluster.mounts[0]
    with start_job(2, {"mesh": {"pp": 2}, "shared_dir": str(mount / "pfo"), "work_s": 0.02}) as job:
        job.follows(0)
        subprocess.run(["umount", "-l", str(mount)], check=True)
        job.trains_on()
        assert job.finish() == 0
        assert list(mount.iterdir()) == [], "nothing is written beside the volume, on the host's own disk"
        assert job.has_default_clocks()
