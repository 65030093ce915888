"""The helper while pfo-fs is switched off, or the directory is removed: without any daemon, in every mode."""

import errno
from unittest.mock import Mock

import msgspec
import pytest
from helper_host import Host, joining
from jobs import rank_infos
from running import wait_for

from pfo_fs.device.metering.reporter import Reporter
from pfo_fs.errors import StoreUnavailable
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import messages as m
from pfo_fs.store import Files, OffSwitch, SharedDirectory


def hears(client: HelperClient, why: str) -> None:
    wait_for(lambda: client.poll() == m.ClocksHeld(why=why), what=f"ClocksHeld {why!r}")


@pytest.mark.parametrize("mode", ["daemon", "local"])
def test_ranks_are_held_while_the_switch_is_there(host: Host, mode: str) -> None:
    (client,), folder = host.start(mode=mode)
    switch, name = OffSwitch(Files(host.root)), folder.job_id if mode == "daemon" else "all"
    switch.turn_off(name)
    hears(client, "off")
    switch.turn_on(name)
    hears(client, "")


def test_a_rank_that_joins_while_all_jobs_are_off_hears_that_before_anything_else(host: Host) -> None:
    (host.root / "off").mkdir()
    (host.root / "off" / "all").touch()
    (client,), _ = host.start(mode="local")
    first = client.wait_for(m.ClocksHeld, 0.1)
    assert first == m.ClocksHeld(why="off"), "it came before the answer to the request to join"


def test_clock_processes_are_held_too_also_one_that_connects_later(host: Host) -> None:
    host.start()
    early, late = (Reporter(host.address, 0, host.token, m.GpuToReset("simulated:a")) for _ in range(2))
    assert early.send_waiting()
    (host.root / "off" / "all").touch()
    wait_for(lambda: early.why_held() == "off")
    assert late.send_waiting()
    wait_for(lambda: late.why_held() == "off")
    (host.root / "off" / "all").unlink()
    wait_for(lambda: early.why_held() == "")
    for reporter in (early, late):
        reporter.released()
        reporter.finish(1.0)


def test_a_helper_that_replaces_another_lets_go_what_the_earlier_one_held(host: Host) -> None:
    _, folder = host.start()
    client, (info,) = host.client(0), rank_infos(1)
    client.send(joining({"job_id": folder.job_id, "coordination": "daemon"}, info, name=0))
    hears(client, "")


@pytest.mark.slow
def test_ranks_are_held_when_the_directory_is_removed_and_go_on_when_it_is_back(host: Host) -> None:
    (client,), _ = host.start()
    host.root.rename(host.root.with_name("away"))
    hears(client, "removed")
    host.root.with_name("away").rename(host.root)
    hears(client, "")


def test_trouble_of_the_file_system_holds_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (client,), _ = host.start(mode="local")
    away = Mock(side_effect=StoreUnavailable(errno.ENOTCONN, "the server is away"))
    with monkeypatch.context() as outage:
        outage.setattr(OffSwitch, "read", away)
        wait_for(lambda: away.call_count >= 2, what="looks that fail")
    (host.root / "off" / "all").touch()
    hears(client, "off")  # and nothing else before


@pytest.mark.slow
@pytest.mark.parametrize("another", [False, True], ids=["none is there", "a daemon made another"])
def test_a_helper_that_comes_after_the_directory_was_removed_ends_with_its_last_rank(host: Host, another: bool) -> None:
    if another:
        SharedDirectory(Files(host.root)).make_folders()
    else:
        host.root.rmdir()
    client, (info,) = host.client(0), rank_infos(1)
    message = joining({"job_id": "job", "coordination": "local"}, info, name=0)
    client.send(msgspec.structs.replace(message, directory_id="0" * 32))
    hears(client, "removed")
    client.send(m.Goodbye(reason="finished"))
    client.close()
    host.thread.join(10)
    assert not host.thread.is_alive()
