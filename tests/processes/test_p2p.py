"""`pfo-fs profile-p2p` with two real processes, on simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from running import Processes


@pytest.mark.slow
def test_the_power_of_a_waiting_gpu_is_measured_between_two_processes(tmp_path: Path, processes: Processes) -> None:
    environment = {**os.environ, "PFO_FS_GPU": "simulated", "PFO_FS_SIM_DIR": str(tmp_path / "sim")}
    command = processes.python(
        "-m", "pfo_fs", "profile-p2p", "--seconds", "1", "--json", env=environment, stderr=subprocess.DEVNULL
    )
    output, _ = command.communicate()
    assert command.returncode == 0, output
    found = json.loads(output)
    assert found["rows"][0]["clock_mhz"] == 0
    assert found["rows"][0]["power_w"] > 0
