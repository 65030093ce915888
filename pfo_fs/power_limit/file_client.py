"""A rank's connection to its host's helper: the profile (rank 0), and the job in the shared directory (all ranks).

The job has a folder like any other job, so that `pfo-fs off` and `status` see it, but no process schedules the job.
Only making a client, and `create_job`, `join` and `save`, wait for the helper, for a limited time.
"""

import logging
import os
import secrets
import socket
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from pfo_fs.errors import CoordinationError, PlanError, plain_text
from pfo_fs.guard import WarnOnce
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages as m
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.power_limit.measurements import KnobMeasurement, parse_profile, profile_text

log = logging.getLogger("pfo_fs")

_JOINS_WITHIN_S = 5.0
"""Training starts without the directory if that does not answer in this time, in s; `poll` reads later answers."""


class JobKey(NamedTuple):
    """The job's folder, as rank 0 has made it: what other ranks need to join."""

    job_id: str
    directory_id: str
    attempt: str


class FileClient:
    """Reads and writes the files through the helper process; after a problem, training goes on without them.

    Args:
        profile_path: The file of the profile; None if there is none, and on all ranks but 0.
        token: The job's secret, the same on all ranks; by it, the ranks of a host find their common helper.
        timeout_s: The profile is read in at most this time.

    Attributes:
        profile: The profile as it was at the start; None if there was none that can be used.
        profile_error: What is wrong with the content of the profile; empty if nothing is, or there is no profile.
        helper: The address of this host's helper; empty if no file and no directory is given.
        is_off: Whether this job is switched off, or its directory was removed.
    """

    def __init__(
        self,
        profile_path: str | os.PathLike[str] | None,
        shared_dir: str | os.PathLike[str] | None,
        token: str,
        rank: int = 0,
        *,
        timeout_s: float = 15.0,
    ) -> None:
        self.profile_path = profile_path
        self.profile: Sequence[KnobMeasurement] | None = None
        self.profile_error = ""
        self.is_off = False
        self._rank = rank
        self._path = None if profile_path is None else os.path.abspath(os.fsdecode(profile_path))
        self._may_replace = False  # there is no file, or it is known to be a profile
        self._warn = WarnOnce(logging.WARNING if rank == 0 else logging.DEBUG)
        self._link = HelperLink(self._warn, log_line=self._log_line)
        self.helper = ""
        self._shared = shared = "" if shared_dir is None else os.path.abspath(os.fsdecode(shared_dir))
        if profile_path is None and shared_dir is None:
            return
        self.helper = f"pfo-fs-power-limit-{token[:12]}"
        try:
            self._link.client = helper = HelperClient(self.helper, shared, token, rank, {})
            if self._path is not None:
                self._read_profile(helper.request(m.ReadProfile(path=self._path), m.ProfileRead, timeout_s))
            self.poll()
        except (OSError, CoordinationError) as error:
            self.poll()  # an earlier message of the helper explains more
            self._problem(f"the helper process does not answer: {error}")

    def create_job(self, world_size: int, knob: str) -> JobKey | None:
        """On rank 0: makes the job's folder; returns None, after a warning, if there is none."""
        client = self._link.client
        if client is None or not self._shared:
            return None
        info = JobInfo(pp_degree=1, dp_degree=world_size, tp_degree=1, world_size=world_size)
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        job = {"job_info": info.model_dump(), "coordination": "none", "scheduler": knob, "host": _host()}
        create = m.CreateJob(job={**job, "started": started}, attempt=secrets.token_hex(8))
        try:
            made = client.request(create, m.JobCreated, _JOINS_WITHIN_S)
        except (OSError, CoordinationError) as error:
            self._problem(f"there is no job in the directory: {error}")
            return None
        return JobKey(made.job_id, made.directory_id, create.attempt)

    def join(self, job: JobKey | None, gpu_names: str) -> None:
        """Registers this rank; without a job, the rank only follows the switch of all jobs."""
        client = self._link.client
        if client is None or not self._shared:
            return
        if job is None:
            self._link.send_kept(m.WatchSwitch())
            return
        info = RankInfo(
            rank=self._rank, dp_rank=self._rank, pp_rank=0, tp_rank=0, available_frequencies=[], host=_host()
        )
        body = {"rank_info": info.model_dump(), "nonce": secrets.token_hex(8), "host": _host(), "pid": os.getpid()}
        body["gpu_name"] = plain_text(gpu_names, 200)
        join = m.JoinJob(coordination="none", rank_body=body, **job._asdict())
        self._link.keep(join)
        try:
            self._link.note_joined(client.request(join, m.Joined, _JOINS_WITHIN_S))
        except (OSError, CoordinationError) as error:
            self._problem(f"could not join job {job.job_id}: {error}")
        self.poll()

    def poll(self) -> None:
        """Handles the messages that the helper has sent meanwhile; some microseconds if there are none."""
        for message in self._link.poll():
            self._take(message)

    def save(self, measurements: Sequence[KnobMeasurement], timeout_s: float = 2.0) -> None:
        """Writes the profile file, if a path was given; waits for that, but no longer than `timeout_s`."""
        client = self._link.client
        if self._path is None or client is None:
            return
        content = profile_text(measurements).encode()
        save = m.SaveProfile(path=self._path, content=content, replace=self._may_replace)
        try:
            client.request(save, m.ProfileSaved, timeout_s)
        except (OSError, CoordinationError) as error:
            self._problem(f"it is not known whether the profile is written: {error}")

    def close(self) -> None:
        """Reads what the helper has said last, and ends the connection."""
        self.poll()
        self.leave()

    def leave(self) -> None:
        """Ends the connection without waiting; the helper still writes what was sent to it."""
        self._link.leave(m.Goodbye(reason="finished"))

    # ---- the helper

    def _read_profile(self, read: m.ProfileRead) -> None:
        if read.profile == "read":
            try:
                self.profile = parse_profile(read.content, str(self._path))
            except PlanError as error:
                self.profile_error = str(error)
        self._may_replace = read.profile != "unknown" and not self.profile_error

    def _take(self, message: m.ToTraining) -> None:
        if isinstance(message, m.ClocksHeld):
            if message.why and not self.is_off and self._rank == 0:
                what = "its directory was removed" if message.why == "removed" else "switched off, until `pfo-fs on`"
                log.warning("power limit: %s: the earlier level is in force", what)
            self.is_off = bool(message.why)

    def _log_line(self, level: int, text: str) -> None:
        if level >= logging.WARNING:
            self._problem(text)

    def _problem(self, text: str) -> None:
        self._warn(f"power limit: profile and shared directory: {text}; training goes on", "files")


def _host() -> str:
    return plain_text(socket.gethostname())
