"""Fixtures of coordinators."""

from pathlib import Path

import pytest
from clock import Clock
from coordinator_jobs import Job
from jobs import make_job, register

from pfo_fs.store import JobFolder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return register(make_job(tmp_path, 1, 2))


@pytest.fixture
def job(folder: JobFolder, clock: Clock) -> Job:
    """A job under the scheduler's schedule 0."""
    return Job(folder, clock).poll()
