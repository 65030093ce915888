"""Fixtures of the tests that run real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training_job import Job


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(ranks: int, given: dict[str, Any], **options: Any) -> Job:
        jobs.append(Job(tmp_path, ranks, given, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
