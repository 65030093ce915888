"""A Slurm cluster on this machine: one slurmctld, and nodes with names and processes of their own.

Each node is a slurmd in namespaces of its own, whose first process takes all others along: that is a loss of power.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from running import HANGS_AFTER_S, pids_with

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "unshare", "runuser", "setpriv")

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld
SlurmdLogFile={root}/log/slurmd.%n
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
PropagateResourceLimits=NONE
ReturnToService=2
JobRequeue=1
PrologFlags=Alloc
Prolog={root}/prolog.sh
Epilog={root}/epilog.sh
KillWait=60
SlurmdTimeout=10
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=1000 Gres=gpu:4
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=10 DefaultTime=5 MaxTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF DefaultTime=5 MaxTime=60
"""
_NODE = """
hostname "$1"; mount --bind "$2/hosts" /etc/hosts; mount -t tmpfs none /dev/shm
trap "" TERM; slurmd -D -N "$1" & while :; do wait -n || sleep 0.2; done
"""  # bash is the first process of the node: it reaps what lost its parent


class Cluster:
    """The cluster; `stop` ends all that was started, by process id.

    Args:
        root: An empty folder of its own.
        nodes: How many nodes.
        tracking: How slurmd follows the processes of a job: `linuxproc` or `cgroup`.
        hooks: Texts of `prolog.sh` and `epilog.sh`.
    """

    def __init__(self, root: Path, nodes: int, tracking: str, hooks: dict[str, str]) -> None:
        self.root, self.tracking = root, tracking
        self._nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        host, port = socket.gethostname().split(".")[0], _free_ports(nodes + 1)
        for folder in ("state", "log", "dev", *(f"spool/{node}" for node in self._nodes)):
            (root / folder).mkdir(parents=True)
        for gpu in range(4):
            (root / f"dev/gpu{gpu}").symlink_to("/dev/null")  # Slurm wants devices
        (root / "gres.conf").write_text(f"Name=gpu File={root}/dev/gpu[0-3]\n")
        (root / "cgroup.conf").write_text("CgroupAutomount=no\n")
        names = "".join(f"127.0.0.1 {node}\n" for node in self._nodes)
        (root / "hosts").write_text(Path("/etc/hosts").read_text() + names)
        settings = {"host": host, "port": port, "first": port + 1, "last": port + nodes, "nodes": nodes}
        (root / "slurm.conf").write_text(_CONFIGURATION.format(root=root, tracking=tracking, **settings))
        for name, text in hooks.items():
            (root / name).write_text(text)
            (root / name).chmod(0o755)
        self.environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def start(self) -> None:
        self._launch("slurmctld", "slurmctld", "-D", "-i")
        for node in self._nodes:
            self.start_node(node)
        self.wait(
            lambda: self.run("sinfo", "-h", "-p", "low", "-o", "%T").split() == ["idle"], HANGS_AFTER_S, "idle nodes"
        )

    def start_node(self, node: str) -> None:
        spaces = ("unshare", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
        self._launch(node, *spaces, "bash", "-c", _NODE, "node", node, str(self.root))

    def power_off(self, node: str) -> None:
        self._processes[node].kill()
        self._processes.pop(node).wait(HANGS_AFTER_S)

    def _launch(self, name: str, *command: str) -> None:
        with (self.root / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],  # if pytest is killed
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def stop(self) -> None:
        controller = self._processes.pop("slurmctld", None)
        for node in list(self._processes):
            self.power_off(node)
        if controller is not None:
            controller.terminate()
            with suppress(subprocess.TimeoutExpired):
                controller.wait(10)
            controller.kill()
            controller.wait(HANGS_AFTER_S)

    # ---- jobs

    def run(self, *command: str) -> str:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, cwd=self.root, check=True
        ).stdout.strip()

    def submit(self, *arguments: str) -> str:
        return self.run("sbatch", "--parsable", "--export=ALL", "--output=log/job.%j", *arguments)

    def wait_for_state(self, job: str, *states: str, timeout_s: float = HANGS_AFTER_S) -> dict[str, str]:
        def reached() -> dict[str, str] | None:
            text = self.run("scontrol", "-o", "show", "job", job)
            fields = {key: value for key, is_, value in (part.partition("=") for part in text.split()) if is_}
            return fields if fields["JobState"] in states else None

        found: dict[str, str] = self.wait(reached, timeout_s, f"job {job} to be {' or '.join(states)}")
        return found

    def wait(self, condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(subprocess.SubprocessError):
                if value := condition():
                    return value
            time.sleep(0.2)
        raise AssertionError(f"waited {timeout_s} s for {what}\n{self._logs()}")

    def _logs(self) -> str:
        newest = sorted((self.root / "log").iterdir(), key=lambda path: path.stat().st_mtime)[-8:]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in newest)


def processes_of(cluster: Cluster, job: str) -> list[int]:
    """The processes of a job on this machine, whatever has become of their parents."""
    ours = pids_with("SLURM_CONF", cluster.environment["SLURM_CONF"])
    return [pid for pid in pids_with("SLURM_JOB_ID", job) if pid in ours]


def end_processes(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def missing() -> str:
    """Why there can be no cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "Slurm's nodes need root"
    absent = [program for program in PROGRAMS if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install slurmctld slurmd slurm-client)"
    spaces = ["unshare", "--uts", "--mount", "--pid", "--ipc", "--fork", "true"]
    return "" if subprocess.run(spaces, capture_output=True).returncode == 0 else "no namespaces may be made here"


def no_cgroups() -> str:
    """Why slurmd cannot follow processes by cgroups here; empty if it can."""
    probe = Path(f"/sys/fs/cgroup/freezer/pfo-fs-test-{os.getpid()}")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"Slurm 22.05 follows processes by the freezer of cgroup v1, which cannot be used here: {error.strerror}"
    return ""


def _free_ports(count: int) -> int:
    """The first of some ports that are free, below those that the kernel gives to clients."""
    for first in range(30_000 + os.getpid() % 1_500, 32_700, count):  # those below are for torch.distributed
        with suppress(OSError), ExitStack() as sockets:
            for port in range(first, first + count):
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")
