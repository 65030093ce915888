"""Real training processes with real torch.distributed (gloo), coordinated by a daemon or by themselves."""

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from commands import pfo_fs
from gluster_volume import Gluster
from jobs import results_by_rank
from running import HANGS_AFTER_S, Processes, environment, wait_for
from training_job import StartJob

from pfo_fs.store import Files, SharedDirectory, bodies
from pfo_fs.turns import ALL, NONE, ROUND


@pytest.mark.slow
def test_without_a_daemon_rank_0_schedules_and_all_ranks_switch_at_one_step(start_job: StartJob) -> None:
    with start_job(2, {"mesh": {"pp": 2}}) as job:
        assert [line["coordination"] for line in job.having("coordination")] == ["local", "local"]
        job.follows(0)
        job.switches("stages: {0: 1200, 1: 1110}  # typed while it runs\n")
        job.ends()
    folder = job.folder
    assert folder.read(bodies.ClaimBody).kind == "local"
    assert folder.numbers(bodies.RanksBody) == [0, 1]
    assert folder.schedule_numbers() == [0, 1]
    ways = wait_for(lambda: [rank.clock_backend for rank in folder.read(bodies.ProgressBody, name=0).ranks], "progress")
    assert ways == ["simulated", "simulated"]
    wait_for(lambda: list(results_by_rank(folder, 0)) == [0, 1], "what was measured")
    locked = [{line["mhz"] for line in log if line["action"] == "lock"} for log in job.clock_logs().values()]
    assert sorted(map(sorted, locked)) == [[1110], [1200]]


@pytest.mark.slow
def test_ranks_follow_a_persons_schedule_in_turns_until_the_step_that_it_names(
    start_job: StartJob, processes: Processes, tmp_path: Path
) -> None:
    processes.leader(tmp_path / "pfo")
    with start_job(2, {"mesh": {"pp": 2}}) as job:
        job.follows(0)
        until = max(line["step"] for line in job.having("step")) + 600
        turns = [turn for turn in (1, 2, 3, 0) for _ in range(20)]  # long enough for clocks that act late
        begin = job.switches(f"all: 1200\nturns: {turns}\nuntil: {until}\n")
        assert begin < until <= job.follows(2)
        folder = job.folder
        assert f"state: ended at step {until}" in (folder.location / "schedule.status.yaml").read_text()
        job.ends()
    assert folder.read(bodies.IndexBody, number=1).after == 0
    found = results_by_rank(folder, 1)
    assert [found[rank].result.iter_step[-1] for rank in (0, 1)] == [begin + 80, begin + 80]
    for log in job.clock_logs().values():
        assert len([line for line in log if line["action"] == "lock"]) > 1, "the clock goes down again"


@pytest.mark.slow
def test_status_knows_no_clock_of_a_gpu_whose_clock_process_was_killed(start_job: StartJob, tmp_path: Path) -> None:
    def told() -> str:
        return pfo_fs("status", tmp_path / "pfo", "-v").stdout

    with start_job(1, {"mesh": {"pp": 1}}) as job:
        job.follows(0)
        job.switches("all: 900\n")
        wait_for(lambda: "900 MHz" in told(), "the clock")
        os.kill(job.having("clock_pid")[0]["clock_pid"], signal.SIGKILL)
        wait_for(lambda: "unknown" in told() and "900 MHz" not in told(), "the status")
        assert "clocks set through: nothing: the clock process has died" in told()


def test_a_rank_that_alone_gets_sigterm_is_ended_by_it_at_once_and_its_job_did_not_crash(start_job: StartJob) -> None:
    """As when a launcher ends its ranks: neither the helper nor the clock process gets the signal."""
    with start_job(1, {"mesh": {"pp": 1}}) as job:
        wait_for(lambda: job.of(step=3), "steps")
    os.kill(job.having("pid")[0]["pid"], signal.SIGTERM)
    assert job.processes[0].wait(HANGS_AFTER_S) == 128 + signal.SIGTERM
    assert wait_for(lambda: job.folder.read(bodies.EndBody), "the end").reason == "terminated"


@pytest.mark.slow
def test_a_helper_that_is_killed_is_replaced_and_schedules_go_on(start_job: StartJob) -> None:
    with start_job(2, {"mesh": {"pp": 1, "dp": 2}}) as job:
        job.follows(0)
        for line in job.having("helper_pid"):
            if line["helper_pid"]:
                os.kill(line["helper_pid"], signal.SIGKILL)
        job.switches()
        job.ends()


@pytest.mark.slow
def test_ranks_drop_a_stragglers_plan_when_the_daemon_dies_and_resume_it_with_the_next_one(
    start_job: StartJob, processes: Processes, tmp_path: Path
) -> None:
    setting = {"PFO_FS_SCHEDULER": "schedulers:FollowsStraggler", "PFO_FS_STRAGGLER_TIMEOUT": "3"}
    daemon = processes.leader(tmp_path / "pfo", env=environment(**setting))
    job = start_job(2, {"mesh": {"pp": 2}, "coordination": "daemon"}, **setting)

    def all_at(mhz: int) -> bool:
        """Whether all GPUs were locked at this clock, or at none, in the steps to come."""
        before = {name: len(log) for name, log in job.clock_logs().items()}
        steps = len(job.having("step"))
        wait_for(lambda: len(job.having("step")) > steps + 40, what="steps")
        locked = [{line["mhz"] for line in log[before[name] :]} for name, log in job.clock_logs().items()]
        return all(mhz in clocks if mhz else not clocks & {900, 1200} for clocks in locked)

    with job:
        (job.folder.location / "schedule.yaml").write_text("straggler: {slowdown: 1.2}\n")
        wait_for(lambda: all_at(900), "the pace of the straggler")
        daemon.kill()
        wait_for(lambda: all_at(0), "the end of the hold")
        processes.daemon(tmp_path / "pfo", env=environment(**setting))
        wait_for(lambda: all_at(900), "the pace of the straggler, again")
        assert job.finish() == 0


@pytest.mark.slow
def test_an_exception_in_training_is_what_the_job_ended_with(start_job: StartJob) -> None:
    with start_job(2, {"mesh": {"pp": 2}, "steps": 20, "die": {"rank": 0, "step": 5}}, torchrun=True) as job:
        assert job.finish() != 0
        end = wait_for(lambda: job.folder.read(bodies.EndBody), "the end")
        assert (end.reason, end.message) == ("crashed", "RuntimeError: as asked")


@pytest.mark.slow
def test_a_rank_without_the_directory_does_not_hold_up_training(start_job: StartJob, tmp_path: Path) -> None:
    """As where one node lacks the mount."""
    (tmp_path / "file").touch()
    given = {"mesh": {"pp": 2}, "steps": 10, "shared_dir_of_rank_1": str(tmp_path / "file/pfo")}
    with start_job(2, given, LOCAL_RANK="0") as job:
        assert job.finish() == 0
        assert len(job.of(done=True)) == 2


@pytest.mark.slow
@pytest.mark.gluster
def test_a_hung_file_system_neither_stops_training_nor_its_end(start_job: StartJob, gluster: Gluster) -> None:
    """The server is stopped: every call on the mount blocks, without an error, for as long as it likes."""
    with start_job(2, {"mesh": {"pp": 2}, "shared_dir": str(gluster.mounts[0] / "pfo"), "work_s": 0.02}) as job:
        job.follows(0)
        gluster.server.send_signal(signal.SIGSTOP)
        job.trains_on()
        assert job.finish() == 0, "and the end of training does not wait for the file system"
        assert len(job.of(done=True)) == 2
    folder = gluster.mounts[1]
    gluster.server.send_signal(signal.SIGCONT)
    shared = SharedDirectory(Files(folder / "pfo"))
    end = wait_for(
        lambda: shared.job(shared.job_ids()[0]).read(bodies.EndBody), "the end, once the file system answers"
    )
    assert end.reason == "finished"


@pytest.mark.slow
def test_check_measures_what_a_persons_schedule_costs_a_job(start_job: StartJob) -> None:
    given = {"mesh": {"pp": 2}, "launches": True, "instructions": ["forward", "backward"] * 2}
    with start_job(2, given) as job:
        job.follows(0)
        job.switches("all: 900\n")
        wait_for(lambda: job.of(number=1, rank=0)[30:], "steps under it")
        command = [sys.executable, "-m", "pfo_fs", "check", str(job.folder.location), "--steps", "4", "--json"]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False)
        assert job.finish() == 0
    answer = json.loads(checked.stdout)
    index = job.folder.read(bodies.IndexBody, number=answer["schedule"])
    took: dict[int, list[float]] = {turn: [] for turn in ROUND}
    for before, line in pairwise(job.of(rank=0, number=index.number)):
        turns = {index.turns[one["step"] % len(index.turns)] for one in (before, line)}
        if len(turns) == 1 and line["step"] < index.until:  # the first step of a turn may begin at the clock before
            took[turns.pop()].append(line["at_s"] - before["at_s"])
    assert answer["slower"] == pytest.approx(median(took[ALL]) / median(took[NONE]) - 1, abs=0.03)
    assert answer["slower"] > 0.05
    assert checked.returncode == 1
    assert job.having("step")[-1]["number"] == index.after, "the person's schedule runs again"


@pytest.mark.slow
def test_without_a_daemon_clocks_are_freed_by_the_switch_and_by_removing_the_directory(start_job: StartJob) -> None:
    job = start_job(2, {"mesh": {"pp": 2}})

    def last_clocks() -> set[tuple[str, int]]:
        return {(log[-1]["action"], log[-1]["mhz"]) for log in job.clock_logs().values()}

    with job:
        job.follows(0)
        job.switches("all: 900\n")
        done = pfo_fs("off", "--all", "--wait", "--json", "-d", job.shared_dir)
        assert [row["held_ranks"] for row in json.loads(done.stdout)["jobs"]] == [[0, 1]]
        wait_for(lambda: last_clocks() == {("reset", 0)}, "default clocks")
        job.trains_on(20)
        assert last_clocks() == {("reset", 0)}, "and they stay so"
        assert pfo_fs("on", "--all", "--wait", "--json", "-d", job.shared_dir).returncode == 0
        wait_for(lambda: all(log[-1]["mhz"] == 900 or log[-2]["mhz"] == 900 for log in job.clock_logs().values()))
        shutil.rmtree(job.shared_dir, ignore_errors=True)
        shutil.rmtree(job.shared_dir, ignore_errors=True)  # what was written meanwhile
        steps = max(line["step"] for line in job.having("step"))
        wait_for(lambda: last_clocks() == {("reset", 0)} and job.of(step=steps + 200), "default clocks that stay")
        assert job.finish() == 0


@pytest.mark.slow
def test_the_power_of_a_waiting_gpu_is_measured_between_two_processes(tmp_path: Path, processes: Processes) -> None:
    simulated = environment(PFO_FS_GPU="simulated", PFO_FS_SIM_DIR=str(tmp_path / "sim"))
    words = ("-m", "pfo_fs", "profile-p2p", "--seconds", "1", "--json")
    command = processes.python(*words, env=simulated, stderr=subprocess.DEVNULL)
    output, _ = command.communicate()
    assert command.returncode == 0, output
    found = json.loads(output)
    assert found["rows"][0]["clock_mhz"] == 0
    assert found["rows"][0]["power_w"] > 0
