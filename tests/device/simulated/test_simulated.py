"""The simulated GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clock import VirtualTime

from pfo_fs.device.gpu.interface import DryRunGpu
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.device.simulated.gpu import SimulatedGpu, SimulatedKernels
from pfo_fs.device.simulated.physics import A100
from pfo_fs.errors import DeviceError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_SIM_DIR", str(tmp_path))
    monkeypatch.delenv("PFO_FS_DRY_RUN", raising=False)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return VirtualTime(monkeypatch, "pfo_fs.device.simulated")


def test_an_instruction_takes_the_time_and_energy_of_its_clock(passing: VirtualTime) -> None:
    gpu = SimulatedGpu("a")
    kernels = SimulatedKernels("a", stages=8, time_scale=5)
    gpu.lock_clock_mhz(900)
    t0, e0 = passing.now_ns / 1e9, gpu.energy_j()
    kernels.run("forward", stage=7)
    t1, e1 = passing.now_ns / 1e9, gpu.energy_j()
    model = kernels.model("forward", 7)
    assert model.time_s(900) == pytest.approx(A100.coefficients("forward", last_stage=True).time_s(900) / 5)
    assert t1 - t0 >= model.time_s(900)
    idle_j = A100.blocking_power_w * (t1 - t0 - model.time_s(900))
    assert e1 - e0 == pytest.approx(model.power_w(900) * model.time_s(900) + idle_j, rel=0.03)


def test_a_clock_that_changes_while_an_instruction_runs_changes_the_rest_of_it(passing: VirtualTime) -> None:
    gpu = SimulatedGpu("a")
    kernels = SimulatedKernels("a", time_scale=1)
    gpu.lock_clock_mhz(1410)
    model = kernels.model("forward", 0)
    start_ns, e0 = passing.now_ns, gpu.energy_j()
    kernels.start("forward")
    passing.sleep(0.02)
    gpu.lock_clock_mhz(600)
    changed_ns = gpu._state.words[2]
    kernels.finish()
    end_ns = gpu._state.words[12]
    share = (changed_ns - start_ns) / 1e9 / model.time_s(1410)
    assert (end_ns - changed_ns) / 1e9 == pytest.approx((1 - share) * model.time_s(600), abs=0.002)
    expected_j = model.power_w(1410) * share * model.time_s(1410) + model.power_w(600) * (end_ns - changed_ns) / 1e9
    idle_j = A100.blocking_power_w * (passing.now_ns - end_ns) / 1e9
    assert gpu.energy_j() - e0 == pytest.approx(expected_j + idle_j, rel=0.03)


def test_a_foreign_state_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.state").write_bytes(b"x" * 128)
    with pytest.raises(DeviceError, match="release"):
        SimulatedGpu("a")
    (tmp_path / "b.state").write_bytes(b"x")
    with pytest.raises(DeviceError, match="not the state"):
        SimulatedGpu("b")


def test_a_dry_run_reads_everything_and_sets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_DRY_RUN", "1")
    monkeypatch.setenv("PFO_FS_DRY_RUN_LOG", str(tmp_path / "dry.log"))
    gpu = open_gpu("simulated:a")
    assert isinstance(gpu, DryRunGpu)
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(900)
    gpu.reset_clocks()
    logged = [json.loads(line) for line in (tmp_path / "dry.log").read_text().splitlines()]
    assert [(line["action"], line["mhz"]) for line in logged] == [("lock", 900), ("reset", 0)]
    assert 900 in gpu.supported_clocks_mhz()
    assert gpu.energy_j() >= 0
    assert (tmp_path / "a.log").read_text() == ""


def test_unknown_specs_are_refused() -> None:
    for spec in ("", "nvml", "nvml:", "simulated:", "cuda:0"):
        with pytest.raises(DeviceError, match="does not name a GPU"):
            open_gpu(spec)
    assert open_gpu("none").supported_clocks_mhz() == []
