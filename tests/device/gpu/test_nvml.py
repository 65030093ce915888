"""GPUs through NVML, with a fake `pynvml` in place of the real module."""

from __future__ import annotations

import sys

import pytest
from clock import VirtualTime
from fake_nvml import UUIDS, FakeNvml

from pfo_fs.device.gpu.nvml import NvmlGpu
from pfo_fs.errors import DeviceError


def test_throttling_is_reported_with_its_reasons_and_a_locked_clock_is_not_throttling(fake: FakeNvml) -> None:
    gpu = NvmlGpu(UUIDS[0])
    fake.reasons = 0x02 | 0x01  # application clocks, idle
    assert gpu.clock_seen().held_back == ""
    fake.reasons = 0x20 | 0x04
    assert gpu.clock_seen().held_back == "power limit, thermal slowdown"


@pytest.mark.parametrize("code", [0, 13])
def test_a_package_or_a_driver_that_has_the_old_name_alone_is_called_by_it(fake: FakeNvml, code: int) -> None:
    fake.reasons = 0x08
    fake.fails["nvmlDeviceGetCurrentClocksEventReasons"] = code
    assert NvmlGpu(UUIDS[0]).clock_seen().held_back == "hardware slowdown"


def test_without_a_counter_power_is_integrated(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    passing = VirtualTime(monkeypatch, "pfo_fs.device.gpu")
    fake.fails["nvmlDeviceGetTotalEnergyConsumption"] = 3
    gpu = NvmlGpu(UUIDS[0])
    assert gpu.energy_j() == 0.0
    passing.sleep(0.03)
    fake.power_mw = 300_000
    assert gpu.energy_j() == pytest.approx(200 * 0.03, rel=0.01)


def test_known_errors_are_explained_with_their_code_and_unknown_ones_keep_nvmls_text(fake: FakeNvml) -> None:
    fake.fails["nvmlInit"] = 9
    with pytest.raises(DeviceError, match=r"driver is not loaded \(NVML error 9 of nvmlInit\)"):
        NvmlGpu(UUIDS[0])
    fake.fails["nvmlInit"] = 777
    with pytest.raises(DeviceError, match="code 777"):
        NvmlGpu(UUIDS[0])


def test_an_unknown_uuid_and_mig_are_refused(fake: FakeNvml) -> None:
    with pytest.raises(DeviceError, match="no such GPU"):
        NvmlGpu("GPU-nowhere")
    with pytest.raises(DeviceError, match="MIG slice"):
        NvmlGpu("MIG-1234")
    fake.mig = True
    with pytest.raises(DeviceError, match="MIG mode"):
        NvmlGpu(UUIDS[0])


def test_a_missing_package_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match="nvidia-ml-py"):
        NvmlGpu(UUIDS[0])
