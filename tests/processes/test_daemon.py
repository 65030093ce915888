"""Real daemon processes, killed and restarted."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import (
    instead_of,
    leader_record,
    make_job,
    number_of,
    rank_infos,
    register,
    schedule_of,
    write_results,
)
from running import HANGS_AFTER_S, Processes, wait_for
from schedulers import SlowFirst

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.daemon import Daemon
from pfo_fs.errors import StoreUnavailable
from pfo_fs.store import Files, SharedDirectory, Watcher, bodies

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent)}
THINKS = {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1, "world_size": 2, "job_metadata": "think"}


def test_a_standby_takes_over_when_the_leader_is_killed(tmp_path: Path, processes: Processes) -> None:
    arguments = ("--scheduler", "schedulers:ThreeSteps", "--lease-timeout", "1")
    first = processes.leader(tmp_path, *arguments, env=ENVIRONMENT)
    second = processes.daemon(tmp_path, *arguments, env=ENVIRONMENT)
    folder, infos = register(make_job(tmp_path, 2)), rank_infos(2)
    wait_for(lambda: number_of(folder) == 0, what="schedule 0")
    leader = leader_record(tmp_path)
    assert leader is not None
    assert leader.pid == first.pid
    first.send_signal(signal.SIGKILL)
    write_results(folder, 0, infos)
    wait_for(lambda: number_of(folder) == 1, what="schedule 1 from the standby")
    leader = leader_record(tmp_path)
    assert leader is not None
    assert (leader.pid, leader.generation) == (second.pid, 2)


@pytest.mark.slow
def test_a_stopped_leader_that_wakes_up_steps_down(tmp_path: Path, processes: Processes) -> None:
    """As after a partition: its lock is still held, so the standby goes by the silence of the counter."""
    first = processes.leader(tmp_path, "--lease-timeout", "1")
    first.send_signal(signal.SIGSTOP)
    second = processes.daemon(tmp_path, "--lease-timeout", "1")
    wait_for(lambda: leader_record(tmp_path).pid == second.pid, what="the takeover")  # type: ignore[union-attr]
    first.send_signal(signal.SIGCONT)
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: number_of(folder) == 0, what="a schedule")
    counter = leader_record(tmp_path).counter  # type: ignore[union-attr]
    wait_for(lambda: leader_record(tmp_path).counter > counter + 2, what="heartbeats")  # type: ignore[union-attr]
    assert leader_record(tmp_path).pid == second.pid  # type: ignore[union-attr]
    wait_for(lambda: folder.read(bodies.CurrentBody).generation == 2, what="the new leader's first record")  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_its_starter_blocks_ends_a_daemon_which_hands_over_at_once(
    tmp_path: Path, processes: Processes, number: signal.Signals
) -> None:
    blocks = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"
    acts = f"signal.signal({int(number)}, signal.SIG_DFL)"  # nohup starts tests with an ignored SIGHUP
    starter = f"import os, signal, sys; {acts}; {blocks}; os.execv(sys.executable, sys.argv[1:])"
    command = (sys.executable, "-m", "pfo_fs", "daemon", str(tmp_path), "--lease-timeout", "60")
    first = processes.python("-c", starter, *command)
    wait_for(lambda: leader_record(tmp_path), what="a leader")
    first.send_signal(number)
    assert first.wait() == 0
    assert leader_record(tmp_path).stopped  # type: ignore[union-attr]
    second = processes.daemon(tmp_path, "--lease-timeout", "60")
    wait_for(lambda: leader_record(tmp_path).pid == second.pid, what="the next leader")  # type: ignore[union-attr]


def test_a_job_that_is_planned_for_long_keeps_neither_the_heartbeat_nor_other_jobs_waiting(
    tmp_path: Path, processes: Processes
) -> None:
    gate = tmp_path / "gate"
    arguments = ("--scheduler", "schedulers:Thoughtful", "--lease-timeout", "1")
    environment = {**ENVIRONMENT, "THOUGHT_THROUGH": str(gate)}
    processes.leader(tmp_path / "pfo", *arguments, env=environment)
    processes.daemon(tmp_path / "pfo", *arguments, env=environment)
    slow = make_job(tmp_path / "pfo", 2, job_info={**THINKS, "job_id": "thinks"})
    quick = make_job(tmp_path / "pfo", 2)
    for folder in (slow, quick):
        register(folder, rank_infos(2))
    wait_for(lambda: number_of(quick) == 0, what="the other job's schedule")
    leader = leader_record(tmp_path / "pfo")
    assert leader is not None
    wait_for(lambda: (now := leader_record(tmp_path / "pfo")) and now.counter >= leader.counter + 5, what="heartbeats")
    newest = leader_record(tmp_path / "pfo")
    assert newest is not None
    assert newest.generation == leader.generation, "the standby has no reason to take over"
    assert number_of(slow) == -1
    gate.touch()
    wait_for(lambda: number_of(slow) == 0, what="the schedule that was thought about")


def test_a_job_whose_scheduler_may_plan_is_looked_at_no_more_often_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_daemon: Callable[..., Daemon]
) -> None:
    looks: list[str] = []
    poll = Coordinator.poll

    def counted(self: Coordinator) -> float:
        looks.append(self.folder.job_id)
        return poll(self)

    monkeypatch.setattr(Coordinator, "poll", counted)
    folder = register(make_job(tmp_path, 2))
    start_daemon(tmp_path, scheduler="schedulers:Thoughtful", watch="poll")
    wait_for(lambda: number_of(folder) == 0, what="the schedule")
    beats = leader_record(tmp_path)
    assert beats is not None
    looks.clear()
    wait_for(lambda: (now := leader_record(tmp_path)) and now.counter >= beats.counter + 3, what="three heartbeats")
    assert len(looks) < 40, "four a second, or so"


def test_a_daemon_that_plans_ends_at_once_on_sigterm(tmp_path: Path, processes: Processes) -> None:
    environment = {**ENVIRONMENT, "THOUGHT_THROUGH": str(tmp_path / "never")}
    daemon = processes.leader(tmp_path / "pfo", "--scheduler", "schedulers:Thoughtful", env=environment)
    folder = register(make_job(tmp_path / "pfo", 2, job_info={**THINKS, "job_id": "thinks"}))
    wait_for(lambda: folder.read(bodies.ClaimBody), what="the claim")
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(HANGS_AFTER_S) == 0


def test_a_plan_that_was_begun_in_an_earlier_leadership_is_not_written_when_the_same_daemon_leads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_daemon: Callable[..., Daemon]
) -> None:
    written: list[int] = []
    finished: list[Coordinator] = []
    poll = Coordinator.poll

    def noted_write(write: Callable[[], bool], body: bodies.CurrentBody) -> bool:
        written.append(body.generation)
        return write()

    def noted_poll(self: Coordinator) -> float:
        try:
            return poll(self)
        finally:
            finished.append(self)

    instead_of(monkeypatch, "write", bodies.CurrentBody, noted_write)
    monkeypatch.setattr(Coordinator, "poll", noted_poll)
    monkeypatch.setattr(SlowFirst, "made", [])
    monkeypatch.setattr(SlowFirst, "go_on", threading.Event())
    start_daemon(tmp_path, scheduler="schedulers:SlowFirst", watch="poll", poll_interval=0.05, lease_timeout=0.3)
    wait_for(lambda: leader_record(tmp_path), what="a leader")
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: SlowFirst.made, what="the first plan")
    other = bodies.LeaderBody(generation=2, nonce="other", host="there", pid=1)
    assert SharedDirectory(Files(tmp_path)).leaders.claim(other)
    wait_for(lambda: number_of(folder) == 0, what="a schedule of the second leadership")
    assert folder.read(bodies.CurrentBody).generation == 3  # type: ignore[union-attr]
    before = {id(coordinator) for coordinator in finished}
    written.clear()
    SlowFirst.go_on.set()
    wait_for(lambda: {id(coordinator) for coordinator in finished} - before, what="the end of the first plan")
    assert 1 not in written
    assert folder.schedule_numbers() == [0]


def test_a_daemon_that_claims_and_cannot_write_its_heartbeat_leads_as_soon_as_the_directory_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_daemon: Callable[..., Daemon]
) -> None:
    failures: list[int] = []
    listening: list[Watcher] = []
    start = Watcher.start

    def fails_once(write: Callable[[], bool], body: bodies.DaemonBody) -> bool:
        if not failures:
            failures.append(body.generation)
            raise StoreUnavailable(errno.EIO, "no answer")
        return write()

    def noted_start(self: Watcher) -> None:
        start(self)
        listening.append(self)

    instead_of(monkeypatch, "write", bodies.DaemonBody, fails_once)
    monkeypatch.setattr(Watcher, "start", noted_start)
    start_daemon(tmp_path, scheduler="Manual", watch="events")
    wait_for(lambda: leader_record(tmp_path), what="the heartbeat")
    wait_for(lambda: listening, what="file-system events")
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: number_of(folder) == 0, what="a schedule")
    assert failures == [1]


def test_a_daemon_without_jobs_logs_a_mistake_in_the_sites_rules_with_line_and_key(
    tmp_path: Path, start_daemon: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "site.yaml").write_text("coordination: deamon-only\n")
    start_daemon(tmp_path)
    wait_for(lambda: "site.yaml is not valid: line 1: coordination is 'deamon-only'" in caplog.text)


def test_two_jobs_run_at_once_without_mixing(tmp_path: Path, processes: Processes) -> None:
    processes.daemon(tmp_path, "--scheduler", "schedulers:ThreeSteps", env=ENVIRONMENT)
    infos = rank_infos(2)
    folders = [make_job(tmp_path, 2, attempt=str(n)) for n in range(2)]
    assert folders[0].job_id != folders[1].job_id, "two jobs of one shape in the same second"
    for folder in folders:
        register(folder, infos)
    for n, folder in enumerate(folders):
        wait_for(lambda folder=folder: number_of(folder) == 0, what="schedule 0")
        write_results(folder, 0, infos, time_s=1.0 + n)
    for n, folder in enumerate(folders):
        wait_for(lambda folder=folder: number_of(folder) == 1, what="schedule 1")
        schedule = schedule_of(folder, infos[0])
        assert schedule.frequencies[0] == ("forward", 1410 - 15 * (1 + n))


def test_a_wrong_scheduler_argument_is_an_error_at_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pfo_fs", "daemon", str(tmp_path), "--scheduler", "PointSolution"]
    done = subprocess.run([*command, "--scheduler-args", '{"path": "x"}'], capture_output=True, text=True)
    assert done.returncode == 1
    assert "solution_path" in done.stderr


@pytest.mark.slow
def test_a_daemon_killed_before_any_change_of_the_directory_leaves_a_job_that_ends_the_same(
    tmp_path: Path, processes: Processes
) -> None:
    runners = [
        processes.python(
            str(HERE / "kill_at_every_call.py"), str(tmp_path / str(first)), str(first), "6", env=ENVIRONMENT
        )
        for first in range(1, 7)  # mostly waiting for leases, so more of them than cores
    ]
    runs = []
    for runner in runners:
        output, _ = runner.communicate()
        assert runner.returncode == 0, output[-2000:]
        runs += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    undisturbed = [run["content"] for run in runs if not run["died"]]
    assert len(undisturbed) == 6
    killed = [run for run in runs if run["died"]]
    assert len(killed) > 50
    for run in killed:
        assert run["content"] == undisturbed[0], f"killed at call {run['n']}"
