"""Ranks on two hosts and daemons on two more, over one network file system; links are cut, servers and leaders end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, Host, missing
from running import Processes, environment, wait_for
from training_job import StartJob

from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies

pytestmark = [pytest.mark.slow, pytest.mark.gluster]


@pytest.fixture
def started(tmp_path: Path, start_job: StartJob, processes: Processes) -> Iterator[Started]:
    """A job on the first two hosts that runs under the daemon of the third; a daemon on the fourth stands by."""
    if lacking := missing():
        pytest.skip(f"needs {lacking}")
    cluster = Cluster(tmp_path / "cluster", 4)
    try:
        yield Started(cluster, start_job, processes)
    finally:
        cluster.close()


class Started:
    """The processes of the cluster, and how the tests look at them."""

    def __init__(self, cluster: Cluster, start_job: StartJob, processes: Processes) -> None:
        self.cluster, self.processes = cluster, processes
        leader, standby = cluster.hosts[2:]
        self.leader = self.daemon(leader)
        self.shared = SharedDirectory(Files(standby.mount / "pfo", create=True))
        wait_for(self.shared.read_daemon, "the daemon")
        self.standby = self.daemon(standby)
        given = {"mesh": {"pp": 2}, "work_s": 0.02}
        self.job = start_job(2, given, hosts=cluster.hosts[:2], PFO_FS_GPU="simulated")
        with self.job:
            assert {line["coordination"] for line in self.job.having("coordination")} == {"daemon"}
            self.job.follows(0)
        self.folder: JobFolder = self.shared.job(self.job.having("job_id")[0]["job_id"])
        self.folder.read_job()
        wait_for(lambda: 0 in self.folder.numbers(bodies.OrderBody), "the order")

    def daemon(self, host: Host) -> subprocess.Popen[str]:
        words = ["-m", "pfo_fs", "daemon", str(host.mount / "pfo")]
        return self.processes.start(*host.prefix, sys.executable, *words, env=environment(**host.environment))

    def leader_host(self) -> str:
        record = self.shared.read_daemon()
        return record.host if record is not None else ""

    def switch_to(self, number: int, mhz: int) -> None:
        """A person edits the schedule on the host of the standby daemon; both ranks change at one step."""
        (self.shared.files.root / self.folder.path / "schedule.yaml").write_text(f"all: {mhz}\n")
        self.job.follows(number)

    def ends_well(self) -> None:
        """Training ends without an error, its end is recorded, and no rank ever went back to an older schedule."""
        assert self.job.finish() == 0
        assert wait_for(lambda: self.folder.read(bodies.EndBody), "the end").reason == "finished"
        for rank in range(2):
            numbers = [line["number"] for line in self.job.having("step") if line["rank"] == rank]
            assert numbers == sorted(numbers)


def test_a_leader_that_was_cut_off_takes_no_rank_back_when_its_link_is_healed(started: Started) -> None:
    cut_off = started.cluster.hosts[2]
    with started.job:
        started.cluster.cut(cut_off)
        wait_for(lambda: started.leader_host() == "host3", "the next leader")
        started.switch_to(1, 1200)
        started.cluster.heal(cut_off)
        # Its calls return now, some of them with what they were to write before the link was cut.
        for _ in range(50):
            assert started.leader_host() == "host3"
            time.sleep(0.01)
        started.switch_to(2, 1110)
        started.ends_well()


@pytest.mark.parametrize("how", ["stopped", "killed", "cut off from a host of ranks"])
def test_training_goes_on_without_the_server_and_switches_later(started: Started, how: str) -> None:
    """A helper may hang in a call; the rank there trains on, and so does the other one."""
    cluster = started.cluster
    host, server = cluster.hosts[1], cluster.volume.server
    begin, end = {
        "stopped": (lambda: server.send_signal(signal.SIGSTOP), lambda: server.send_signal(signal.SIGCONT)),
        "killed": (server.kill, cluster.volume.restart_server),
        "cut off from a host of ranks": (lambda: cluster.hide_server(host), lambda: cluster.show_server(host)),
    }[how]
    with started.job:
        begin()
        started.job.trains_on(200)
        end()
        wait_for(lambda: readable(started), "the directory")
        started.switch_to(1, 1200)
        started.ends_well()


def readable(started: Started) -> bool:
    try:
        return started.folder.read(bodies.CurrentBody) is not None
    except OSError:
        return False
