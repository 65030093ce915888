"""The shared directory: the one place that knows every path in it.

<shared_dir>/
  site.yaml                       the site's operator (optional, read-only for us): what jobs may do
  daemon.json                     the leading daemon, replaced; daemon.lock beside it
  leaders/<generation>.json       one per change of leader, once
  archive/<job_id>/               jobs that are over
  profiles/<key>/<job_id>.csv     that job's coordinator, replaced: what it has measured, for later jobs of its kind
  profiles/<key>/about.json       what the key stands for, once, for people
  jobs/<job_id>/
    job.json                      rank 0, once, after the folders below are there
    coordinator.json              who schedules this job, once: a daemon, or rank 0 itself
    ranks/<rank>.json             that rank, once
    order/<rank>.json             that rank, once: the instructions of its first complete step
    current.json                  the coordinator, replaced: number in force, state, message for people
    sched/<number>/<plan>.json    the coordinator, once: a schedule, shared by all ranks that follow it
    sched/<number>/index.json     the coordinator, once, last: commits schedule <number>
    prof/<number>/<rank>.json     that rank, once: what it measured under schedule <number>
    progress/<rank>.json          one helper process per host, replaced, rarely
    iteration_times/<rank>.json   one helper process per host, replaced: time of a pipeline's iterations
    cached_profile.json                    the coordinator, once: what earlier jobs had measured
    model.json                    the coordinator, replaced: what the scheduler plans with
    schedule.yaml                 a person (optional, read-only for us)
    schedule.status.yaml          the coordinator, replaced: what became of it
    end.json                      rank 0, or the daemon when the job is given up, once
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
import socket
from collections.abc import Container, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from pfo_fs.errors import AlreadyClaimed, RecordError, StoreError
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo, is_safe_job_id
from pfo_fs.store import bodies as b
from pfo_fs.store.fs import Files
from pfo_fs.store.locks import courtesy_lock
from pfo_fs.store.records import Body, Header, decode, encode

log = logging.getLogger(__name__)

RECORD_LIMIT = 256 * 1024
"""Bytes of the largest small record that is read."""
PLAN_LIMIT = 8 * 1024 * 1024
"""Bytes of the largest plan, index or result that is read."""
PROFILE_LIMIT = 2 * 1024 * 1024
"""Bytes of the largest profile of another job that is read."""
_MOST_PROFILES = 16
YAML_LIMIT = 256 * 1024
"""Bytes of the largest schedule.yaml that is read."""
SITE_LIMIT = 16 * 1024
"""Bytes of the largest site.yaml that is read."""

_FOLDERS = ("ranks", "order", "sched", "prof", "progress", "iteration_times")
_NUMBERED = re.compile(r"(\d{1,9})\.json")


class SharedDirectory:
    """The whole directory; jobs are opened with `job`.

    Args:
        files: Where it is.
        writer: Who writes, for people: `daemon@login1:4242`.
    """

    def __init__(self, files: Files, writer: str = "") -> None:
        self.files = files
        self.writer = writer or f"pfo-fs@{socket.gethostname()}"

    def make_folders(self) -> None:
        """Makes the top-level folders that are missing."""
        present = set(self.files.names())
        for name in ("jobs", "archive", "leaders"):
            if name not in present:
                self.files.make_folder(name)

    # ---- jobs

    def job_ids(self, known: Container[str] = ()) -> list[str]:
        """Names of all jobs that are not archived, oldest first, but those that are `known`."""
        return [name for name in self.files.names("jobs") if name not in known and is_safe_job_id(name)]

    def archived_job_ids(self) -> list[str]:
        """Names of all archived jobs, oldest first."""
        return [name for name in self.files.names("archive") if is_safe_job_id(name)]

    def job(self, job_id: str, *, archived: bool = False) -> JobFolder:
        """The folder of a job, which need not be there.

        Raises:
            StoreError: `job_id` is no plain folder name.
        """
        if not is_safe_job_id(job_id):
            raise StoreError(errno.EINVAL, f"{job_id!r} is no job id")
        return JobFolder(self.files, f"{'archive' if archived else 'jobs'}/{job_id}", job_id, self.writer)

    def create_job(self, body: b.JobBody, attempt: str) -> JobFolder:
        """Makes the folder of a new job and publishes `job.json` in it, last.

        The id that `body.job_info` carries gets `.2`, `.3`, ... when it is taken; `job.json` has the final one.
        """
        self.make_folders()
        base = body.job_info.job_id
        for suffix in ("", *(f".{n}" for n in range(2, 10_000))):
            job_id = base[: 255 - len(suffix)] + suffix
            if self.files.make_folder(f"jobs/{job_id}"):
                break
        folder = self.job(job_id)
        for name in _FOLDERS:
            self.files.make_folder(f"{folder.path}/{name}")
        info: JobInfo = body.job_info.model_copy(update={"job_id": job_id})
        folder.attempt = attempt
        folder.claim("job", body.model_copy(update={"job_info": info}), "job.json")
        return folder

    def archive(self, job_id: str) -> None:
        """Moves a job that is over to `archive/`."""
        for suffix in ("", *(f".archived{n}" for n in range(2, 1000))):
            try:
                self.files.move(f"jobs/{job_id}", f"archive/{job_id[: 255 - len(suffix)]}{suffix}")
                return
            except AlreadyClaimed:
                continue

    # ---- the site, and the leading daemon

    def read_site(self) -> bytes | None:
        """`site.yaml` as it is now."""
        return self.files.read("site.yaml", SITE_LIMIT)

    def read_daemon(self) -> b.DaemonBody | None:
        """What the leading daemon last said; None before the first one, and where the record is damaged."""
        data = self.files.read("daemon.json", RECORD_LIMIT)
        if data is not None:
            try:
                return decode(data, "daemon", b.DaemonBody)[1]
            except RecordError as error:
                log.debug("%s: %s", self.files.root / "daemon.json", error)
        return None

    def write_daemon(self, body: b.DaemonBody) -> None:
        """The leader's heartbeat."""
        self.files.publish("daemon.json", encode(Header("daemon", "", self.writer, body.counter), body))

    def last_generation(self) -> int:
        """The newest generation of daemons that anybody has claimed; 0 before the first."""
        return max((int(m[1]) for m in map(_NUMBERED.fullmatch, self.files.names("leaders")) if m), default=0)

    def claim_generation(self, body: b.LeaderBody) -> bool:
        """Becomes the leader of `body.generation` unless somebody else has."""
        return self.files.claim(
            f"leaders/{body.generation}.json", encode(Header("leader", "", self.writer, body.generation), body)
        )


@dataclass
class JobFolder:
    """One job's folder. Reads return None for what is not there now, and raise `RecordError` for what is no record."""

    files: Files
    path: str
    job_id: str
    writer: str
    attempt: str | None = None
    _sequence: int = 0
    _last_plan: tuple[str, FrequencySchedule] | None = None

    # ---- records of any kind

    def claim(self, kind: str, body: BaseModel, name: str) -> bool:
        """Writes a record that nobody has written yet; False if somebody has."""
        return self.files.claim(f"{self.path}/{name}", self._encode(kind, body))

    def replace(self, kind: str, body: BaseModel, name: str) -> None:
        """Replaces a record that only this process writes."""
        self._sequence += 1
        self.files.publish(f"{self.path}/{name}", self._encode(kind, body))

    def read(self, kind: str, model: type[Body], name: str, limit: int = RECORD_LIMIT) -> Body | None:
        """Reads a record of this job's attempt.

        A torn or stale read is tried again before it is believed.
        """
        problem: RecordError | None = None
        for _ in range(3):
            data = self.files.read(f"{self.path}/{name}", limit)
            if data is None:
                return None
            try:
                return decode(data, kind, model, attempt=self.attempt)[1]
            except RecordError as error:
                problem = error
        raise RecordError(f"{self.files.root / self.path / name}: {problem}")

    def _encode(self, kind: str, body: BaseModel) -> bytes:
        return encode(Header(kind, self.attempt or "", self.writer, self._sequence), body)

    # ---- the job

    def read_job(self) -> b.JobBody | None:
        """`job.json`; from then on only records of the same attempt are read."""
        data = self.files.read(f"{self.path}/job.json", RECORD_LIMIT)
        if data is None:
            return None
        try:
            header, body = decode(data, "job", b.JobBody)
        except RecordError as error:
            raise RecordError(f"{self.files.root / self.path}/job.json: {error}") from None
        if body.job_info.job_id != self.job_id and not self.path.startswith("archive/"):
            raise RecordError(f"{self.files.root / self.path}/job.json: is of job {body.job_info.job_id!r}")
        self.attempt = header.attempt
        return body

    def names(self) -> set[str]:
        """What the job's folder holds now."""
        return set(self.files.names(self.path))

    def claim_coordinator(self, body: b.ClaimBody) -> b.ClaimBody:
        """Claims the job for a daemon or for its own rank 0; returns whoever has it."""
        if self.claim("coordinator", body, "coordinator.json"):
            return body
        return self.read_coordinator() or body

    def read_coordinator(self) -> b.ClaimBody | None:
        return self.read("coordinator", b.ClaimBody, "coordinator.json")

    # ---- ranks

    def register_rank(self, body: b.RankBody) -> None:
        """Writes `ranks/<rank>.json`.

        Raises:
            AlreadyClaimed: Another process registered as this rank; the message says who.
        """
        rank = body.rank_info.rank
        with courtesy_lock(self.files, f"{self.path}/ranks/.{rank}.lock"):
            if self.claim("rank", body, f"ranks/{rank}.json"):
                return
            other = self.read_rank(rank)
        if other is None or other.nonce != body.nonce:
            who = f"process {other.pid} on {other.host}" if other else "somebody else"
            raise AlreadyClaimed(errno.EEXIST, f"rank {rank} of job {self.job_id} is registered already, by {who}")

    def registered_ranks(self) -> list[int]:
        return self._numbers("ranks")

    def read_rank(self, rank: int) -> b.RankBody | None:
        return self.read("rank", b.RankBody, f"ranks/{rank}.json")

    def write_order(self, body: b.OrderBody) -> None:
        self.claim("order", body, f"order/{body.rank}.json")

    def ranks_with_order(self) -> list[int]:
        return self._numbers("order")

    def read_order(self, rank: int) -> b.OrderBody | None:
        return self.read("order", b.OrderBody, f"order/{rank}.json", PLAN_LIMIT)

    # ---- schedules

    def write_schedule(
        self,
        number: int,
        generation: int,
        start_step: int,
        source: b.Source,
        schedules: Sequence[FrequencySchedule],
        rank_infos: Sequence[RankInfo],
        steps: int = 0,
    ) -> bool:
        """Writes schedule `number` and commits it with its index; False if somebody else committed that number.

        Plan files are named after their content, so a restarted or a second coordinator never mixes two plans.
        """
        folder = f"sched/{number}"
        self.files.make_folder(f"{self.path}/{folder}")
        index: dict[str, str] = {}
        written: set[str] = set()
        for group, schedule in _groups(schedules, rank_infos):
            data = schedule.model_dump_json(exclude={"rank"}).encode()
            name = f"{group.replace(':', '-')}.{hashlib.sha256(data).hexdigest()[:12]}.json"
            index[group] = name
            if name not in written:
                written.add(name)
                self.claim("schedule", b.PlanBody(schedule=schedule), f"{folder}/{name}")
        body = b.IndexBody(
            number=number, generation=generation, start_step=start_step, source=source, steps=steps, files=index
        )
        return self.claim("index", body, f"{folder}/index.json")

    def schedule_numbers(self) -> list[int]:
        """Numbers that have a folder, committed or not, ascending."""
        return sorted(int(n) for n in self.files.names(f"{self.path}/sched") if n.isdecimal() and len(n) < 10)

    def read_index(self, number: int) -> b.IndexBody | None:
        """The commit of schedule `number`; None if it was never committed."""
        return self.read("index", b.IndexBody, f"sched/{number}/index.json", PLAN_LIMIT)

    def read_schedule(self, index: b.IndexBody, rank_info: RankInfo) -> FrequencySchedule | None:
        """The schedule of one rank; None if the index says nothing about it: its clock is left alone.

        Raises:
            RecordError: The plan file is missing or not valid.
        """
        name = index.files.get(f"rank:{rank_info.rank}") or index.files.get(f"stage:{rank_info.pp_rank}")
        if name is None:
            return None
        if "/" in name:
            raise RecordError(f"{self.files.root / self.path}/sched/{index.number}: {name!r} is no plan file")
        path = f"sched/{index.number}/{name}"
        if self._last_plan is None or self._last_plan[0] != path:  # the ranks of a host often share a stage
            plan = self.read("schedule", b.PlanBody, path, PLAN_LIMIT)
            if plan is None:
                raise RecordError(f"{self.files.root / self.path}/{path} is missing")
            self._last_plan = (path, plan.schedule)
        return self._last_plan[1].model_copy(update={"rank": rank_info.rank})

    def write_current(self, body: b.CurrentBody) -> None:
        self.replace("current", body, "current.json")

    def read_current(self) -> b.CurrentBody | None:
        return self.read("current", b.CurrentBody, "current.json")

    # ---- results and progress

    def write_result(self, number: int, body: b.ResultBody) -> None:
        self.files.make_folder(f"{self.path}/prof/{number}")
        self.claim("result", body, f"prof/{number}/{body.result.rank}.json")

    def ranks_with_result(self, number: int) -> list[int]:
        return self._numbers(f"prof/{number}")

    def read_result(self, number: int, rank: int) -> b.ResultBody | None:
        return self.read("result", b.ResultBody, f"prof/{number}/{rank}.json", PLAN_LIMIT)

    def write_progress(self, body: b.ProgressBody, name: int) -> None:
        self.replace("progress", body, f"progress/{name}.json")

    def read_progress(self, name: int) -> b.ProgressBody | None:
        return self.read("progress", b.ProgressBody, f"progress/{name}.json")

    def progress_names(self) -> list[int]:
        return self._numbers("progress")

    def write_iteration_times(self, body: b.IterationTimesBody) -> None:
        self.replace("iteration_times", body, f"iteration_times/{body.rank}.json")

    def read_iteration_times(self, rank: int) -> b.IterationTimesBody | None:
        return self.read("iteration_times", b.IterationTimesBody, f"iteration_times/{rank}.json")

    def ranks_with_iteration_times(self) -> list[int]:
        return self._numbers("iteration_times")

    # ---- profiles of this and of other jobs

    def read_known(self) -> b.CachedProfileBody | None:
        return self.read("cached_profile", b.CachedProfileBody, "cached_profile.json", PLAN_LIMIT)

    def claim_known(self, body: b.CachedProfileBody) -> b.CachedProfileBody:
        """Writes down what was known when the job began; returns what stands there."""
        return body if self.claim("cached_profile", body, "cached_profile.json") else (self.read_known() or body)

    def write_model(self, body: b.ModelBody) -> None:
        self.replace("model", body, "model.json")

    def read_model(self) -> b.ModelBody | None:
        return self.read("model", b.ModelBody, "model.json")

    def write_profile(self, key: str, csv: str, about: str) -> None:
        """Publishes what this job has measured.

        Args:
            key: Of jobs that can use it, a plain name.
            csv: The profile.
            about: What the key stands for, as JSON.
        """
        for folder in ("profiles", f"profiles/{key}"):
            self.files.make_folder(folder)
        self.files.claim(f"profiles/{key}/about.json", about.encode())
        self.files.publish(f"profiles/{key}/{self.job_id}.csv", csv.encode())

    def read_own_profile(self, key: str) -> str:
        """What this job has measured, as `write_profile` was given it last; empty if nothing."""
        try:
            return (self.files.read(f"profiles/{key}/{self.job_id}.csv", PROFILE_LIMIT) or b"").decode()
        except (StoreError, UnicodeDecodeError):
            return ""

    def read_profiles(self, key: str) -> dict[str, str]:
        """What the latest jobs with this key have measured, by job id; what is too large or no text is left out."""
        found: dict[str, str] = {}
        for name in reversed(self.files.names(f"profiles/{key}")):
            if len(found) == _MOST_PROFILES:
                break
            job_id = name.removesuffix(".csv")
            if name.endswith(".csv") and job_id != self.job_id and is_safe_job_id(job_id):
                try:
                    data = self.files.read(f"profiles/{key}/{name}", PROFILE_LIMIT)
                    found[job_id] = (data or b"").decode()
                except (StoreError, UnicodeDecodeError):
                    continue
        return found

    # ---- people, and the end

    def read_yaml(self) -> bytes | None:
        """`schedule.yaml` as it is now."""
        return self.files.read(f"{self.path}/schedule.yaml", YAML_LIMIT)

    def write_yaml_status(self, text: str) -> None:
        self.files.publish(f"{self.path}/schedule.status.yaml", text.encode())

    def write_end(self, body: b.EndBody) -> None:
        self.claim("end", body, "end.json")

    def read_end(self) -> b.EndBody | None:
        return self.read("end", b.EndBody, "end.json")

    def _numbers(self, folder: str) -> list[int]:
        names = self.files.names(f"{self.path}/{folder}")
        return sorted(int(m[1]) for m in map(_NUMBERED.fullmatch, names) if m)


def _groups(
    schedules: Sequence[FrequencySchedule], rank_infos: Sequence[RankInfo]
) -> list[tuple[str, FrequencySchedule]]:
    """Groups ranks that do the same: `stage:S` where all ranks of stage S agree, else `rank:R` one by one."""
    by_rank = {schedule.rank: schedule for schedule in schedules}
    stages: dict[int, list[int]] = {}
    for info in rank_infos:
        stages.setdefault(info.pp_rank, []).append(info.rank)
    groups: list[tuple[str, FrequencySchedule]] = []
    for stage in sorted(stages):
        found = [by_rank.get(rank) for rank in sorted(stages[stage])]
        first = found[0]
        if first is not None and all(_same(first, other) for other in found):
            groups.append((f"stage:{stage}", first))
        else:
            groups.extend((f"rank:{schedule.rank}", schedule) for schedule in found if schedule is not None)
    return groups


def _same(one: FrequencySchedule, other: FrequencySchedule | None) -> bool:
    return other is not None and one.frequencies == other.frequencies and one.stages == other.stages
