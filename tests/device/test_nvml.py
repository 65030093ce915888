"""GPUs through NVML, with a fake `pynvml` in place of the real module."""

from __future__ import annotations

import sys
import time

import pytest
from fake_nvml import UUIDS, FakeNvml

from pfo_fs.device import nvml
from pfo_fs.device.nvml import NvmlGpu, uuid_of_visible_device
from pfo_fs.errors import DeviceError, DevicePermissionError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return module


def test_clocks_are_those_of_the_highest_memory_clock_and_are_locked_on_the_right_gpu(fake: FakeNvml) -> None:
    gpu = NvmlGpu(UUIDS[1])
    assert gpu.name == "NVIDIA A100"
    assert gpu.supported_clocks_mhz() == [1410, 1395, 210]
    gpu.lock_clock_mhz(1395)
    gpu.reset_clocks()
    assert fake.locked == [(1, 1395, 1395), (1, "reset")]
    gpu.close()
    assert fake.open == 0


def test_without_permission_the_message_says_what_to_grant(fake: FakeNvml) -> None:
    fake.fails = {"nvmlDeviceSetGpuLockedClocks": 4, "nvmlDeviceResetGpuLockedClocks": 4}
    gpu = NvmlGpu(UUIDS[0])
    for words in ("root", "CAP_SYS_ADMIN", "zeusd"):
        assert words in gpu.why_clocks_stay()
    with pytest.raises(DevicePermissionError, match="1395 MHz"):
        gpu.lock_clock_mhz(1395)


def test_the_energy_counter_is_in_joules(fake: FakeNvml) -> None:
    gpu = NvmlGpu(UUIDS[0])
    fake.energy_mj = 7_500
    assert gpu.energy_j() == 7.5


def test_throttling_is_reported_with_its_reasons_and_a_locked_clock_is_not_throttling(fake: FakeNvml) -> None:
    gpu = NvmlGpu(UUIDS[0])
    fake.reasons = 0x02 | 0x01  # application clocks, idle
    assert gpu.throttled() == ""
    fake.reasons = 0x20 | 0x04
    assert gpu.throttled() == "power limit, thermal slowdown"


def test_an_old_driver_is_called_by_the_old_name_of_the_function(fake: FakeNvml) -> None:
    fake.reasons = 0x08
    old = fake.nvmlDeviceGetCurrentClocksEventReasons
    older = type("OlderNvml", (), {"nvmlDeviceGetCurrentClocksThrottleReasons": staticmethod(old)})
    gpu = NvmlGpu(UUIDS[0])
    gpu._nvml = older
    assert gpu.throttled() == "hardware slowdown"


def test_without_a_counter_power_is_integrated(fake: FakeNvml) -> None:
    fake.fails["nvmlDeviceGetTotalEnergyConsumption"] = 3
    gpu = NvmlGpu(UUIDS[0])
    assert gpu.energy_j() == 0.0
    t0 = time.monotonic()
    time.sleep(0.03)
    fake.power_mw = 300_000
    energy_j = gpu.energy_j()
    assert energy_j == pytest.approx(200 * (time.monotonic() - t0), rel=0.1)


def test_a_counter_that_fails_for_another_reason_is_an_error(fake: FakeNvml) -> None:
    fake.fails["nvmlDeviceGetTotalEnergyConsumption"] = 15
    with pytest.raises(DeviceError, match="fallen off the bus"):
        NvmlGpu(UUIDS[0])


def test_known_errors_are_explained_with_their_code_and_unknown_ones_keep_nvmls_text(fake: FakeNvml) -> None:
    fake.fails["nvmlInit"] = 9
    with pytest.raises(DeviceError, match=r"driver is not loaded \(NVML error 9\)"):
        NvmlGpu(UUIDS[0])
    fake.fails["nvmlInit"] = 999
    with pytest.raises(DeviceError, match="code 999"):
        NvmlGpu(UUIDS[0])


def test_an_unknown_uuid_and_mig_are_refused(fake: FakeNvml) -> None:
    with pytest.raises(DeviceError, match="no such GPU"):
        NvmlGpu("GPU-nowhere")
    with pytest.raises(DeviceError, match="MIG slice"):
        NvmlGpu("MIG-1234")
    fake.mig = True
    with pytest.raises(DeviceError, match="MIG mode"):
        NvmlGpu(UUIDS[0])


def test_a_gpu_without_mig_is_accepted(fake: FakeNvml) -> None:
    fake.fails["nvmlDeviceGetMigMode"] = 3
    assert NvmlGpu(UUIDS[0]).uuid == UUIDS[0]


@pytest.mark.parametrize(
    ("variable", "index", "expected"),
    [
        (None, 2, UUIDS[2]),
        ("2,0", 0, UUIDS[2]),
        ("2,0", 1, UUIDS[0]),
        (" 1 , 2", 1, UUIDS[2]),
        ("GPU-bbbb", 0, UUIDS[2]),
        (f"{UUIDS[1]},0", 0, UUIDS[1]),
    ],
)
def test_visible_devices_are_mapped_to_uuids(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str | None, index: int, expected: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert uuid_of_visible_device(index) == expected
    assert fake.open == 0


@pytest.mark.parametrize("variable", ["", "-1", "7", "GPU-aaaa", "0,-1,1", "no-dev"])
def test_what_cuda_would_not_show_is_an_error(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """The list ends at the first entry that names no device, or more than one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(DeviceError, match="not visible"):
        uuid_of_visible_device(1)


def test_a_visible_mig_slice_is_refused(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-aaaa")
    with pytest.raises(DeviceError, match="MIG slice"):
        uuid_of_visible_device(0)


def test_ordinals_among_different_gpus_need_the_bus_order(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA puts the fastest first, NVML goes by the bus: an ordinal could mean the neighbour's GPU."""
    fake.names = ["NVIDIA A100", "NVIDIA A40", "NVIDIA A100"]
    with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER"):
        uuid_of_visible_device(0)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert uuid_of_visible_device(1) == UUIDS[1]
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    assert uuid_of_visible_device(0) == UUIDS[1]


def test_a_missing_package_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match="nvidia-ml-py"):
        nvml.NvmlGpu(UUIDS[0])
