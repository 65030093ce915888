"""What is particular to sudo: the exact commands, and the group."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest
from clock_stand_ins import Sudo
from fake_nvml import UUIDS

from pfo_fs.device.clock_backends.interface import GpuPlace
from pfo_fs.device.clock_backends.sudo import GROUP, SudoBackend
from pfo_fs.errors import DeviceError, DevicePermissionError


def place(number: int) -> GpuPlace:
    return GpuPlace(UUIDS[number], "NVIDIA A100", number, len(UUIDS), f"0000:{number + 0x3B:02x}:00.0")


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sudo:
    stand_in = Sudo(tmp_path)
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


def test_sudo_runs_exactly_the_commands_that_the_operators_page_permits(sudo: Sudo) -> None:
    backend = SudoBackend(place(1), asked=True)
    backend.lock_clock_mhz(1395)
    backend.reset_clocks()
    backend.set_power_limit_w(250)
    commands = [line.partition("begins ")[2] for line in sudo.calls if " begins " in line]
    assert commands == [f"-i {UUIDS[1]} -lgc 1395,1395", f"-i {UUIDS[1]} -rgc", f"-i {UUIDS[1]} -pl 250.00"]


def test_sudo_that_asks_for_a_password_is_a_missing_permission_with_the_remedy(sudo: Sudo) -> None:
    (sudo.folder / "refuses").touch()
    backend = SudoBackend(place(1), asked=True)
    assert "a password is required" in backend.why_not()
    assert "sudoers" in backend.why_not()
    with pytest.raises(DevicePermissionError, match="900 MHz"):
        backend.lock_clock_mhz(900)


def test_a_value_that_nvidia_smi_refuses_is_not_a_missing_permission(sudo: Sudo) -> None:
    (sudo.folder / "fails").touch()
    with pytest.raises(DeviceError, match=r"failed with 2 \(Provided value is not valid\)") as caught:
        SudoBackend(place(1), asked=True).lock_clock_mhz(99)
    assert type(caught.value) is DeviceError


def test_without_being_asked_sudo_is_left_alone_unless_the_user_is_in_the_group(
    sudo: Sudo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused call of sudo would be logged, and mailed to the operator by each rank of each job."""
    (sudo.folder / "refuses").touch()
    assert f"not in the group {GROUP}" in SudoBackend(place(1), asked=False).why_not()
    members = grp.struct_group((GROUP, "x", os.getegid(), []))
    monkeypatch.setattr(grp, "getgrnam", {GROUP: members}.__getitem__)
    assert "a password is required" in SudoBackend(place(1), asked=False).why_not()


@pytest.mark.parametrize("program", ["sudo", "nvidia-smi"])
def test_a_program_that_is_not_installed_is_a_reason(sudo: Sudo, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    (sudo.folder / program).unlink()
    monkeypatch.setenv("PATH", str(sudo.folder))
    assert f"the program {program} is not installed" in SudoBackend(place(1), asked=True).why_not()
    if program == "sudo":
        with pytest.raises(DevicePermissionError, match="cannot be started"):
            SudoBackend(place(1), asked=True).reset_clocks()
