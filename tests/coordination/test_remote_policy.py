"""Policies in processes of their own: they do what they do here, and end alone when they take too much."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from running import HANGS_AFTER_S, wait_for
from scheduler_jobs import make_job, result_of

from pfo_fs.coordination.policy_start import PolicyCall
from pfo_fs.coordination.remote_policy import PolicyLimits, PolicyProcesses, RemotePolicy
from pfo_fs.errors import PlanError, PolicyFailed, PolicyLost
from pfo_fs.scheduler import FrequencyScheduler, load_scheduler
from pfo_fs.settings import PFOSettings

JOB, INFOS = make_job(2)
RESULTS = [result_of(rank) for rank in range(2)]
SMALL = PolicyLimits(memory_bytes=64 << 20, cpu_s=1, wall_s=HANGS_AFTER_S)

pytestmark = pytest.mark.xdist_group("remote policies")

Start = Callable[..., RemotePolicy]


@pytest.fixture
def processes() -> PolicyProcesses:
    return PolicyProcesses(SMALL)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[RemotePolicy] = []

    def make(name: str, metadata: str = "", wall_s: float = SMALL.wall_s) -> RemotePolicy:
        job = JOB.model_copy(update={"job_metadata": metadata})
        limits = replace(SMALL, wall_s=wall_s)
        policy = PolicyProcesses(limits).make(PolicyCall(name, job, INFOS, PFOSettings(), {}))
        assert isinstance(policy, RemotePolicy)
        started.append(policy)
        return policy

    yield make
    for policy in started:
        policy.close()


def test_a_policy_answers_as_it_does_in_this_process(start: Start) -> None:
    here = load_scheduler("schedulers:ThreeSteps")(JOB, INFOS, PFOSettings())
    there = start("schedulers:ThreeSteps")
    for _ in range(3):
        assert there.request() == here.request()
        assert there.done == here.done
        here.observe(RESULTS)
        there.observe(RESULTS)
    assert there.done
    assert there.request() == here.request()


def point_solution(path: Path, text: str) -> PolicyCall:
    path.write_text(text)
    return PolicyCall("PointSolution", JOB, INFOS, PFOSettings(), {"solution_path": str(path)})


def test_a_plan_is_read_elsewhere(processes: PolicyProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = point_solution(tmp_path / "plan.py", "[[('forward', 1200)], [('forward', 900)]]")
    monkeypatch.setattr("pfo_fs.scheduler.fixed_plan.read_plan", lambda path: pytest.fail("read here"))
    made = processes.make(call)
    assert [one.frequencies for one in made.request().schedules] == [[("forward", 1200)], [("forward", 900)]]
    assert not isinstance(made, RemotePolicy)
    assert not isinstance(processes.make(call._replace(name="Manual", args={})), RemotePolicy), "it has no plan"


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [("[\nexit()]", r"plan\.py, line 2: code", 2), (None, "missing solution_path", None)],
    ids=["the plan", "no plan"],
)
def test_a_mistake_in_arguments_is_named_with_its_line(
    processes: PolicyProcesses, tmp_path: Path, text: str | None, said: str, line: int | None
) -> None:
    call = point_solution(tmp_path / "plan.py", text or "")
    with pytest.raises(PlanError, match=said) as caught:
        processes.make(call if text else call._replace(args={}))
    assert caught.value.line == line


def test_equal_schedules_take_the_memory_of_one_and_too_many_are_refused(start: Start) -> None:
    first, second = start("schedulers:ThreeSteps").request().schedules
    assert (first.rank, second.rank) == (0, 1)
    assert first.frequencies is second.frequencies
    with pytest.raises(PlanError, match="more than 400,000 instructions"):
        start("schedulers:LongSchedules").request()


def test_no_public_name_of_the_protocol_is_left_to_the_base_class() -> None:
    own_state = {"done", "watches_iteration_times"}
    before_a_job = {"check_args"}
    made_of_others = {"next_schedule"}
    public = {name for name in vars(FrequencyScheduler) if not name.startswith("_")}
    assert public - own_state - before_a_job - made_of_others <= set(vars(RemotePolicy))


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        ("an error", "the scheduler failed: ZeroDivisionError: as asked"),
        ("memory", "more than 64 MiB of memory"),
        ("processor time", "more than 1 s of processor time"),
        ("time", "has not answered for 1 s"),
        ("a signal", "SIGSEGV"),
        ("the process", "exit code 3"),
    ],
)
def test_a_policy_that_raises_or_takes_too_much_fails_and_says_of_what(start: Start, takes: str, said: str) -> None:
    policy = start("schedulers:Misbehaves", takes, wall_s=1.0 if takes == "time" else SMALL.wall_s)
    policy.request()
    with pytest.raises(PolicyFailed, match=said):
        policy.observe(RESULTS)


def test_the_process_that_forks_is_started_again_when_it_was_killed(start: Start) -> None:
    first = start("schedulers:ThreeSteps")
    server = psutil.Process(first._process.pid).ppid()
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: psutil.Process(server).status() == psutil.STATUS_ZOMBIE, what="its end")
    second = start("schedulers:ThreeSteps")
    assert second.request().schedules[0].frequencies[0] == ("forward", 1410)
    assert first.request() == second.request(), "it goes on"
    os.kill(first._process.pid, signal.SIGKILL)
    with pytest.raises(PolicyLost):
        first.observe(RESULTS)
    second.close()
    wait_for(lambda: not psutil.pid_exists(second._process.pid), what="the end of a closed one")


def test_a_daemon_without_files_tries_again_later(processes: PolicyProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    none_left = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr("pfo_fs.coordination.remote_policy._processes.Pipe", none_left)
    with pytest.raises(PolicyLost, match="Too many open files"):
        processes.make(PolicyCall("schedulers:ThreeSteps", JOB, INFOS, PFOSettings(), {}))


def test_a_policy_that_plans_ends_with_the_daemon(tmp_path: Path) -> None:
    program = tmp_path / "daemon.py"
    program.write_text(
        "if __name__ == '__main__':\n"
        "    import test_remote_policy as of\n"
        "    job = of.JOB.model_copy(update={'job_metadata': 'time'})\n"
        "    call = of.PolicyCall('schedulers:Misbehaves', job, of.INFOS, of.PFOSettings(), {})\n"
        "    policy = of.PolicyProcesses(of.SMALL).make(call)\n"
        "    policy.request()\n"
        "    print(policy._process.pid, flush=True)\n"
        "    policy.observe(of.RESULTS)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    daemon = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment)
    pid = int(daemon.stdout.readline())
    assert psutil.pid_exists(pid)
    daemon.kill()
    daemon.communicate()
    wait_for(lambda: not psutil.pid_exists(pid), what="the end of the policy's process")
