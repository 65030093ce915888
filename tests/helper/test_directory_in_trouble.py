"""The helper while the directory or a file hangs, refuses or holds damaged records: waits end, and nothing is lost."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from helper_host import Host
from jobs import instead_of, rank_body, rank_infos, results_by_rank
from running import HANGS_AFTER_S, wait_for

from pfo_fs.coordination import Coordinator
from pfo_fs.errors import CoordinationError, NotShared, StoreError, StoreUnavailable
from pfo_fs.helper import operations as op
from pfo_fs.helper.power_limit_files import carry_out
from pfo_fs.ipc import messages, transport
from pfo_fs.store import Files, SharedDirectory, bodies


@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_a_directory_without_answer_means_default_clocks(host: Host, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    answers = threading.Event()

    def silent(read: Callable[[], bodies.CurrentBody | None], _: object) -> bodies.CurrentBody | None:
        if how == "refuses" and not answers.is_set():
            raise StoreError(errno.EIO, "no answer")
        answers.wait(HANGS_AFTER_S)
        return read()

    monkeypatch.setattr("pfo_fs.helper.watches.FALLBACK_AFTER_S", 0.2)
    monkeypatch.setattr("pfo_fs.helper.watches._CALM_S", 0.0)
    client, (info,) = host.client(0), rank_infos(1)
    job = host.create(client)
    instead_of(monkeypatch, "read", bodies.CurrentBody, silent)
    host.join(client, job, info)
    host.folder(job).write(bodies.CurrentBody(generation=1, number=-1, state="running"))
    try:
        wait_for(lambda: client.poll() == messages.ClocksHeld(why="lost"), what="default clocks")
    finally:
        answers.set()
    wait_for(lambda: client.poll() == messages.ClocksHeld(), what="the schedule, again")


def test_a_helper_that_replaces_another_while_the_mount_is_away_joins_when_it_is_back(tmp_path: Path) -> None:
    root, (info,) = tmp_path / "pfo", rank_infos(1)
    first = Host(root)
    job = first.create(first.client(0))
    first.close()
    root.rename(tmp_path / "away")
    second = Host(root)
    try:
        second.join(second.client(0), job, info, name=0)
        (tmp_path / "away").rename(root)
        wait_for(lambda: second.folder(job).numbers(bodies.RanksBody) == [0], "the registration")
    finally:
        second.close()


def test_planning_for_long_keeps_no_record_waiting(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, may_go_on = threading.Event(), threading.Event()

    def plan(_: Coordinator) -> float:
        plans.set()
        may_go_on.wait(HANGS_AFTER_S)
        return 1.0

    monkeypatch.setattr(Coordinator, "poll", plan)
    client, (info,) = host.client(0), rank_infos(1)
    job = host.create(client, mode="local")
    try:
        assert plans.wait(HANGS_AFTER_S)
        host.join(client, job, info)
        result = {"rank": 0, "iter_time": [1.0], "iter_energy": [2.0]}
        client.send(messages.MeasurementReport(number=0, first_step=3, result=result))
        wait_for(lambda: list(results_by_rank(host.folder(job), 0)) == [0], what="the result")
    finally:
        may_go_on.set()


def test_clocks_are_put_back_when_a_clock_process_dies_without_having_done_so(host: Host) -> None:
    trainer = host.client(0)
    job = host.create(trainer)
    host.join(trainer, job, rank_infos(1)[0])
    with transport.connect(host.address) as connection:
        hello = messages.Hello(rank=0, role="clocks", token=host.token, gpu=messages.GpuToReset("simulated:x"))
        connection.send(transport.encode(hello))
    trainer.close()
    host.thread.join(HANGS_AFTER_S)
    assert host.resets == [messages.GpuToReset("simulated:x")]
    assert host.folder(job).read(bodies.EndBody).reason == "terminated"


@pytest.mark.parametrize("has_a_directory", [False, True])
def test_a_host_that_sees_another_directory_than_rank_0_is_refused(tmp_path: Path, has_a_directory: bool) -> None:
    rank_0, other = Host(tmp_path / "shared"), Host(tmp_path / "not mounted")
    if has_a_directory:
        SharedDirectory(Files(other.root, create=True)).make_folders()
    job = rank_0.create(rank_0.client(0), ranks=2)
    with pytest.raises(CoordinationError, match="mounted"):
        other.join(other.client(1), job, rank_infos(2)[1])
    assert other.root.exists() == has_a_directory
    rank_0.close()
    other.close()


def test_a_lost_connection_is_no_directory_that_lacks_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = op.DirectoryOperations(tmp_path / "pfo", "node1:1", "Manual")
    joins = op.RegisterRanks((rank_body(),), "job", "attempt", "", again=False)
    with pytest.raises(NotShared):
        own.execute(joins)
    lost = OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    monkeypatch.setattr(op.os, "stat", Mock(side_effect=lost))
    with pytest.raises(StoreUnavailable, match="not connected"):
        own.execute(joins)


# ---- profiles of power limits


def test_the_largest_profile_fits_into_one_message_even_if_it_cannot_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(os.urandom(2 * messages.MAX_PROFILE_BYTES))
    (read,) = carry_out(messages.ReadProfile(path=str(path)))
    assert isinstance(read, messages.ProfileRead)
    assert len(read.content) == messages.MAX_PROFILE_BYTES + 1
    assert len(transport.encode(read)) < transport.MAX_PACKET_BYTES


def test_an_error_is_a_message_and_what_is_asked_for_is_answered(tmp_path: Path) -> None:
    read = carry_out(messages.ReadProfile(path=str(tmp_path)))
    assert [type(message) for message in read] == [messages.LogLine, messages.ProfileRead]
    assert read[-1] == messages.ProfileRead(profile="unknown")
    save = messages.SaveProfile(path=str(tmp_path / "none" / "p.json"), content=b"", replace=True)
    assert [type(message) for message in carry_out(save)] == [messages.LogLine, messages.ProfileSaved]
