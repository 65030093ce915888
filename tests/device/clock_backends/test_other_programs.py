"""What is particular to zeusd (the requests of Zeus's own client, the right GPU) and sudo (the commands, the group)."""

from __future__ import annotations

import grp
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clock_stand_ins import Sudo, Zeusd
from fake_nvml import UUIDS

from pfo_fs.device.clock_backends.sudo import GROUP, SudoBackend
from pfo_fs.device.clock_backends.zeusd import ZeusdBackend
from pfo_fs.device.gpu.interface import GpuPlace
from pfo_fs.errors import DeviceError, DevicePermissionError

PLACE = GpuPlace(UUIDS[2], "NVIDIA A100", "0000:3d:00.0")


@pytest.fixture
def zeusd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zeusd]:
    monkeypatch.delenv("ZEUSD_TOKEN", raising=False)
    stand_in = Zeusd(tmp_path / "zeusd.sock")
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(stand_in.path))
    yield stand_in
    stand_in.close()


def test_requests_are_those_of_zeus_own_client(zeusd: Zeusd) -> None:
    """Which also shows that Zeus's client accepts the stand-in of these tests."""
    pytest.importorskip("zeus", reason="needs Zeus, with which it compares")
    from zeus.device.gpu.nvidia import ZeusdNVIDIAGPU
    from zeus.utils.zeusd import ZeusdClient, require_capabilities

    client = ZeusdClient()
    require_capabilities(client, read_gpu=True, control_gpu=True, gpu_ids=[2])
    zeus: Any = ZeusdNVIDIAGPU.__new__(ZeusdNVIDIAGPU)  # its constructor needs a GPU
    zeus._client, zeus._gpu_index = client, 2
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


def test_the_gpu_is_found_by_its_pci_address_and_otherwise_zeusd_is_refused(zeusd: Zeusd) -> None:
    """An index that means another GPU in a container would change the clock of another job."""
    zeusd.offer["gpus"].reverse()
    ZeusdBackend(PLACE).lock_clock_mhz(900)
    assert [number for number, _, _ in zeusd.done] == [2]
    for gpu in zeusd.offer["gpus"]:
        del gpu["pci_address"]
    assert "does not name this GPU (NVIDIA A100 at 0000:3d:00.0)" in ZeusdBackend(PLACE).why_not()
    with pytest.raises(DeviceError):
        ZeusdBackend(PLACE).lock_clock_mhz(900)


def test_a_zeusd_without_control_says_how_to_start_it(zeusd: Zeusd) -> None:
    zeusd.offer["enabled_api_groups"] = ["gpu-read"]
    assert "--enable gpu-read,gpu-control" in ZeusdBackend(PLACE).why_not()
    with pytest.raises(DevicePermissionError):
        ZeusdBackend(PLACE).reset_clocks()


def test_a_zeusd_that_requires_a_token_gets_that_of_the_environment(
    zeusd: Zeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeusd.offer["auth_required"] = True
    assert "set ZEUSD_TOKEN" in ZeusdBackend(PLACE).why_not()
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


def test_a_socket_that_is_missing_or_left_over_or_forbidden_is_a_reason_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zeusd.sock"
    backend = ZeusdBackend(PLACE, path=str(path))
    assert "has no socket" in backend.why_not()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert "is left over; the operator starts zeusd" in backend.why_not()

    def forbidden(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    assert "--socket-gid" in backend.why_not()


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "{}",
        '{"gpus": 1}',
        "nonsense",
        '{"gpus": [1], "enabled_api_groups": ["gpu-control"], "auth_required": false}',
    ],
)
def test_another_server_at_the_socket_is_a_reason_and_no_crash(zeusd: Zeusd, answer: str) -> None:
    zeusd.raw_offer = answer.encode()
    assert "is not zeusd" in ZeusdBackend(PLACE).why_not()


# ---- sudo


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sudo:
    stand_in = Sudo(tmp_path)
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


def test_sudo_that_asks_for_a_password_is_a_missing_permission_with_the_remedy(sudo: Sudo) -> None:
    (sudo.folder / "refuses").touch()
    backend = SudoBackend(PLACE, asked=True)
    assert "a password is required" in backend.why_not()
    assert "sudoers" in backend.why_not()
    with pytest.raises(DevicePermissionError, match="900 MHz"):
        backend.lock_clock_mhz(900)


def test_a_value_that_nvidia_smi_refuses_is_not_a_missing_permission(sudo: Sudo) -> None:
    (sudo.folder / "fails").touch()
    with pytest.raises(DeviceError, match=r"failed with 2 \(Provided value is not valid\)") as caught:
        SudoBackend(PLACE, asked=True).lock_clock_mhz(99)
    assert type(caught.value) is DeviceError


def test_without_being_asked_sudo_is_left_alone_unless_the_user_is_in_the_group(
    sudo: Sudo, monkeypatch: pytest.MonkeyPatch
) -> None:
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
