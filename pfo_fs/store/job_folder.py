"""One job's folder: its records, by the process that writes them."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from pfo_fs.errors import AlreadyClaimed, FolderAway, RecordError
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.locks import courtesy_lock
from pfo_fs.store.profile_files import ProfileFiles
from pfo_fs.store.records import decode
from pfo_fs.store.schedule_files import ScheduleFiles

_MOST_SCHEDULES_CLEANED = 20


@dataclass
class JobFolder(ScheduleFiles):
    """One job's folder.

    Reads return None for what is not there now, and raise `RecordError` for what is not a valid record.

    Attributes:
        job_id: The folder's name.
    """

    job_id: str = ""

    # ---- the job

    @property
    def is_archived(self) -> bool:
        """Whether the job is over and was moved to the archive."""
        return self.path.startswith(f"{layout.ARCHIVE}/")

    @property
    def profiles(self) -> ProfileFiles:
        """The profiles of this job and of others of its kind."""
        return ProfileFiles(self.files, self.job_id)

    def names(self) -> set[str]:
        """What the job's folder holds now.

        Raises:
            FolderAway: The folder itself is not there, which says nothing about any file in it.
            StoreError: The directory gives no answer.
        """
        found = self.files.names_if_there(self.path)
        if found is None:
            raise FolderAway(
                errno.ENOENT, f"{self.location}: the job's folder is not there now; was it moved, or unmounted?"
            )
        return set(found)

    def read_job(self) -> b.JobBody | None:
        """`job.json`; from then on only records of the same attempt are read."""
        data = self.files.read(f"{self.path}/{layout.JOB}", layout.RECORD_LIMIT)
        if data is None:
            return None
        try:
            header, body = decode(data, "job", b.JobBody)
        except RecordError as error:
            raise RecordError(f"{self.location / layout.JOB}: {error}") from None
        if body.job_info.job_id != self.job_id and not self.is_archived:
            raise RecordError(f"{self.location / layout.JOB}: it is of job {body.job_info.job_id!r}")
        self.attempt = header.attempt
        return body

    def claim_coordinator(self, body: b.ClaimBody) -> b.ClaimBody:
        """Claims the job for a daemon or for its own rank 0; returns the claim that holds."""
        if self.claim("coordinator", body, layout.COORDINATOR):
            return body
        return self.read_coordinator() or body

    def read_coordinator(self) -> b.ClaimBody | None:
        """Who schedules this job."""
        return self.read("coordinator", b.ClaimBody, layout.COORDINATOR)

    # ---- ranks

    def register_rank(self, body: b.RankBody) -> None:
        """Writes `ranks/<rank>.json`.

        Raises:
            AlreadyClaimed: Another process registered as this rank; the message says which.
        """
        rank = body.rank_info.rank
        with courtesy_lock(self.files, f"{self.path}/{layout.rank_lock(rank)}"):
            if self.claim("rank", body, layout.of_rank(layout.RANKS, rank)):
                return
            other = self.read_rank(rank)
        if other is None or other.nonce != body.nonce:
            who = f"process {other.pid} on {other.host}" if other else "another process"
            raise AlreadyClaimed(errno.EEXIST, f"rank {rank} of job {self.job_id} is registered already, by {who}")

    def registered_ranks(self) -> list[int]:
        """Ranks that have a file in `ranks/`, ascending."""
        return self._numbers(layout.RANKS)

    def read_rank(self, rank: int) -> b.RankBody | None:
        """What a rank said when it registered."""
        return self.read("rank", b.RankBody, layout.of_rank(layout.RANKS, rank))

    def write_order(self, body: b.OrderBody) -> None:
        """Writes down what a rank runs in an iteration, once."""
        self.claim("order", body, layout.of_rank(layout.ORDER, body.rank))

    def ranks_with_order(self) -> list[int]:
        """Ranks whose instruction order is there, ascending."""
        return self._numbers(layout.ORDER)

    def read_order(self, rank: int) -> b.OrderBody | None:
        """What a rank runs in an iteration."""
        return self.read("order", b.OrderBody, layout.of_rank(layout.ORDER, rank), layout.PLAN_LIMIT)

    # ---- what the coordinator says

    def write_current(self, body: b.CurrentBody) -> None:
        """Replaces `current.json`."""
        self.replace("current", body, layout.CURRENT)

    def read_current(self) -> b.CurrentBody | None:
        """The schedule in force and the state of the job."""
        return self.read("current", b.CurrentBody, layout.CURRENT)

    def write_model(self, body: b.ModelBody) -> None:
        """Replaces `model.json`."""
        self.replace("model", body, layout.MODEL)

    def read_model(self) -> b.ModelBody | None:
        """What the scheduler plans with."""
        return self.read("model", b.ModelBody, layout.MODEL)

    def read_known(self) -> b.CachedProfileBody | None:
        """What was known when the job began."""
        return self.read("cached_profile", b.CachedProfileBody, layout.CACHED_PROFILE, layout.PLAN_LIMIT)

    def claim_known(self, body: b.CachedProfileBody) -> b.CachedProfileBody:
        """Writes down what was known when the job began; returns what stands there."""
        return body if self.claim("cached_profile", body, layout.CACHED_PROFILE) else (self.read_known() or body)

    # ---- results and progress

    def write_result(self, number: int, body: b.ResultBody) -> None:
        """Writes what a rank measured under schedule `number`, once."""
        self.files.make_folder(f"{self.path}/{layout.results(number)}")
        self.claim("result", body, layout.of_rank(layout.results(number), body.result.rank))

    def ranks_with_result(self, number: int) -> list[int]:
        """Ranks whose result under schedule `number` is there, ascending."""
        return self._numbers(layout.results(number))

    def read_result(self, number: int, rank: int) -> b.ResultBody | None:
        """What a rank measured under schedule `number`."""
        return self.read("result", b.ResultBody, layout.of_rank(layout.results(number), rank), layout.PLAN_LIMIT)

    def write_progress(self, body: b.ProgressBody, name: int) -> None:
        """Replaces the progress of a host; `name` is the rank that its file is named after."""
        self.replace("progress", body, layout.of_rank(layout.PROGRESS, name))

    def read_progress(self, name: int) -> b.ProgressBody | None:
        """The progress of the host whose file is named after rank `name`."""
        return self.read("progress", b.ProgressBody, layout.of_rank(layout.PROGRESS, name))

    def progress_names(self) -> list[int]:
        """Ranks that files of progress are named after, one per host, ascending."""
        return self._numbers(layout.PROGRESS)

    def write_iteration_times(self, body: b.IterationTimesBody) -> None:
        """Replaces what a rank says of its last iterations."""
        self.replace("iteration_times", body, layout.of_rank(layout.ITERATION_TIMES, body.rank))

    def read_iteration_times(self, rank: int) -> b.IterationTimesBody | None:
        """How long a rank's last iterations took."""
        return self.read("iteration_times", b.IterationTimesBody, layout.of_rank(layout.ITERATION_TIMES, rank))

    def ranks_with_iteration_times(self) -> list[int]:
        """Ranks that have said how long iterations take, ascending."""
        return self._numbers(layout.ITERATION_TIMES)

    # ---- people, and the end

    @property
    def yaml_location(self) -> Path:
        """`schedule.yaml`, for people."""
        return self.location / layout.YAML

    @property
    def yaml_status_location(self) -> Path:
        """`schedule.status.yaml`, for people."""
        return self.location / layout.YAML_STATUS

    def read_yaml(self) -> bytes | None:
        """`schedule.yaml` as it is now."""
        return self.files.read(f"{self.path}/{layout.YAML}", layout.YAML_LIMIT)

    def write_yaml(self, content: bytes) -> None:
        """Puts a person's schedule in place of `schedule.yaml`, whole."""
        self.files.publish(f"{self.path}/{layout.YAML}", content)

    def remove_yaml(self) -> None:
        """Removes `schedule.yaml` if it is there: the scheduler's own schedule comes into force again."""
        self.files.remove(f"{self.path}/{layout.YAML}")

    def write_yaml_status(self, text: str) -> None:
        """Says what became of `schedule.yaml`."""
        self.files.publish(f"{self.path}/{layout.YAML_STATUS}", text.encode("utf-8", "replace"))

    def write_end(self, body: b.EndBody) -> None:
        """Writes the job's tombstone, once."""
        self.claim("end", body, layout.END)

    def read_end(self) -> b.EndBody | None:
        """The job's tombstone."""
        return self.read("end", b.EndBody, layout.END)

    def remove_stale_temporaries(self) -> int:
        """Removes what dead writers have left in the job's folders; returns how many files.

        Looks at no more than 1,000 files in each folder, and at the folders of the 20 newest schedules.
        """
        newest = self.schedule_numbers()[-_MOST_SCHEDULES_CLEANED:]
        folders = ["", *layout.JOB_FOLDERS, *map(layout.schedule, newest), *map(layout.results, newest)]
        return sum(self.files.remove_stale_temporaries(f"{self.path}/{folder}".rstrip("/")) for folder in folders)
