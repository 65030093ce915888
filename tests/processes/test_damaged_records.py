"""Records that other users changed, put before processes that run: none of them ends, none stands still.

`tests/store/test_fuzz.py` shows the same for every reader by itself. Here a real daemon, a real helper and real
training meet several such records at once; each example puts back what lay there before.
"""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jobs import results_by_rank
from record_corpus import Place, damaged_records, places, plant
from running import Processes, wait_for
from training_job import StartJob

# Processes that run do not start afresh for each example: to make a failing one smaller would show nothing.
EXAMPLES = settings(
    max_examples=15, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate], database=None
)


@pytest.mark.slow
def test_training_its_helper_and_the_daemon_go_on_whatever_lies_in_the_jobs_folder(
    tmp_path: Path, start_job: StartJob, processes: Processes
) -> None:
    (tmp_path / "scene").mkdir()
    root, snapshot = tmp_path / "scene" / "pfo", tmp_path / "snapshot"
    with (tmp_path / "daemon.log").open("w") as log:
        daemon = processes.leader(root, stdout=log)
    job = start_job(2, {"mesh": {"pp": 2}, "shared_dir": str(root)})
    with job:
        job.follows(0)
        job.switches()
        wait_for(lambda: list(results_by_rank(job.folder, 1)) == [0, 1], what="results")
        shutil.copytree(root, snapshot)
        known = [place for place in places(job.folder, 1) if (snapshot / place.path).exists() or place.kind == "end"]
        helpers = [line["helper_pid"] for line in job.having("helper_pid") if line["helper_pid"]]

        @EXAMPLES
        @given(records=st.lists(damaged_records(snapshot, known), min_size=1, max_size=10))
        def check(records: list[tuple[Place, bytes]]) -> None:
            for place, data in records:
                plant(root, place, data)
            job.trains_on(30)
            assert job.is_running
            for pid in helpers:
                os.kill(pid, 0)
            for place, _ in records:
                (root / place.path).unlink(missing_ok=True)
                if (snapshot / place.path).exists():
                    plant(root, place, (snapshot / place.path).read_bytes())

        check()
        assert daemon.poll() is None
        assert job.finish() == 0
    assert job.has_default_clocks()
    assert os.listdir(root.parent) == ["pfo"]
