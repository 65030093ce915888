"""What is particular to sudo (the exact commands, the group) and to GEOPM (one session for all GPUs of a host)."""

from __future__ import annotations

import grp
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clock_stand_ins import GeopmService, Sudo
from fake_nvml import UUIDS
from running import HANGS_AFTER_S

from pfo_fs.device.clock_backends import geopm_relay
from pfo_fs.device.clock_backends.geopm import GeopmBackend
from pfo_fs.device.clock_backends.interface import GpuPlace
from pfo_fs.device.clock_backends.sudo import GROUP, SudoBackend
from pfo_fs.errors import DeviceError, DevicePermissionError
from pfo_fs.ipc import transport

WaitFor = Callable[..., Any]


def place(number: int) -> GpuPlace:
    return GpuPlace(UUIDS[number], "NVIDIA A100", number, len(UUIDS), f"0000:{number + 0x3B:02x}:00.0")


# ---- sudo


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


# ---- GEOPM


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GeopmService]:
    stand_in = GeopmService(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PFO_FS_RUN_DIR", str(tmp_path))
    yield stand_in
    stand_in.close()


@pytest.fixture
def backends(service: GeopmService) -> Iterator[list[GeopmBackend]]:
    made = [GeopmBackend(place(number), within_s=HANGS_AFTER_S) for number in range(3)]
    yield made
    for backend in made:
        backend.close()


def test_all_gpus_of_a_host_share_the_one_session_that_may_write(
    service: GeopmService, backends: list[GeopmBackend]
) -> None:
    for backend in backends:
        assert backend.why_not() == ""
    for number, backend in enumerate(backends):
        backend.lock_clock_mhz(900 + number)
    backends[1].reset_clocks()
    assert [service.changes(number) for number in range(3)] == [[900], [901, 0], [902]]
    writers = {call[0] for call in service.calls}
    assert len(writers) == 1
    assert os.getpid() not in writers


def test_a_gpu_whose_clock_process_has_gone_gets_its_default_clocks(
    service: GeopmService, backends: list[GeopmBackend], wait_for: WaitFor
) -> None:
    backends[0].lock_clock_mhz(900)
    backends[1].lock_clock_mhz(901)
    backends[2].lock_clock_mhz(902)
    backends[2].reset_clocks()
    backends[0].close()
    wait_for(lambda: service.changes(0) == [900, 0], what="the reset")
    backends[2].close()
    backends[1].reset_clocks()
    assert [service.changes(number) for number in range(3)] == [[900, 0], [901, 0], [902, 0]]


def test_a_clock_that_the_service_does_not_reset_at_first_is_reset_later(
    service: GeopmService, backends: list[GeopmBackend], wait_for: WaitFor
) -> None:
    backends[0].lock_clock_mhz(900)
    (service.folder / "refuses").touch()
    backends[0].close()
    with pytest.raises(DeviceError):  # the relay has seen the close, and goes on
        backends[1].lock_clock_mhz(901)
    (service.folder / "refuses").unlink()
    wait_for(lambda: service.changes(0) == [900, 0], what="the reset")


def test_another_session_that_writes_already_is_named(service: GeopmService, backends: list[GeopmBackend]) -> None:
    (service.folder / "session").write_text(str(os.getpid()))
    with pytest.raises(DeviceError, match=rf"already has write mode client with PID or SID of {os.getpid()}"):
        backends[0].reset_clocks()


def test_controls_that_the_service_does_not_permit_are_named(
    service: GeopmService, backends: list[GeopmBackend]
) -> None:
    (service.folder / "denies").touch()
    why = backends[0].why_not()
    assert "NVML::GPU_CORE_FREQUENCY_MAX_CONTROL" in why
    assert "geopmaccess" in why


def test_a_service_that_shows_other_gpus_than_this_process_is_refused(service: GeopmService) -> None:
    backend = GeopmBackend(place(0)._replace(gpu_count=1), within_s=HANGS_AFTER_S)
    assert "shows 3 GPUs and this process sees 1" in backend.why_not()
    backend.close()


def test_without_the_library_of_the_service_there_is_a_reason(service: GeopmService) -> None:
    (service.folder / "geopmdpy" / "topo.py").write_text("raise OSError('libgeopmd.so.2: cannot open shared object')")
    backend = GeopmBackend(place(0), within_s=HANGS_AFTER_S)
    assert "libgeopmd.so.2" in backend.why_not()
    backend.close()


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geopmdpy", None)
    assert "geopmdpy" in GeopmBackend(place(0)).why_not()


def test_a_relay_without_clock_processes_ends_and_a_second_one_is_not_started(
    service: GeopmService,
) -> None:
    server = transport.listen(f"pfo-fs-test-relay-{os.getpid()}")
    geopm_relay.Relay(server, geopm_relay.Geopm()).serve(idle_s=0)
    assert geopm_relay.main({"address": f"pfo-fs-test-relay-{os.getpid()}"}) == 0  # the address is in use
    server.close()


def test_a_request_that_is_not_known_is_an_answer_and_the_relay_goes_on(service: GeopmService) -> None:
    address = f"pfo-fs-test-unknown-{os.getpid()}"
    with transport.listen(address) as server:
        relay = threading.Thread(target=geopm_relay.Relay(server, geopm_relay.Geopm()).serve, kwargs={"idle_s": 0})
        with transport.connect(address) as connection:
            relay.start()
            answers = []
            for do in ("format the disk", "lock"):
                connection.send(json.dumps({"do": do, "gpu": 0, "value": 900}).encode())
                answers.append(json.loads(connection.recv(10_000)))
        relay.join(HANGS_AFTER_S)
    assert "unknown request" in answers[0]["error"]
    assert "error" not in answers[1]
    assert service.changes(0)[0] == 900
