"""What each way to set clocks must do, over stand-ins for zeusd and sudo, and what is particular to these two."""

import errno
import grp
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from clock_stand_ins import Sudo, Zeusd
from fake_amdsmi import ADDRESSES, FakeAmdSmi
from fake_nvml import UUIDS, FakeNvml
from replaced_calls import refuses
from running import HANGS_AFTER_S, wait_for

from pfo_fs.device.clock_backends.sudo import GROUP, SudoBackend
from pfo_fs.device.clock_backends.zeusd import ZeusdBackend
from pfo_fs.device.gpu.amd import AmdGpu
from pfo_fs.device.gpu.interface import POWER_CAP, ClockBackend, GpuPlace
from pfo_fs.device.gpu.nvml import NvmlGpu
from pfo_fs.device.gpu.spec import BackedGpu, open_gpu
from pfo_fs.errors import DeviceError, DevicePermissionError

pytestmark = pytest.mark.usefixtures("zeusd_socket")
GPU = 1  # NVML's index of the GPU whose clocks are set
PLACE = GpuPlace(UUIDS[GPU], "NVIDIA A100", f"0000:{GPU + 0x3B:02x}:00.0")


class ZeusdBench:
    """zeusd, and the means to look behind it: the same of each way to set clocks."""

    def __init__(self, zeusd: Zeusd) -> None:
        self.zeusd = zeusd

    def backend(self, within_s: float = HANGS_AFTER_S) -> ClockBackend:
        return ZeusdBackend(PLACE, path=str(self.zeusd.path), within_s=within_s)

    def clock_changes(self) -> list[int]:
        assert {number for number, _, _ in self.zeusd.done} <= {GPU}
        return self.zeusd.clock_changes

    def limit_w(self) -> float:
        return next(values["power_limit_mw"] for _, _, values in reversed(self.zeusd.done) if values) / 1000

    def refuse(self) -> None:
        self.zeusd.status = 403

    def hang(self, hangs: bool) -> None:
        (self.zeusd.runs.clear if hangs else self.zeusd.runs.set)()

    def calls_begun(self) -> int:
        return sum(method == "POST" for method, _, _ in self.zeusd.requests)


class SudoBench:
    def __init__(self, sudo: Sudo) -> None:
        self.sudo = sudo

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


Bench: TypeAlias = ZeusdBench | SudoBench


@pytest.fixture(params=["zeusd", "sudo"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A way through another program; what NVML itself does: `gpu/test_gpu_contract.py`."""
    stand_in = request.getfixturevalue(request.param)
    return ZeusdBench(stand_in) if isinstance(stand_in, Zeusd) else SudoBench(stand_in)


def test_clocks_and_limit_are_those_of_the_right_gpu_when_the_call_returns(bench: Bench) -> None:
    backend = bench.backend()
    assert backend.why_not() == ""
    assert bench.calls_begun() == 0, "to look changes nothing"
    for changes, call in (
        ([900], lambda: backend.lock_clock_mhz(900)),
        ([900, 1410], lambda: backend.lock_clock_mhz(1410)),
        ([900, 1410, 0], backend.reset_clocks),
        ([900, 1410, 0, 0], backend.reset_clocks),
    ):
        call()
        assert bench.clock_changes() == changes
    backend.set_power_limit_w(237.5)
    assert bench.limit_w() == 237.5
    begun = bench.calls_begun()
    for _ in range(2):
        backend.close()
    assert bench.calls_begun() == begun


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


def test_calls_to_a_driver_that_hangs_are_given_up_in_time_and_clocks_end_at_their_default(bench: Bench) -> None:
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


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    """NVML without the permission for changes, on a machine where no other way works."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for what in ("SetGpuLockedClocks", "ResetGpuLockedClocks", "SetPowerManagementLimit"):
        fake.fails[f"nvmlDevice{what}"] = 4
    monkeypatch.setenv("PATH", str(tmp_path / "missing"))
    return fake


@pytest.fixture
def gpu(nvml: FakeNvml) -> Iterator[BackedGpu]:
    gpu = BackedGpu(NvmlGpu(UUIDS[GPU]), "auto")
    yield gpu
    gpu.close()


def test_auto_takes_nvml_where_it_is_permitted_and_asks_nothing_else(
    nvml: FakeNvml, zeusd: Zeusd, gpu: BackedGpu
) -> None:
    nvml.fails.clear()
    assert gpu.clock_backend == "none"
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(210)
    assert gpu.clock_backend == "nvml"
    assert nvml.locked == [(GPU, 0), (GPU, 210)]
    assert zeusd.requests == []


def test_auto_takes_the_first_way_that_works_and_reads_through_nvml(
    nvml: FakeNvml, zeusd: Zeusd, gpu: BackedGpu
) -> None:
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(1395)
    assert gpu.clock_backend == "zeusd"
    assert [call for _, call, _ in zeusd.done] == ["reset_gpu_locked_clocks", "set_gpu_locked_clocks"]
    assert gpu.energy_j() == 5.0
    assert gpu.supported_clocks_mhz()[0] == 1410
    assert nvml.locked == []


def test_zeusd_sets_an_amd_gpu_and_resets_all_its_clocks(zeusd: Zeusd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi())
    zeusd.offer["gpus"][0]["pci_address"] = ADDRESSES[0]
    gpu = BackedGpu(AmdGpu(ADDRESSES[0]), "zeusd")
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(900)
    assert [(number, call) for number, call, _ in zeusd.done] == [
        (GPU, "reset_locked_clocks"), (GPU, "set_gpu_locked_clocks"),
    ]  # fmt: skip


def test_a_power_limit_as_the_first_change_chooses_without_a_reset_of_clocks(zeusd: Zeusd, gpu: BackedGpu) -> None:
    gpu.set_power_limit_w(gpu.power_limit_w())
    assert zeusd.done == [(GPU, "set_power_limit", {"power_limit_mw": 400_000})]


def test_a_cap_in_place_of_a_clock_goes_the_first_way_that_works(nvml: FakeNvml, zeusd: Zeusd, sim_dir: Path) -> None:
    gpu = open_gpu(f"nvml:{UUIDS[GPU]}", POWER_CAP)
    assert gpu.try_reset() == ""
    gpu.lock_clock_mhz(705)
    assert [(call, values["power_limit_mw"]) for _, call, values in zeusd.done] == [
        ("set_power_limit", 400_000),
        ("set_power_limit", 240_000),
    ]
    assert nvml.locked == []
    gpu.close()


def test_auto_says_of_each_way_why_it_does_not_work(nvml: FakeNvml, gpu: BackedGpu) -> None:
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


def test_auto_passes_over_a_zeusd_that_hangs(zeusd: Zeusd, gpu: BackedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfo_fs.device.clock_backends.zeusd.CALL_WITHIN_S", 0.3)
    zeusd.runs.clear()
    assert "did not answer within 0.3 s" in gpu.try_reset()


def test_none_measures_only(nvml: FakeNvml) -> None:
    nvml.fails.clear()
    gpu = BackedGpu(NvmlGpu(UUIDS[GPU]), "none")
    assert "measured" in gpu.try_reset()
    for change in (lambda: gpu.lock_clock_mhz(210), gpu.reset_clocks, lambda: gpu.set_power_limit_w(300)):
        with pytest.raises(DevicePermissionError):
            change()
    assert gpu.energy_j() == 5.0
    assert nvml.locked == []
    gpu.close()


def test_requests_are_those_of_zeus_own_client(zeusd: Zeusd) -> None:
    """Which also shows that Zeus's client accepts the stand-in of these tests."""
    pytest.importorskip("zeus", reason="needs Zeus, with which it compares")
    from zeus.device.gpu.nvidia import ZeusdNVIDIAGPU
    from zeus.utils.zeusd import ZeusdClient, require_capabilities

    client = ZeusdClient()
    require_capabilities(client, read_gpu=True, control_gpu=True, gpu_ids=[GPU])
    zeus: Any = ZeusdNVIDIAGPU.__new__(ZeusdNVIDIAGPU)  # its constructor needs a GPU
    zeus._client, zeus._gpu_index = client, GPU
    zeus.get_power_management_limit = lambda: 0
    zeus.set_gpu_locked_clocks(1200, 1200)
    zeus.reset_gpu_locked_clocks()
    zeus.set_power_management_limit(250_000)
    theirs, done = list(zeusd.requests), list(zeusd.done)
    client._client.close()

    zeusd.requests.clear()
    zeusd.done.clear()
    ours = ZeusdBackend(PLACE)
    ours.lock_clock_mhz(1200)
    ours.reset_clocks()
    ours.set_power_limit_w(250)
    assert zeusd.requests == theirs
    assert zeusd.done == done
    assert len(done) == 3


OFFER = {"gpus": [{"id": GPU, "name": "NVIDIA A100"}], "enabled_api_groups": ["gpu-control"], "auth_required": False}


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (OFFER, "does not name this GPU (NVIDIA A100 at 0000:3c:00.0)"),
        ({**OFFER, "enabled_api_groups": ["gpu-read"]}, "--enable gpu-read,gpu-control"),
        ({**OFFER, "auth_required": True}, "set ZEUSD_TOKEN"),
        ({**OFFER, "gpus": [1]}, "is not zeusd"),
        ({"gpus": 1}, "is not zeusd"),
        (b"nonsense", "is not zeusd"),
    ],
)
def test_a_zeusd_without_the_gpu_is_a_reason_with_the_remedy(zeusd: Zeusd, offer: object, reason: str) -> None:
    zeusd.offer = offer
    assert reason in ZeusdBackend(PLACE).why_not()
    with pytest.raises(DeviceError):
        ZeusdBackend(PLACE).lock_clock_mhz(900)
    assert zeusd.done == []


def test_a_zeusd_with_tokens_gets_that_of_the_environment(zeusd: Zeusd, monkeypatch: pytest.MonkeyPatch) -> None:
    zeusd.offer["auth_required"] = True
    monkeypatch.setenv("ZEUSD_TOKEN", "secret")
    assert ZeusdBackend(PLACE).why_not() == ""
    assert zeusd.authorization == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "kind"), [(401, DevicePermissionError), (403, DevicePermissionError), (500, DeviceError)]
)
def test_a_refusal_has_the_status_and_the_text_of_zeusd(zeusd: Zeusd, status: int, kind: type[DeviceError]) -> None:
    zeusd.status = status
    with pytest.raises(DeviceError, match=f"HTTP {status}.*NVML error: refused") as caught:
        ZeusdBackend(PLACE).lock_clock_mhz(900)
    assert type(caught.value) is kind


def test_an_unusable_socket_is_a_reason_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zeusd.sock"
    backend = ZeusdBackend(PLACE, path=str(path))
    assert "has no socket" in backend.why_not()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert "is left over; the operator starts zeusd" in backend.why_not()
    monkeypatch.setattr(socket.socket, "connect", refuses(errno.EACCES))
    assert "--socket-gid" in backend.why_not()


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sudo]:
    stand_in = Sudo(tmp_path)
    monkeypatch.setenv("PATH", stand_in.path)
    yield stand_in
    (tmp_path / "slow").unlink(missing_ok=True)  # a call that hangs ends


@pytest.mark.parametrize(
    ("file", "why_not", "kind", "problem"),
    [
        ("refuses", "a password is required.*sudoers", DevicePermissionError, "900 MHz.*a password is required"),
        ("refuses-clocks", "", DevicePermissionError, "900 MHz.*a password is required"),
        ("fails", "", DeviceError, r"failed with 2 \(Provided value is not valid\)"),
    ],
)
def test_a_refusal_of_sudo_says_why(sudo: Sudo, file: str, why_not: str, kind: type[DeviceError], problem: str) -> None:
    (sudo.folder / file).touch()
    backend = SudoBackend(PLACE, asked=True)
    found = backend.why_not()
    assert re.search(why_not, found)
    assert bool(found) == bool(why_not)
    with pytest.raises(DeviceError, match=problem) as caught:
        backend.lock_clock_mhz(900)
    assert type(caught.value) is kind
    if file == "refuses-clocks":
        backend.set_power_limit_w(200)


def test_sudo_is_left_alone_unless_asked_or_by_a_user_of_the_group(sudo: Sudo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused call of sudo would be logged, and mailed to the operator by each rank of each job."""
    (sudo.folder / "refuses").touch()
    assert f"not in the group {GROUP}" in SudoBackend(PLACE, asked=False).why_not()
    members = grp.struct_group((GROUP, "x", os.getegid(), []))
    monkeypatch.setattr(grp, "getgrnam", {GROUP: members}.__getitem__)
    assert "a password is required" in SudoBackend(PLACE, asked=False).why_not()


@pytest.mark.parametrize("program", ["sudo", "nvidia-smi"])
def test_a_program_that_is_not_installed_is_a_reason(sudo: Sudo, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    (sudo.folder / program).unlink()
    monkeypatch.setenv("PATH", str(sudo.folder))
    assert f"the program {program} is not installed" in SudoBackend(PLACE, asked=True).why_not()
    if program == "sudo":
        with pytest.raises(DevicePermissionError, match="cannot be started"):
            SudoBackend(PLACE, asked=True).reset_clocks()
