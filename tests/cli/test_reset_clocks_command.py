"""`pfo-fs reset-clocks`, on simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pfo_fs.cli import app
from pfo_fs.device.simulated import SimulatedGpu


def test_clocks_and_limit_that_a_killed_job_has_left_are_reset(sim_dir: Path) -> None:
    gpu = SimulatedGpu("left")
    gpu.lock_clock_mhz(900)
    gpu.set_power_limit_w(200)
    done = CliRunner().invoke(app, ["reset-clocks", "simulated:left", "--power-limit", "400"])
    assert done.exit_code == 0
    assert '"reset"' in (sim_dir / "left.log").read_text().splitlines()[-2]
    assert gpu.power_limit_w() == 400


def test_a_gpu_that_cannot_be_reset_is_named_and_the_next_one_is_reset(sim_dir: Path) -> None:
    SimulatedGpu("good").lock_clock_mhz(900)
    done = CliRunner().invoke(app, ["reset-clocks", "nonsense", "simulated:good"])
    assert (done.exit_code, "nonsense" in done.output) == (1, True)
    assert '"reset"' in (sim_dir / "good.log").read_text().splitlines()[-1]


def test_without_a_name_no_gpu_of_another_job_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert CliRunner().invoke(app, ["reset-clocks"]).exit_code == 2
