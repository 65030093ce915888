"""The host's helper, and the training process's side of it, over real sockets; which process schedules a new job."""

import os
from pathlib import Path

import pytest
from clock import replace_time
from helper_host import Host
from jobs import daemon_body, one_f_one_b, rank_infos, results_by_rank
from record_corpus import Place, load, plant, sign
from running import HANGS_AFTER_S, wait_for

from pfo_fs.errors import AlreadyClaimed, CoordinationError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import CreatedJob, CreateJob, DirectoryOperations, new_schedule
from pfo_fs.helper.watches import ScheduleWatch
from pfo_fs.ipc import messages, transport
from pfo_fs.ipc.messages import NewSchedule, RankPlan
from pfo_fs.models import FrequencySchedule, JobInfo
from pfo_fs.store import Files, SharedDirectory, bodies


def test_a_client_without_the_token_is_hung_up_on(host: Host) -> None:
    good, stranger = host.client(0), host.client(1, token="guess")
    with pytest.raises(CoordinationError):
        stranger.request(messages.CreateJob(job={}, attempt="a"), messages.JobCreated, 1)
    assert stranger.lost
    assert host.create(good)["coordination"] == "daemon"


@pytest.mark.parametrize("is_local", [True, False])
def test_a_host_registers_how_often_it_polls(host: Host, monkeypatch: pytest.MonkeyPatch, is_local: bool) -> None:
    """The daemon may see another kind of file system: it may run on the file server."""
    monkeypatch.setattr("pfo_fs.helper.operations.is_local", lambda _: is_local)
    _, folder = host.start(2)
    polls_s = {body.poll_s for body in folder.each_rank()}
    assert polls_s == {ScheduleWatch(None, Around()).interval_s(is_local)}


def test_a_rank_is_registered_and_told_its_schedule(host: Host) -> None:
    (client,), folder = host.start()
    assert folder.numbers(bodies.RanksBody) == [0]
    schedule = FrequencySchedule(rank=0, frequencies=[("forward", 1200)])
    source = bodies.Source(kind="yaml", sha256="x")
    folder.write_schedule(0, 1, 7, source, [schedule], rank_infos(1))
    folder.write(bodies.CurrentBody(generation=1, number=0, start_step=7, state="running", source=source))
    message = client.wait_for(NewSchedule, HANGS_AFTER_S)
    plans = [RankPlan([("forward", 1200)])]
    assert message == NewSchedule(number=0, start_step=7, by_hand=True, plans=plans, ranks={0: 0})


def test_a_rank_that_is_taken_is_an_error_at_once(host: Host) -> None:
    client, (info,) = host.client(0), rank_infos(1)
    job = host.create(client)
    host.join(client, job, info, "first")
    with pytest.raises(AlreadyClaimed, match="registered already"):
        host.join(client, job, info, "second")


def test_what_was_measured_becomes_a_result_and_says_if_it_began_late(host: Host) -> None:
    clients, folder = host.start(2)
    clients[1].send(messages.ScheduleApplied(number=0, step=9, late=True))
    for rank, client in enumerate(clients):
        result = {"rank": rank, "iter_time": [1.0], "iter_energy": [2.0]}
        client.send(messages.MeasurementReport(number=0, first_step=3, result=result))
    wait_for(lambda: list(results_by_rank(folder, 0)) == [0, 1], what="both results")
    assert [body.late for body in results_by_rank(folder, 0).values()] == [False, True]


@pytest.mark.parametrize(
    ("before", "reason"), [("nothing", "terminated"), ("goodbye", "finished"), ("SIGTERM", "terminated")]
)
def test_what_training_and_its_processes_were_told_is_why_a_job_has_ended(host: Host, before: str, reason: str) -> None:
    (client,), folder = host.start()
    if before == "SIGTERM":
        host.loop.post(host.state.terminated)
    if before != "nothing":
        client.send(messages.Goodbye(reason="finished"))
    client.close()
    host.thread.join(HANGS_AFTER_S)
    assert folder.read(bodies.EndBody).reason == reason


def test_where_a_launcher_ends_the_other_ranks_because_one_has_crashed_the_job_has_crashed(host: Host) -> None:
    clients, folder = host.start(2)
    clients[1].send(messages.Goodbye(reason="crashed", message="ValueError: 3"))
    clients[1].close()
    wait_for(lambda: host.times(messages.Goodbye), what="the crash")
    host.loop.post(host.state.terminated)
    clients[0].close()
    end = wait_for(lambda: folder.read(bodies.EndBody), what="the end")
    assert (end.reason, end.message) == ("crashed", "rank 1: ValueError: 3")


def test_packets_that_are_not_messages_do_not_end_the_helper(host: Host) -> None:
    client = host.client(0)
    hello = messages.Hello(rank=0, role="training", token=host.token)
    with transport.connect(host.address) as connection:
        garbage = (b"\x00\x01garbage", transport.encode({"type": "NoSuchMessage"}), transport.encode({}))
        for packet in (transport.encode(hello), *garbage, transport.encode(hello)):
            connection.send(packet)
    assert host.create(client)["coordination"] == "daemon"


def test_equal_schedules_travel_once() -> None:
    schedules = [FrequencySchedule(rank=rank, frequencies=one_f_one_b(rank % 8, 8, 96, 1200)) for rank in range(1024)]
    message = new_schedule(3, 0, schedules)
    assert len(message.plans) == 8
    assert len(transport.encode(message)) < 20_000


def test_a_forked_child_does_not_keep_the_connection(host: Host) -> None:
    (client,), _ = host.start()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        client.send(messages.Goodbye(reason="finished"))
        client.close()
        host.thread.join(HANGS_AFTER_S)
        assert not host.thread.is_alive()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


@pytest.mark.parametrize(
    ("mode", "site", "daemon", "chosen", "warning"),
    [
        ("local", None, "beats", "local", ""),
        ("local", "coordination: daemon-only", "", "daemon", "default clocks"),
        ("auto", "coordination: daemon-only", "", "daemon", "default clocks"),
        ("auto", "coordination: !!int ''", "", "local", "site.yaml is not valid: line 1"),
        ("auto", None, "", "local", ""),
        ("auto", None, "stopped", "local", ""),
        ("auto", None, "stands still", "local", "the daemon on there does not answer"),
        ("auto", None, "beats", "daemon", "runs but is busy"),
        ("auto", None, "is of another release", "local", "schema 'pfo-fs/3', and this release reads"),
    ],
)
def test_which_process_schedules_a_new_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, site: str | None, daemon: str, chosen: str, warning: str
) -> None:
    root, now_s = tmp_path / "pfo", 0.0
    shared = SharedDirectory(Files(root, create=True))
    if site is not None:
        (root / "site.yaml").write_text(site)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        counter = int(now_s / 2) if daemon == "beats" else 1  # a busy one: every other second
        if daemon:
            shared.write(daemon_body(counter, stopped=daemon == "stopped"))
        if daemon == "is of another release":
            place = Place("daemon.json", bodies.DaemonBody)
            plant(root, place, sign({**load(root, place), "schema": "pfo-fs/3"}))
        assert now_s < 20

    replace_time(monkeypatch, "pfo_fs.helper.operations", monotonic=lambda: now_s, sleep=sleep)
    info = JobInfo(pp_degree=1, dp_degree=1, tp_degree=1, world_size=1)
    job = bodies.JobBody(job_info=info, coordination=mode)
    created = DirectoryOperations(str(root), "node1:1", "Manual").execute(CreateJob(job, "attempt"))
    assert isinstance(created, CreatedJob)
    assert created.coordination == chosen
    assert warning in created.warning
    assert bool(created.warning) == bool(warning)
