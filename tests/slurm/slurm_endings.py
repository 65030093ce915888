"""How Slurm jobs end: each function runs a job on a node of its own to its end, and returns what is left of it."""

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from running import HANGS_AFTER_S
from slurm_cluster import Cluster, end_processes, processes_of

from pfo_fs.errors import PfoError
from pfo_fs.store import JobFolder, SharedDirectory, bodies, layout
from pfo_fs.store.bodies import EndBody

LOWERED = "all: 900\n"


@dataclass
class Ended:
    """What is left of a job: Slurm's state, processes, and of each run our records and the last acts on its GPUs."""

    state: str
    processes: list[int]
    ends: list[EndBody | None]
    clocks: list[str]

    @property
    def reasons(self) -> list[str]:
        return [end.reason if end is not None else "unknown" for end in self.ends]


@dataclass
class Site:
    """The cluster, its shared directory, and what becomes of the jobs there."""

    cluster: Cluster
    shared_dir: Path
    names: list[str]
    threads: Executor
    jobs: list[str] = field(default_factory=list)
    _started: dict[str, Future[Ended]] = field(default_factory=dict)

    def start_all(self) -> None:
        for name in self.names:
            self._start(name)

    def _start(self, name: str) -> None:
        self.stop_file(name).unlink(missing_ok=True)
        self._started[name] = self.threads.submit(ENDINGS[name], self, f"n{self.names.index(name) + 1}")

    def ended(self, name: str) -> Ended:
        """Waits for what is left of a job. If Slurm was not in time, another job starts, for a rerun of the test."""
        try:
            return self._started[name].result()
        except AssertionError:
            self._start(name)
            raise

    def stop_file(self, name: str) -> Path:
        return self.cluster.root / f"stop-{name}"

    def submit(self, name: str, *options: str, exit_code: int = 0, script: str = "train.sbatch") -> str:
        """Submits a job of one rank, unless the options say otherwise."""
        values = f"ALL,STOP_FILE={self.stop_file(name)},EXIT_CODE={exit_code}"
        one_rank = ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1") if script == "train.sbatch" else ()
        job = self.cluster.submit("-J", name, "--time=5", *one_rank, *options, f"--export={values}", script)
        self.jobs.append(job)
        return job

    def folders(self, job: str) -> list[JobFolder]:
        """The folders of a Slurm job's runs, oldest first."""
        try:
            shared = SharedDirectory.open(self.shared_dir)
            folders = [shared.job(job_id) for job_id in shared.job_ids()]
            read = [(folder.read_job(), folder) for folder in folders]
        except PfoError:
            return []
        return [folder for body, folder in read if body is not None and body.job_info.job_metadata == job]

    def acts(self, folder: JobFolder) -> list[list[str]]:
        """What each simulated GPU of a run was told, in order."""
        ranks = [body for rank in folder.numbers(bodies.RanksBody) if (body := folder.read_rank(rank)) is not None]
        logs = [self.cluster.root / "sim" / f"{body.gpu_uuid.removeprefix('SIM-')}.log" for body in ranks]
        return [[json.loads(line)["action"] for line in log.read_text().splitlines()] for log in logs]

    def begun(self, job: str, ranks: int = 1) -> None:
        """Waits until the job trains with lowered clocks."""
        folder: JobFolder = self.cluster.wait(lambda: self.folders(job), 90, f"job {job}")[-1]
        folder.write_file(layout.YAML, LOWERED.encode())

        def lowered() -> bool:
            acts = self.acts(folder)
            return len(acts) == ranks and all(act[-1:] == ["lock"] for act in acts)

        self.cluster.wait(lowered, 60, f"lowered clocks of job {job}")

    def left_of(self, job: str, *states: str, timeout_s: float = HANGS_AFTER_S) -> Ended:
        """Waits for the job's end, and for the records and processes that follow it by a little."""
        state = self.cluster.wait_for_state(job, *states, timeout_s=timeout_s)["JobState"]

        with suppress(AssertionError):  # the test says what is left
            self.cluster.wait(lambda: not processes_of(self.cluster, job), 45, "the last process")
        folders = self.folders(job)
        return Ended(
            state,
            processes_of(self.cluster, job),
            [folder.read(bodies.EndBody) for folder in folders],
            [acts[-1] for folder in folders for acts in self.acts(folder)],
        )

    def again(self, job: str) -> None:
        """Slurm waits for two minutes before it starts a requeued job again: not here. And no limit ends it again.

        A node refuses a job that begins in the second in which it was requeued: "Job credential revoked".
        """
        self.cluster.wait_for_state(job, "PENDING")  # after its limit, Slurm takes up to a minute
        update = ("scontrol", "update", f"JobId={job}", "StartTime=now+2", "TimeLimit=30")
        self.cluster.wait(lambda: [self.cluster.run(*update)], 20, "a new start of the job")


def _trained(site: Site, node: str, name: str, state: str, exit_code: int = 0) -> Ended:
    job = site.submit(name, "-w", node, exit_code=exit_code)
    site.begun(job)
    site.stop_file(name).touch()
    return site.left_of(job, state)


def scancel(site: Site, node: str) -> Ended:
    job = site.submit("scancel", "-w", node)
    site.begun(job)
    site.cluster.run("scancel", job)
    return site.left_of(job, "CANCELLED")


def all_killed(site: Site, node: str) -> Ended:
    """What an out-of-memory kill of a whole job does: no process of ours can reset a clock or write a record."""
    job = site.submit("killed", "-w", node)
    site.begun(job)
    end_processes(processes_of(site.cluster, job))
    return site.left_of(job, "FAILED")


def time_limit(site: Site, node: str) -> Ended:
    """Slurm looks at limits twice a minute. There is no warning: the script requeues while Slurm ends it."""
    job = site.submit("limit", "-w", node, "--signal=B:USR2@0")
    site.begun(job)
    site.cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now")
    site.again(job)
    return site.left_of(job, "COMPLETED")


def warned_before_the_time_limit(site: Site, node: str) -> Ended:
    """A limit of a minute, and a warning a minute before it: the warning comes within half a minute."""
    job = site.submit("warned", "-w", node, "--time=2", "--signal=B:USR1@90")
    site.begun(job)
    site.again(job)
    return site.left_of(job, "COMPLETED")


def preemption(site: Site, node: str) -> Ended:
    job = site.submit("preempted", "-w", node, "--gpus-per-node=4")
    site.begun(job)
    urgent = site.cluster.submit("-p", "high", "-w", node, "--gpus-per-node=4", "--wrap", "sleep 2")
    site.jobs.append(urgent)
    site.again(job)
    return site.left_of(job, "COMPLETED")


def two_nodes_lose_one(site: Site, node: str) -> Ended:
    """The rank on the other node goes on, and waits for the lost one if it trains for real."""
    other = f"n{len(NAMES['linuxproc']) + 1}"
    job = site.submit("lost", "--nodes=2", "-w", f"{node},{other}")
    site.begun(job, ranks=2)
    site.cluster.power_off(other)
    site.cluster.wait_for_state(job, "PENDING")
    site.cluster.run("scancel", job)
    ended = site.left_of(job, "CANCELLED")
    site.cluster.start_node(other)
    return ended


def daemon(site: Site, node: str) -> Ended:
    """Warned within half a minute, as above; the second run is cancelled."""
    job = site.submit("daemon", "-w", node, "--time=2", "--signal=B:USR1@90", script="daemon.sbatch")
    shared = SharedDirectory.open(site.shared_dir, create=True)
    site.cluster.wait(shared.read_daemon, 60, "the daemon")
    site.again(job)
    site.cluster.wait(lambda: (found := shared.read_daemon()) and found.generation == 2, 60, "the second daemon")
    site.cluster.run("scancel", job)
    state = site.cluster.wait_for_state(job, "CANCELLED")["JobState"]
    site.cluster.wait(lambda: not processes_of(site.cluster, job), 20, "the last process of the daemon")
    return Ended(state, processes_of(site.cluster, job), [], [])


ENDINGS: dict[str, Callable[[Site, str], Ended]] = {
    "success": lambda site, node: _trained(site, node, "success", "COMPLETED"),
    "failure": lambda site, node: _trained(site, node, "failure", "FAILED", exit_code=3),
    "scancel": scancel,
    "all killed": all_killed,
    "time limit": time_limit,
    "warned": warned_before_the_time_limit,
    "preemption": preemption,
    "node lost": two_nodes_lose_one,
    "daemon": daemon,
}

NAMES = {"linuxproc": list(ENDINGS), "cgroup": ["success", "scancel", "all killed"]}
"""The endings that are tried, by the way in which Slurm follows processes."""
