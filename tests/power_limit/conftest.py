"""Fixtures for power limits."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def sim_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulated GPUs have a folder of their own in each test."""
    folder = tmp_path / "sim"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(folder))
    for variable in ("PFO_FS_SIM_FAULT", "PFO_FS_SIM_MODEL", "PFO_FS_DRY_RUN", "PFO_FS_GPU"):
        monkeypatch.delenv(variable, raising=False)
    return folder
