"""Joins a rank to its job: clock process, job folder, registration, and the feed of its schedules.

All ranks make the same collective calls in the same order, even if one of them has a problem: that rank notes the
problem and sends it to all ranks at the next call. Then all of them raise the same error, or none does.
"""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timezone
from typing import Literal, TypedDict

from pydantic import ValidationError

import pfo_fs
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.gpu.find_gpu import find_gpu_spec
from pfo_fs.errors import ConfigError, CoordinationError, PfoError, first_problem, plain_text
from pfo_fs.guard import WarnOnce, reason_of
from pfo_fs.helper.client import HelperClient
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages, transport
from pfo_fs.ipc.collectives import Collectives, Problem, problem_of, raise_first
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.training.job_request import JobRequest
from pfo_fs.training.parallel_dims import ParallelDims
from pfo_fs.training.schedule_broadcaster import ScheduleBroadcaster
from pfo_fs.training.schedule_feed import BroadcastFeed, ScheduleFeed, ScheduleSwitcher
from pfo_fs.training.step_parts import StepParts

log = logging.getLogger("pfo_fs")

_REQUEST_TIMEOUT_S = 20.0
_CREATE_TIMEOUT_S = 30.0
"""It may take some seconds until it is known whether a daemon schedules the job."""


class _Job(TypedDict):
    """The job that rank 0 has made; if `coordination` is off, there is no job, and `why` says why."""

    job_id: str
    directory_id: str
    attempt: str
    coordination: Literal["daemon", "local", "off"]
    why: str


@dataclass(frozen=True)
class JoinedJob:
    """The result of joining."""

    job_id: str | None
    coordination: Literal["daemon", "local", "off"]
    clocks: ClockProcess
    feed: ScheduleFeed
    parts: StepParts


@dataclass
class JobJoiner:
    """Joins one rank to its job; `join` is a collective call of all ranks."""

    dims: ParallelDims
    request: JobRequest
    collectives: Collectives
    link: HelperLink
    switcher: ScheduleSwitcher
    warn: WarnOnce
    _: KW_ONLY
    strict: bool

    def __post_init__(self) -> None:
        self._problem: Problem | None = None
        self._noted: list[str] = []
        self._clocks: ClockProcess | None = None
        self._feed = ScheduleFeed(self.dims.rank, self.switcher)

    def join(self, make_parts: Callable[[ClockProcess], StepParts]) -> JoinedJob:
        """Joins the job.

        Raises:
            PfoError: The same on all ranks: a rank cannot take part, or, with `strict`, something else failed.
        """
        try:
            return self._join(make_parts)
        except BaseException as error:
            reason = "finished" if isinstance(error, Exception) and not self.strict else "crashed"
            with suppress(Exception):
                self._feed.close()
            if self._clocks is not None:
                self._clocks.leave()
            with suppress(Exception):  # the error that ended joining counts
                self.link.leave(messages.Goodbye(reason=reason, message=f"{type(error).__name__}: {error}"[:300]))
            raise

    def _join(self, make_parts: Callable[[ClockProcess], StepParts]) -> JoinedJob:
        token = self.collectives.from_rank_0(secrets.token_hex(16))
        job: _Job | None = None
        with self._alone():
            self._clocks = self._start_clocks(token)
            if self.dims.rank == 0:
                job = self._create_job(token)
        reports = self.collectives.all_gather((self._problem, job, socket.gethostname(), self.request.shared_dir))
        raise_first([problem for problem, *_ in reports], strict=self.strict)
        job = reports[0][1]
        used = next(path for _, _, host, path in reports if host == socket.gethostname())
        if used != self.request.shared_dir:  # on another host the same directory may have another path
            self._noted.append(f"{self.request.shared_dir} is not used: the first rank of this host has given {used}")
        clocks = self._clocks
        assert job is not None
        assert clocks is not None
        if job["coordination"] == "off":
            where = self.request.shared_dir
            self._note(f"no job could be made in {where}: {job['why']}; training goes on at default clocks")
            self.link.close()
        else:
            self._problem = None
            self._take_part(job, token, clocks)
        with self._alone():
            parts = make_parts(clocks)
        raise_first(self.collectives.all_gather(self._problem), strict=self.strict)
        if self._noted:
            self.warn(f"rank {self.dims.rank}: {'; '.join(self._noted)}")
        if self.dims.rank == 0 and job["job_id"]:
            who = "a daemon" if job["coordination"] == "daemon" else "rank 0"
            how = f"by {clocks.info.clock_backend}" if clocks.info.clocks_mhz else f"are not set: {clocks.message}"
            _say(f"pfo-fs: job {job['job_id']} in {self.request.shared_dir}, scheduled by {who}; clocks {how}")
        return JoinedJob(job["job_id"] or None, job["coordination"], clocks, self._feed, parts)

    @contextmanager
    def _alone(self, what_fails: str = "") -> Iterator[None]:
        """Holds back an error of this rank's own work until the next exchange, which all ranks must reach.

        Args:
            what_fails: Begin of the warning with which this rank goes on; empty if no rank can go on after an error.
        """
        try:
            yield
        except Exception as error:
            if what_fails:
                self._note(f"{what_fails}: {reason_of(error)}", error)
            elif self.collectives.world_size == 1:
                raise
            else:
                self._problem = problem_of(error, fatal=True)

    def _note(self, text: str, error: Exception | None = None) -> None:
        """Notes a failure that need not stop training; all notes make one warning, or, if `strict`, one error."""
        if self._problem is None:
            self._problem = problem_of(error or CoordinationError(text), fatal=False)
        self._noted.append(text)

    # ---- up to the job's folder

    def _start_clocks(self, token: str) -> ClockProcess:
        spec = "none"
        try:
            spec = find_gpu_spec(self.request.device)
        except PfoError as error:
            self._note(str(error), error)
        options = ClockOptions(
            rank=self.dims.rank,
            report_to=_address(token),
            token=token,
            profile_steps=self.request.settings.profile_steps,
            profile_s=self.request.settings.profile_seconds,
            clock_backend=self.request.clock_backend,
            max_clock_calls_per_s=self.request.max_clock_calls_per_s,
            tp_degree=self.dims.tp_degree,
        )
        return ClockProcess(spec, options)

    def _create_job(self, token: str) -> _Job:
        """On rank 0: makes the job's folder and learns whether the daemon or rank 0's helper schedules it.

        Raises:
            ConfigError: The job cannot be described.
        """
        job = _Job(job_id="", directory_id="", attempt=secrets.token_hex(8), coordination="off", why="")
        body = self._job_body()
        try:
            client = self._connect(token)
            create = messages.CreateJob(job=body, attempt=job["attempt"])
            created = client.request(create, messages.JobCreated, _CREATE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  without a job, energy is still measured
            job["why"] = reason_of(error)
        else:
            job["job_id"], job["directory_id"] = created.job_id, created.directory_id
            job["coordination"] = "daemon" if created.coordination == "daemon" else "local"
        return job

    def _job_body(self) -> dict[str, object]:
        dims, request = self.dims, self.request
        try:
            info = JobInfo(
                pp_degree=dims.pp_degree,
                dp_degree=dims.dp_degree,
                tp_degree=dims.tp_degree,
                world_size=dims.world_size,
                job_metadata=request.job_metadata,
            )
        except ValidationError as error:
            where, wrong = first_problem(error)
            raise ConfigError(f"{where or 'the job'}: {wrong}") from None
        given = request.given_settings if request.own_scheduler else {}
        return {
            "job_info": info.model_dump(),
            "coordination": request.coordination,
            "scheduler": given.get("scheduler", ""),
            "scheduler_args": given.get("scheduler_args", {}),
            "profile_steps": request.settings.profile_steps,
            "host": plain_text(socket.gethostname()),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {"pfo_fs": pfo_fs.__version__, "python": sys.version.split()[0], **_torch_version()},
        }

    def _connect(self, token: str) -> HelperClient:
        request = self.request
        client = HelperClient(_address(token), request.shared_dir, token, self.dims.rank, request.given_settings)
        self.link.client = client
        return client

    # ---- this rank

    def _take_part(self, job: _Job, token: str, clocks: ClockProcess) -> None:
        """Registers this rank, opens the source of its schedules, and takes the first schedule if it comes in time."""
        if clocks.message and self.request.broadcasts:  # without broadcasts, `join_loads` tells it a moment later
            self._note(clocks.message)
        info: RankInfo | None = None
        with self._alone(f"could not join job {job['job_id']}"):
            info = self._register(job, token, clocks)
        rank, wait_s = self.dims.rank, self.request.wait_for_schedule_s
        if job["coordination"] == "daemon":
            self._await_first_schedule(wait_s)
            return
        infos = self.collectives.gather_to_rank_0(None if info is None else info.model_dump())
        broadcaster = self._make_broadcaster() if self.request.broadcasts else None
        if rank == 0 and all(infos):
            with self._alone("rank 0's helper cannot schedule"):
                self.link.send_kept(messages.AllRanks(rank_infos=[found for found in infos if found is not None]))
        if self.collectives.world_size == 1:
            self._await_first_schedule(wait_s)
            self._feed = ScheduleFeed(rank, self.switcher, at_once=True)
            return
        self._feed = BroadcastFeed(rank, self.switcher, broadcaster, self.warn)
        if broadcaster is None:
            return
        packet: bytes | None = None
        with self._alone("there is no first schedule"):
            if rank == 0 and (schedule := self.link.wait_for_schedule(wait_s)) is not None:
                packet = transport.encode(schedule)
        with self._alone("torch.distributed cannot broadcast the first schedule"):
            broadcaster.send_first(packet)

    def _register(self, job: _Job, token: str, clocks: ClockProcess) -> RankInfo:
        dims = self.dims
        info = RankInfo(
            rank=dims.rank,
            dp_rank=dims.dp_rank,
            pp_rank=dims.pp_rank,
            tp_rank=dims.tp_rank,
            available_frequencies=clocks.info.clocks_mhz[:4096],
            host=socket.gethostname(),
        )
        body = {
            "rank_info": info.model_dump(),
            "nonce": secrets.token_hex(8),
            "host": plain_text(socket.gethostname()),
            "pid": os.getpid(),
            "gpu_name": clocks.info.gpu_name,
            "gpu_uuid": clocks.info.gpu_uuid,
            "message": clocks.message,
            "clock_backend": clocks.info.clock_backend,
        }
        assert job["coordination"] != "off"
        join = messages.JoinJob(
            job_id=job["job_id"],
            directory_id=job["directory_id"],
            attempt=job["attempt"],
            coordination=job["coordination"],
            rank_body=body,
        )
        self.link.keep(join)
        client = self.link.client
        if client is None:
            client = self._connect(token)
        self.link.note_joined(client.request(join, messages.Joined, _REQUEST_TIMEOUT_S))
        return info

    def _await_first_schedule(self, wait_s: float) -> None:
        with self._alone("there is no first schedule"):
            schedule = self.link.wait_for_schedule(wait_s)
            if schedule is not None:
                self.link.put_back(schedule)

    def _make_broadcaster(self) -> ScheduleBroadcaster | None:
        """Returns a broadcaster on all ranks or on none: if one rank had none, the others would wait for it."""
        if self.collectives.world_size == 1:
            return None
        broadcaster, problem = None, ""
        try:
            broadcaster = ScheduleBroadcaster(self.dims.rank)
        except Exception as error:  # noqa: BLE001  the other ranks must hear of it
            problem = f"rank {self.dims.rank}: {reason_of(error)}"
        problems = [text for text in self.collectives.all_gather(problem) if text]
        if problems:
            self._note(f"torch.distributed cannot broadcast schedules, so clocks stay at their default: {problems[0]}")
            return None
        return broadcaster


def _address(token: str) -> str:
    """The abstract address of the helper, the same on all hosts."""
    return f"pfo-fs-{token[:12]}"


def _say(text: str) -> None:
    """Says one line to the user, also where a script has not set up logging: otherwise nothing shows that it works."""
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        log.info("%s", text)
    else:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{text}\n")


def _torch_version() -> dict[str, str]:
    """Returns the version of torch, if training uses it: another version has other kernels, and so another profile."""
    torch = sys.modules.get("torch")
    return {"torch": str(torch.__version__)} if torch is not None else {}
