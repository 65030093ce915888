"""What every GPU must do behind the interface `Gpu`: a simulated one, one through NVML, one through AMD SMI."""

import sys
from pathlib import Path
from typing import TypeAlias

import pytest
from clock import VirtualTime
from fake_amdsmi import ADDRESSES, HIGHEST, LOWEST, FakeAmdSmi
from fake_nvml import UUIDS, FakeNvml
from torchrun import clocks_mhz

from pfo_fs.device.gpu.nvml import NvmlGpu
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.errors import DeviceError, DevicePermissionError


class NvmlBench:
    """A GPU through NVML, and the means to look behind the interface."""

    spec, way = f"nvml:{UUIDS[1]}", "auto"
    missing_spec = "nvml:GPU-cccc"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeNvml()
        monkeypatch.setitem(sys.modules, "pynvml", self.fake)

    def refuse_all_changes(self) -> None:
        for what in ("SetGpuLockedClocks", "ResetGpuLockedClocks", "SetPowerManagementLimit"):
            self.fake.fails[f"nvmlDevice{what}"] = 4

    def fail_next_lock(self) -> None:
        self.fake.fails["nvmlDeviceSetGpuLockedClocks"] = 10

    def clock_changes(self) -> list[int]:
        assert {gpu for gpu, _ in self.fake.locked} <= {1}, "another GPU was changed"
        return [mhz for _, mhz in self.fake.locked]

    def left_open(self) -> int:
        return self.fake.open


class SimulatedBench:
    spec, way = "simulated:a", "auto"
    missing_spec = "simulated:no/such/name"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder

    def refuse_all_changes(self) -> None:
        self.monkeypatch.setenv("PFO_FS_SIM_FAULT", "permission")

    def fail_next_lock(self) -> None:
        self.monkeypatch.setenv("PFO_FS_SIM_FAULT", "lock:1")

    def clock_changes(self) -> list[int]:
        return clocks_mhz(self.folder / "a.log")

    def left_open(self) -> int:
        maps = Path("/proc/self/maps").read_text()
        return maps.count(f"{self.folder}/a.state")


class AmdBench:
    spec, way = f"amd:{ADDRESSES[1]}", "amdsmi"
    missing_spec = "amd:0000:ff:00.0"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeAmdSmi()
        monkeypatch.setitem(sys.modules, "amdsmi", self.fake)

    def refuse_all_changes(self) -> None:
        self.fake.fails = dict.fromkeys(("set_gpu_clk_range", "set_gpu_perf_level", "set_power_cap"), 10)

    def fail_next_lock(self) -> None:
        self.fake.fails = {"set_gpu_clk_range": 1}

    def clock_changes(self) -> list[int]:
        assert {gpu for gpu, _ in self.fake.changes} <= {1}, "another GPU was changed"
        return [mhz for _, mhz in self.fake.changes]

    def left_open(self) -> int:
        return 0  # AMD SMI stays open until the process ends


Bench: TypeAlias = NvmlBench | SimulatedBench | AmdBench


@pytest.fixture(params=["simulated", "nvml", "amd"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, sim_dir: Path) -> Bench:
    if request.param == "simulated":
        return SimulatedBench(monkeypatch, sim_dir)
    return NvmlBench(monkeypatch) if request.param == "nvml" else AmdBench(monkeypatch)


def test_a_gpu_says_what_it_is_and_which_clocks_it_offers(bench: Bench) -> None:
    gpu = open_gpu(bench.spec, bench.way)
    assert gpu.name
    assert gpu.uuid
    assert gpu.clock_seen().held_back == "", "it is idle"
    clocks = gpu.supported_clocks_mhz()
    assert clocks == sorted(set(clocks), reverse=True)
    assert clocks[-1] > 0
    assert bench.spec != NvmlBench.spec or clocks[0] == 1410, "those of the highest memory clock"
    gpu.supported_clocks_mhz().clear()
    assert gpu.supported_clocks_mhz() == clocks, "the caller may change its list"
    gpu.close()


def test_clocks_are_set_and_reset_in_the_order_of_the_calls_and_opening_and_closing_changes_none(bench: Bench) -> None:
    gpu = open_gpu(bench.spec, bench.way)
    highest, *_, lowest = gpu.supported_clocks_mhz()
    assert gpu.try_reset() == ""
    for mhz in (lowest, highest):
        gpu.lock_clock_mhz(mhz)
        open_gpu(bench.spec, bench.way).close()
    gpu.reset_clocks()
    gpu.reset_clocks()
    gpu.lock_clock_mhz(lowest)
    gpu.close()
    assert bench.clock_changes() == [0, lowest, highest, 0, 0, lowest]


def test_without_permission_why_clocks_stay_returns_the_reason_and_changes_raise(bench: Bench) -> None:
    bench.refuse_all_changes()
    gpu = open_gpu(bench.spec, bench.way)
    assert "this user may not" in gpu.try_reset()
    clock_mhz = gpu.supported_clocks_mhz()[0]
    for change in (
        lambda: gpu.lock_clock_mhz(clock_mhz),
        gpu.reset_clocks,
        lambda: gpu.set_power_limit_w(gpu.power_limit_w()),
    ):
        with pytest.raises(DevicePermissionError):
            change()
    gpu.close()


def test_a_driver_that_refuses_a_clock_is_a_device_error_that_names_the_clock(bench: Bench) -> None:
    bench.fail_next_lock()
    gpu = open_gpu(bench.spec, bench.way)
    clock_mhz = gpu.supported_clocks_mhz()[0]
    with pytest.raises(DeviceError, match=f"{clock_mhz} MHz"):
        gpu.lock_clock_mhz(clock_mhz)
    gpu.reset_clocks()
    gpu.close()


def test_a_power_limit_stays_until_another_one_is_set(bench: Bench) -> None:
    gpu = open_gpu(bench.spec, bench.way)
    lowest_w, highest_w = gpu.power_limit_range_w()
    assert 0 < lowest_w < gpu.power_limit_w() <= highest_w
    middle_w = (lowest_w + highest_w) / 2
    for limit_w in (lowest_w, middle_w, highest_w, middle_w):
        gpu.set_power_limit_w(limit_w)
        assert gpu.power_limit_w() == pytest.approx(limit_w)
    gpu.reset_clocks()
    other = open_gpu(bench.spec, bench.way)
    assert other.power_limit_w() == pytest.approx(middle_w)
    other.close()
    gpu.close()


def test_a_closed_gpu_refuses_and_another_object_of_it_goes_on(bench: Bench) -> None:
    gpu, other = open_gpu(bench.spec, bench.way), open_gpu(bench.spec, bench.way)
    clock_mhz = gpu.supported_clocks_mhz()[0]
    gpu.close()
    gpu.close()
    assert other.energy_j() >= 0
    other.reset_clocks()
    other.close()
    for use in (gpu.energy_j, gpu.reset_clocks, gpu.power_limit_w, lambda: gpu.lock_clock_mhz(clock_mhz)):
        with pytest.raises(DeviceError):
            use()
    with pytest.raises(DeviceError):
        open_gpu(bench.missing_spec, bench.way)
    assert bench.left_open() == 0


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


@pytest.mark.parametrize(
    ("code", "uuid", "mig", "reason"),
    [
        (9, UUIDS[0], False, r"driver is not loaded \(NVML error 9 of nvmlInit\)"),
        (777, UUIDS[0], False, "code 777"),
        (None, "GPU-nowhere", False, "no such GPU"),
        (None, "MIG-1234", False, "MIG slice"),
        (None, UUIDS[0], True, "MIG mode"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_an_error_that_explains_the_code_of_nvml_or_names_the_gpu(
    fake: FakeNvml, code: int | None, uuid: str, mig: bool, reason: str
) -> None:
    fake.fails.update({} if code is None else {"nvmlInit": code})
    fake.mig = mig
    with pytest.raises(DeviceError, match=reason):
        NvmlGpu(uuid)


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    return AmdBench(monkeypatch).fake


def test_clocks_of_an_amd_gpu_are_set_only_where_somebody_asks_for_it(amd: FakeAmdSmi) -> None:
    gpu = open_gpu(AmdBench.spec)
    assert "untried" in gpu.try_reset()
    assert amd.changes == []
    assert gpu.energy_j() == pytest.approx(15.3)


def test_a_lock_that_was_left_on_an_amd_gpu_shows_and_does_not_narrow_the_clocks_on_offer(amd: FakeAmdSmi) -> None:
    amd.ranges[1] = LOWEST, 900
    gpu = open_gpu(AmdBench.spec, AmdBench.way)
    assert gpu.settings().locked_mhz > 0
    gpu.try_reset()
    assert gpu.supported_clocks_mhz()[0] == HIGHEST
    assert not gpu.settings().differs


def test_an_amd_gpu_that_tells_no_clocks_is_only_measured(amd: FakeAmdSmi) -> None:
    amd.fails["get_clock_info"] = 2
    gpu = open_gpu(AmdBench.spec, AmdBench.way)
    assert "does not support it" in gpu.try_reset()
    assert gpu.supported_clocks_mhz() == []
    assert gpu.energy_j() > 0


def test_a_divided_amd_gpu_and_a_missing_package_are_errors(amd: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    amd.partition = "CPX"
    with pytest.raises(DeviceError, match="divided"):
        open_gpu(AmdBench.spec)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(DeviceError, match="ROCm"):
        open_gpu(AmdBench.spec)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match="nvidia-ml-py"):
        NvmlGpu(UUIDS[0])


def test_without_a_counter_an_amd_gpus_power_is_integrated(amd: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    passing = VirtualTime(monkeypatch, "pfo_fs.device.gpu")
    amd.energy = {"energy_accumulator": "N/A", "counter_resolution": "N/A"}
    gpu = open_gpu(AmdBench.spec)
    gpu.energy_j()
    passing.sleep(2.0)
    assert gpu.energy_j() == pytest.approx(2.0 * 140)
