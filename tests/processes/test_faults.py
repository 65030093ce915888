"""A shared directory that fails, hangs or goes away under a job: training goes on, and no result is lost."""

import os
import subprocess
from pathlib import Path

import pytest
from gluster_volume import Gluster
from jobs import results_by_rank
from running import Processes, wait_for
from training_job import HERE, StartJob

pytestmark = pytest.mark.slow
OUTAGE = ("the shared directory does not answer", "the shared directory cannot be written")


@pytest.mark.parametrize("fault", ["ESTALE", "ENOSPC", "slow"])
def test_errors_of_the_directory_are_said_once_and_lose_nothing_and_a_slow_one_is_no_outage(
    start_job: StartJob, processes: Processes, tmp_path: Path, fault: str
) -> None:
    """The host's clock is an hour ahead, which changes nothing."""
    given_fault, new_fault = tmp_path / "fault", tmp_path / "fault.new"
    processes.leader(tmp_path / "pfo")
    path = os.pathsep.join((str(HERE / "faulty"), str(HERE.parent), str(HERE.parents[1])))
    faults = {"PYTHONPATH": path, "PFO_TEST_FAULT": str(given_fault), "PFO_TEST_CLOCK_S": "3600"}
    job = start_job(2, {"mesh": {"pp": 2}, "work_s": 0.01}, **faults)

    def outages() -> list[str]:
        return [line for line in list(job.log) if any(text in line for text in OUTAGE)]

    with job:
        job.follows(0)
        new_fault.write_text(fault)
        new_fault.replace(given_fault)
        if fault == "slow":
            job.switches()
            given_fault.unlink()
        else:
            wait_for(outages, "a message about the outage")
            job.trains_on()
            given_fault.unlink()
            job.switches()
        wait_for(lambda: list(results_by_rank(job.folder, 0)) == [0, 1], "what was measured")
        job.ends()
        assert len(job.clock_logs()) == 2
    said = outages()
    assert bool(said) == (fault != "slow")
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
