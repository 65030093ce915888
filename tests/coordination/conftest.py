"""Fixtures of coordinators."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import make_job, rank_infos, register

from pfo_fs.store import JobFolder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = make_job(tmp_path, 1, 2)
    register(folder, rank_infos(1, 2))
    return folder
