"""Real daemon processes: killed and restarted, and among other users, hostile files and hosts that lack something."""

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from jobs import instead_of, leader_body, leader_record, make_job, number_of, rank_infos, register
from running import HANGS_AFTER_S, Processes, environment, wait_for
from schedulers import SlowFirst

import pfo_fs
from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.daemon import Daemon
from pfo_fs.store import Files, SharedDirectory, bodies

THINKS = {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1, "world_size": 2, "job_metadata": "think"}


@pytest.mark.slow
def test_a_stopped_leader_that_wakes_up_steps_down(tmp_path: Path, processes: Processes) -> None:
    """As after a partition: its lock is still held, so the standby goes by the silence of the counter."""
    first = processes.leader(tmp_path, "--lease-timeout", "1")
    first.send_signal(signal.SIGSTOP)
    second = processes.daemon(tmp_path, "--lease-timeout", "1")
    wait_for(lambda: leader_record(tmp_path).pid == second.pid, what="the takeover")
    first.send_signal(signal.SIGCONT)
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: number_of(folder) == 0, what="a schedule")
    counter = leader_record(tmp_path).counter
    wait_for(lambda: leader_record(tmp_path).counter > counter + 2, what="heartbeats")
    assert leader_record(tmp_path).pid == second.pid
    wait_for(lambda: folder.read(bodies.CurrentBody).generation == 2, what="the new leader's first record")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_daemon_ends_by_blocked_signals_too(tmp_path: Path, processes: Processes, number: signal.Signals) -> None:
    blocks = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"
    acts = f"signal.signal({int(number)}, signal.SIG_DFL)"  # nohup starts tests with an ignored SIGHUP
    starter = f"import os, signal, sys; {acts}; {blocks}; os.execv(sys.executable, sys.argv[1:])"
    command = (sys.executable, "-m", "pfo_fs", "daemon", str(tmp_path), "--lease-timeout", "60")
    first = processes.python("-c", starter, *command)
    wait_for(lambda: leader_record(tmp_path), what="a leader")
    first.send_signal(number)
    assert first.wait() == 0
    assert leader_record(tmp_path).stopped
    second = processes.daemon(tmp_path, "--lease-timeout", "60")
    wait_for(lambda: leader_record(tmp_path).pid == second.pid, what="the next leader")


def test_a_job_that_is_planned_for_long_holds_up_no_heartbeat_or_job(tmp_path: Path, processes: Processes) -> None:
    gate = tmp_path / "gate"
    arguments = ("--scheduler", "schedulers:Thoughtful", "--lease-timeout", "1")
    processes.leader(tmp_path / "pfo", *arguments, env=environment(THOUGHT_THROUGH=str(gate)))
    processes.daemon(tmp_path / "pfo", *arguments, env=environment(THOUGHT_THROUGH=str(gate)))
    slow = make_job(tmp_path / "pfo", 2, job_info={**THINKS, "job_id": "thinks"})
    quick = make_job(tmp_path / "pfo", 2)
    for folder in (slow, quick):
        register(folder, rank_infos(2))
    wait_for(lambda: number_of(quick) == 0, what="the other job's schedule")
    leader = leader_record(tmp_path / "pfo")
    wait_for(lambda: (now := leader_record(tmp_path / "pfo")) and now.counter >= leader.counter + 5, what="heartbeats")
    assert leader_record(tmp_path / "pfo").generation == leader.generation, "the standby has no reason to take over"
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
    looks.clear()
    wait_for(lambda: (now := leader_record(tmp_path)) and now.counter >= beats.counter + 3, what="three heartbeats")
    assert len(looks) < 40, "four a second, or so"


def test_a_daemon_that_plans_ends_at_once_on_sigterm(tmp_path: Path, processes: Processes) -> None:
    never = environment(THOUGHT_THROUGH=str(tmp_path / "never"))
    daemon = processes.leader(tmp_path / "pfo", "--scheduler", "schedulers:Thoughtful", env=never)
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
    assert SharedDirectory(Files(tmp_path)).leaders.claim(leader_body(2))
    wait_for(lambda: number_of(folder) == 0, what="a schedule of the second leadership")
    assert folder.read(bodies.CurrentBody).generation == 3
    before = {id(coordinator) for coordinator in finished}
    written.clear()
    SlowFirst.go_on.set()
    wait_for(lambda: {id(coordinator) for coordinator in finished} - before, what="the end of the first plan")
    assert 1 not in written
    assert folder.schedule_numbers() == [0]


def test_a_daemon_without_jobs_logs_a_mistake_in_the_sites_rules_with_line_and_key(
    tmp_path: Path, start_daemon: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "site.yaml").write_text("coordination: deamon-only\n")
    start_daemon(tmp_path)
    wait_for(lambda: "site.yaml is not valid: line 1: coordination is 'deamon-only'" in caplog.text)


@pytest.mark.slow
def test_a_daemon_killed_before_any_change_leaves_a_job_that_goes_on(tmp_path: Path, processes: Processes) -> None:
    program = str(Path(__file__).with_name("kill_at_every_call.py"))
    runners = [
        processes.python(program, str(tmp_path / str(first)), str(first), "6", env=environment())
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


# ---- `--allow-users`: the jobs of some users of a directory that many share

ALICE, BOB = 12345, 23456


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make jobs of other users")
def test_only_jobs_of_allowed_users_are_served_and_only_their_files_read(tmp_path: Path, processes: Processes) -> None:
    root = tmp_path / "pfo"
    root.mkdir()
    root.chmod(0o2770)
    jobs = {name: make_job(root, 1, scheduler="Manual") for name in ("of bob", "of alice", "with bob's file")}
    for name, folder in jobs.items():
        for path in (folder.location, *folder.location.rglob("*")):
            os.chown(path, BOB if name == "of bob" else ALICE, -1)
    planted = jobs["with bob's file"]
    os.chown(planted.location / "job.json", BOB, -1)
    daemon = processes.daemon(root, "--allow-users", f"root,{ALICE}", "--log-level", "info")
    wait_for(lambda: jobs["of alice"].read(bodies.ClaimBody), "the claim of alice's job")
    seen: list[str] = []
    assert daemon.stdout
    while sum(folder.job_id in line for folder in (planted, jobs["of bob"]) for line in seen) < 2:
        seen.append(daemon.stdout.readline())
        assert seen[-1], "the daemon has ended"
    text = "".join(seen)
    assert f"{jobs['of bob'].job_id}: belongs to user {BOB}, whose jobs are not served" in text
    assert f"job.json: belongs to user {BOB}, not read" in text
    assert jobs["of bob"].read(bodies.ClaimBody) is None
    assert planted.read(bodies.ClaimBody) is None


# ---- a working directory that is hostile or gone, and hosts that are short of something

PACKAGE = str(Path(pfo_fs.__file__).parents[1])
PLANTED = ("statistics", "secrets", "highspy", "scipy", "numpy", "yaml", "typer", "rich", "watchdog", "lowtime")
SCRIPT = "import sys; del sys.path[0]; from pfo_fs.__main__ import daemon_main; daemon_main()"


@pytest.mark.parametrize(
    ("way", "path"), [("-m pfo_fs daemon".split(), f":{PACKAGE}"), (["-c", SCRIPT], PACKAGE)], ids=["module", "script"]
)
def test_files_where_daemons_start_never_run(way: list[str], path: str, tmp_path: Path, processes: Processes) -> None:
    """A group's member plants modules in the shared directory, and the daemon is started there."""
    root = tmp_path / "pfo"
    root.mkdir(mode=0o700)
    for name in PLANTED:
        (root / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise ImportError\n")
    processes.python(*way, ".", cwd=root, env=environment(PYTHONPATH=path))
    folder = register(make_job(root, 1))
    wait_for(lambda: folder.read(bodies.CurrentBody), what="a report about the job")
    assert not (tmp_path / "ran").exists()


def test_a_scheduler_is_found_in_the_working_directory_after_all_modules(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "mine.py").write_text("from pfo_fs.scheduler import Manual\nclass Mine(Manual): pass\n")
    (tmp_path / "statistics.py").write_text("raise SystemExit('planted')\n")
    root = tmp_path / "pfo"
    processes.daemon(root, "--scheduler", "mine:Mine", cwd=tmp_path, env=environment(PYTHONPATH=PACKAGE))
    wait_for(lambda: leader_record(root), what="a leader")


def test_a_daemon_goes_on_where_events_cannot_be_had_and_when_threads_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_daemon: Callable[..., Daemon]
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse_some(thread: threading.Thread) -> None:
        if thread.name.startswith("pfo-fs") and len(refused) < 5:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    no_events = Mock(side_effect=OSError(errno.EMFILE, "inotify instance limit reached"))
    monkeypatch.setattr("watchdog.observers.Observer", no_events)
    monkeypatch.setattr(threading.Thread, "start", refuse_some)
    start_daemon(tmp_path, scheduler="Manual", watch="events", poll_interval=0.05)
    folder = register(make_job(tmp_path, 1))
    wait_for(lambda: folder.read(bodies.CurrentBody), what="a report about the job")
    assert len(refused) == 5
