"""A job that was played in virtual time, once for all tests here, and small ones with parts missing."""

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from simulated_jobs import KIND, converged

from pfo_fs.device.simulated.physics import A100
from pfo_fs.planner import make_pipeline
from pfo_fs.reports.collect import JobData, collect_job
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Nuisances, Play
from pfo_fs.store import Files, JobFolder, SharedDirectory


@pytest.fixture(scope="session")
def played_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the job; of the processes that share the tests (pytest-xdist), the first one plays it for all."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "played"
    with FileLock(f"{folder}.lock"):
        folder.mkdir(exist_ok=True)
        if not (folder / "complete").exists():
            play_job(folder / "pfo")
            (folder / "complete").touch()
    return folder / "pfo"


def play_job(root: Path) -> None:
    """Four stages, four micro-batches, two pipelines of which a person says that one is slow for a while."""
    cluster = Cluster(
        make_pipeline("1f1b", 4, 4),
        ModelTruth(A100, 4, slowest_mhz=810),
        Nuisances(time_jitter=0.0),
        pipelines=2,
        nodes=KIND,
        seed=0,  # a plan was measured and stays before the straggler is announced, and after it has gone
    )
    play = Play(cluster, root, PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    for step, _ in enumerate(play.run(150)):
        if step == 120:
            (play.folder.location / "schedule.yaml").write_text("straggler: {slowdown: 1.2, pipeline: 1}\n")
        if step == 140:
            play.folder.remove_file("schedule.yaml")
    converged(play)


@pytest.fixture
def played(played_once: Path, tmp_path: Path) -> JobFolder:
    """A copy of that job, to be spoiled."""
    shutil.copytree(played_once, tmp_path / "pfo")
    return the_job(tmp_path / "pfo")


@pytest.fixture(scope="session")
def data(played_once: Path) -> JobData:
    """That job, collected."""
    return collect_job(the_job(played_once))


def the_job(root: Path) -> JobFolder:
    shared = SharedDirectory(Files(root, create=False))
    folder = shared.job(shared.job_ids()[-1])
    folder.read_job()
    return folder
