"""What each way to set clocks must do, over stand-ins for zeusd and sudo."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from clock_stand_ins import Sudo, Zeusd
from fake_nvml import UUIDS, FakeNvml
from running import HANGS_AFTER_S

from pfo_fs.device.clock_backends.sudo import SudoBackend
from pfo_fs.device.clock_backends.zeusd import ZeusdBackend
from pfo_fs.device.gpu.interface import ClockBackend, GpuPlace
from pfo_fs.device.gpu.nvml import NvmlGpu
from pfo_fs.device.gpu.spec import BackedGpu
from pfo_fs.errors import DeviceError, DevicePermissionError

WaitFor = Callable[..., Any]

GPU = 1  # NVML's index of the GPU whose clocks are set
PLACE = GpuPlace(UUIDS[GPU], "NVIDIA A100", f"0000:{GPU + 0x3B:02x}:00.0")


class ZeusdBench:
    """zeusd, and the means to look behind it: the same of each way to set clocks."""

    def __init__(self, folder: Path) -> None:
        self.zeusd = Zeusd(folder / "zeusd.sock")

    def backend(self, within_s: float = HANGS_AFTER_S) -> ClockBackend:
        return ZeusdBackend(PLACE, path=str(self.zeusd.path), within_s=within_s)

    def clock_changes(self) -> list[int]:
        assert {number for number, _, _ in self.zeusd.done} <= {GPU}
        return [values.get("min_clock_mhz", 0) for _, call, values in self.zeusd.done if "clocks" in call]

    def limit_w(self) -> float:
        return next(values["power_limit_mw"] for _, _, values in reversed(self.zeusd.done) if values) / 1000

    def refuse(self) -> None:
        self.zeusd.status = 403

    def hang(self, hangs: bool) -> None:
        (self.zeusd.runs.clear if hangs else self.zeusd.runs.set)()

    def calls_begun(self) -> int:
        return sum(method == "POST" for method, _, _ in self.zeusd.requests)

    def close(self) -> None:
        self.zeusd.close()


class SudoBench:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sudo = Sudo(folder)
        monkeypatch.setenv("PATH", self.sudo.path)

    def backend(self, within_s: float = HANGS_AFTER_S) -> ClockBackend:
        return SudoBackend(PLACE, asked=True, within_s=within_s)

    def _ended(self) -> list[list[str]]:
        lines = [line.split() for line in self.sudo.calls]
        assert all(line[2:4] == ["-i", UUIDS[GPU]] for line in lines)
        return [line[4:] for line in lines if line[1] == "ends"]

    def clock_changes(self) -> list[int]:
        return [0 if words == ["-rgc"] else int(words[1].split(",")[0]) for words in self._ended() if words[0] != "-pl"]

    def limit_w(self) -> float:
        return float(next(words[1] for words in reversed(self._ended()) if words[0] == "-pl"))

    def refuse(self) -> None:
        (self.sudo.folder / "refuses").touch()

    def hang(self, hangs: bool) -> None:
        slow = self.sudo.folder / "slow"
        slow.touch() if hangs else slow.unlink(missing_ok=True)

    def calls_begun(self) -> int:
        return sum(line.split()[1] == "begins" for line in self.sudo.calls)

    def close(self) -> None:
        self.hang(False)


Bench: TypeAlias = ZeusdBench | SudoBench


@pytest.fixture(params=["zeusd", "sudo"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """A way through another program; what NVML itself does: `gpu/test_gpu_contract.py`."""
    (tmp_path / "bench").mkdir()
    made = ZeusdBench(tmp_path / "bench") if request.param == "zeusd" else SudoBench(tmp_path / "bench", monkeypatch)
    yield made
    made.close()


# ---- the contract


def test_clocks_are_set_and_reset_on_the_right_gpu_when_the_call_returns(bench: Bench) -> None:
    backend = bench.backend()
    for changes, call in (
        ([900], lambda: backend.lock_clock_mhz(900)),
        ([900, 1410], lambda: backend.lock_clock_mhz(1410)),
        ([900, 1410, 0], backend.reset_clocks),
        ([900, 1410, 0, 0], backend.reset_clocks),
    ):
        call()
        assert bench.clock_changes() == changes
    backend.close()


def test_a_power_limit_arrives_in_watts(bench: Bench) -> None:
    backend = bench.backend()
    backend.set_power_limit_w(237.5)
    assert bench.limit_w() == 237.5
    backend.close()


def test_a_change_that_is_refused_is_a_device_error_that_names_gpu_and_clock(bench: Bench) -> None:
    bench.refuse()
    backend = bench.backend()
    with pytest.raises(DeviceError, match=rf"{UUIDS[GPU]}.*900 MHz"):
        backend.lock_clock_mhz(900)
    with pytest.raises(DeviceError, match="unlocking"):
        backend.reset_clocks()
    with pytest.raises(DeviceError, match="200 W"):
        backend.set_power_limit_w(200)
    assert bench.clock_changes() == []
    backend.close()


def test_discovery_and_closing_change_nothing(bench: Bench) -> None:
    backend = bench.backend()
    assert backend.why_not() == ""
    backend.close()
    backend.close()
    assert bench.calls_begun() == 0


def test_calls_to_a_driver_that_hangs_are_given_up_in_time_and_clocks_end_at_their_default(
    bench: Bench, wait_for: WaitFor
) -> None:
    """Also the reset is given up. A lock that happens late does not come after a later reset."""
    backend = bench.backend(within_s=1.0)
    assert backend.why_not() == ""
    bench.hang(True)
    with pytest.raises(DeviceError, match=r"900 MHz.*within 1 s"):
        backend.lock_clock_mhz(900)
    with pytest.raises(DeviceError, match="unlocking"):
        backend.reset_clocks()
    bench.hang(False)
    wait_for(lambda: bench.clock_changes()[:1] == [900], what="the late lock")
    backend.reset_clocks()
    assert bench.clock_changes()[-1] == 0
    backend.close()


# ---- the choice


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    """NVML without the permission for changes, on a machine where no other way works."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for what in ("SetGpuLockedClocks", "ResetGpuLockedClocks", "SetPowerManagementLimit"):
        fake.fails[f"nvmlDevice{what}"] = 4
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    monkeypatch.setenv("PATH", str(tmp_path / "missing"))
    monkeypatch.delenv("ZEUSD_TOKEN", raising=False)
    return fake


@pytest.fixture
def zeusd(tmp_path: Path) -> Iterator[Zeusd]:
    stand_in = Zeusd(tmp_path / "zeusd.sock")
    yield stand_in
    stand_in.close()


def gpu_with(choice: str) -> BackedGpu:
    return BackedGpu(NvmlGpu(UUIDS[GPU]), choice)


def test_auto_takes_nvml_where_it_is_permitted_and_asks_nothing_else(nvml: FakeNvml, zeusd: Zeusd) -> None:
    nvml.fails.clear()
    gpu = gpu_with("auto")
    assert gpu.clock_backend == "none"
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(210)
    assert gpu.clock_backend == "nvml"
    assert nvml.locked == [(GPU, "reset"), (GPU, 210, 210)]
    assert zeusd.requests == []
    gpu.close()


def test_auto_takes_the_first_way_that_works_and_reads_through_nvml(nvml: FakeNvml, zeusd: Zeusd) -> None:
    gpu = gpu_with("auto")
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(1395)
    assert gpu.clock_backend == "zeusd"
    assert [call for _, call, _ in zeusd.done] == ["reset_gpu_locked_clocks", "set_gpu_locked_clocks"]
    assert gpu.energy_j() == 5.0
    assert gpu.supported_clocks_mhz() == [1410, 1395, 210]
    assert nvml.locked == []
    gpu.close()


def test_a_power_limit_that_is_the_first_change_chooses_without_a_reset_of_the_clocks(
    nvml: FakeNvml, zeusd: Zeusd
) -> None:
    gpu = gpu_with("auto")
    gpu.set_power_limit_w(gpu.power_limit_w())
    assert zeusd.done == [(GPU, "set_power_limit", {"power_limit_mw": 400_000})]
    gpu.close()


def test_auto_says_of_each_way_why_it_does_not_work(nvml: FakeNvml) -> None:
    gpu = gpu_with("auto")
    why = gpu.try_reset()
    for text in (
        "nvml: unlocking the clocks",
        "this user may not",
        "zeusd: discovering GPUs: zeusd has no socket at",
        "the operator starts zeusd",
        "sudo: the program sudo is not installed",
    ):
        assert text in why
    assert gpu.clock_backend == "none"
    with pytest.raises(DevicePermissionError):
        gpu.lock_clock_mhz(210)
    assert nvml.locked == []
    gpu.close()


def test_auto_passes_over_a_zeusd_that_hangs(nvml: FakeNvml, zeusd: Zeusd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfo_fs.device.clock_backends.zeusd.CALL_WITHIN_S", 0.3)
    zeusd.runs.clear()
    gpu = gpu_with("auto")
    assert "did not answer within 0.3 s" in gpu.try_reset()
    gpu.close()


def test_none_measures_only(nvml: FakeNvml) -> None:
    nvml.fails.clear()
    gpu = gpu_with("none")
    assert "measured" in gpu.try_reset()
    for change in (lambda: gpu.lock_clock_mhz(210), gpu.reset_clocks, lambda: gpu.set_power_limit_w(300)):
        with pytest.raises(DevicePermissionError):
            change()
    assert gpu.energy_j() == 5.0
    assert nvml.locked == []
    gpu.close()
