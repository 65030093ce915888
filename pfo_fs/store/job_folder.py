"""One job's folder: reads and writes its records."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from pfo_fs.errors import FolderAway, RecordError
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.rank_files import RankFiles
from pfo_fs.store.records import decode
from pfo_fs.store.schedule_files import ScheduleFiles

_MOST_HOSTS_ASKED = 64
_MOST_SCHEDULES_CLEANED = 20
"""Only the newest schedules can have been half written by a coordinator that died."""


@dataclass
class JobFolder(ScheduleFiles, RankFiles):
    """One job's folder.

    Reads return None if the file is not there now, and raise `RecordError` if it is not a valid record.

    Attributes:
        job_id: The folder's name.
    """

    job_id: str = ""

    # ---- the job

    @property
    def is_archived(self) -> bool:
        """Whether the job has ended and was moved to the archive."""
        return self.path.startswith(f"{layout.ARCHIVE}/")

    def names(self) -> set[str]:
        """Returns the names in the job's folder now.

        Raises:
            FolderAway: The folder itself cannot be seen now; its files may still exist.
            StoreError: The directory gives no answer.
        """
        found = self.files.names_if_there(self.path)
        if found is None:
            raise FolderAway(
                errno.ENOENT, f"{self.location}: the job's folder is not there now; was it moved, or unmounted?"
            )
        return set(found)

    def foreign_owner(self) -> int | None:
        """Returns the user whom the folder belongs to, if jobs of this user are not served here; see `Files`."""
        return self.files.foreign_owner(self.path)

    def read_job(self) -> b.JobBody | None:
        """Reads `job.json`; from then on only records of the same attempt are read."""
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
        """Claims the job for a daemon or for its own rank 0; returns the claim that is valid."""
        if self.claim("coordinator", body, layout.COORDINATOR):
            return body
        return self.read_coordinator() or body

    def read_coordinator(self) -> b.ClaimBody | None:
        """Reads which process schedules this job."""
        return self.read("coordinator", b.ClaimBody, layout.COORDINATOR)

    # ---- orders of instructions

    def write_order(self, body: b.OrderBody) -> None:
        """Writes the instructions that a rank runs in an iteration, or others where they have changed."""
        name = layout.of_rank(layout.ORDER, body.rank)
        if not self.claim("order", body, name):
            self.replace("order", body, name)

    def ranks_with_order(self) -> list[int]:
        """Ranks that have written their instruction order, ascending."""
        return self._numbers(layout.ORDER)

    def read_order(self, rank: int) -> b.OrderBody | None:
        """Reads the instructions that a rank runs in an iteration."""
        return self.read("order", b.OrderBody, layout.of_rank(layout.ORDER, rank), layout.PLAN_LIMIT)

    # ---- records of the coordinator

    def write_current(self, body: b.CurrentBody) -> None:
        """Replaces `current.json`."""
        self.replace("current", body, layout.CURRENT)

    def read_current(self) -> b.CurrentBody | None:
        """Reads the schedule in force and the state of the job."""
        return self.read("current", b.CurrentBody, layout.CURRENT)

    def write_model(self, body: b.ModelBody) -> None:
        """Replaces `model.json`."""
        self.replace("model", body, layout.MODEL)

    def read_model(self) -> b.ModelBody | None:
        """Reads what the scheduler plans with."""
        return self.read("model", b.ModelBody, layout.MODEL)

    def write_profile(self, csv: str) -> None:
        """Replaces what the job has measured."""
        self.files.publish(f"{self.path}/{layout.PROFILE}", csv.encode())

    def read_profile(self) -> str | None:
        """Reads what the job has measured; None if there is nothing yet."""
        data = self.files.read(f"{self.path}/{layout.PROFILE}", layout.PROFILE_LIMIT)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise RecordError(f"{self.location / layout.PROFILE}: is not text: {error}") from None

    # ---- progress

    def write_progress(self, body: b.ProgressBody, name: int) -> None:
        """Replaces the progress of a host; `name` is the rank that its file is named after."""
        self.replace("progress", body, layout.of_rank(layout.PROGRESS, name))

    def read_progress(self, name: int) -> b.ProgressBody | None:
        """Reads the progress of the host whose file is named after rank `name`."""
        return self.read("progress", b.ProgressBody, layout.of_rank(layout.PROGRESS, name))

    def progress_names(self) -> list[int]:
        """Ranks after which progress files are named, one per host, ascending."""
        return self._numbers(layout.PROGRESS)

    def write_iteration_times(self, body: b.IterationTimesBody) -> None:
        """Replaces the times of a rank's last iterations."""
        self.replace("iteration_times", body, layout.of_rank(layout.ITERATION_TIMES, body.rank))

    def read_iteration_times(self, rank: int) -> b.IterationTimesBody | None:
        """Reads the times of a rank's last iterations."""
        return self.read("iteration_times", b.IterationTimesBody, layout.of_rank(layout.ITERATION_TIMES, rank))

    def ranks_with_iteration_times(self) -> list[int]:
        """Ranks that have written iteration times, ascending."""
        return self._numbers(layout.ITERATION_TIMES)

    # ---- files for users, and the end

    @property
    def yaml_location(self) -> Path:
        """The path of `schedule.yaml`."""
        return self.location / layout.YAML

    @property
    def yaml_status_location(self) -> Path:
        """The path of `schedule.status.yaml`."""
        return self.location / layout.YAML_STATUS

    def read_yaml(self) -> bytes | None:
        """Reads `schedule.yaml` as it is now."""
        return self.files.read(f"{self.path}/{layout.YAML}", layout.YAML_LIMIT)

    def write_yaml(self, content: bytes) -> None:
        """Replaces `schedule.yaml` with a user's schedule, in one step."""
        self.files.publish(f"{self.path}/{layout.YAML}", content)

    def remove_yaml(self) -> None:
        """Removes `schedule.yaml` if it is there: the scheduler's own schedule comes into force again."""
        self.files.remove(f"{self.path}/{layout.YAML}")

    def write_yaml_status(self, text: str) -> None:
        """Replaces `schedule.status.yaml`: whether `schedule.yaml` is applied, and why not."""
        self.files.publish(f"{self.path}/{layout.YAML_STATUS}", text.encode("utf-8", "replace"))

    def write_end(self, body: b.EndBody) -> None:
        """Writes the end of the job, once."""
        self.claim("end", body, layout.END)

    def read_end(self) -> b.EndBody | None:
        """Reads the end of the job; None while it runs."""
        return self.read("end", b.EndBody, layout.END)

    def last_sign_s(self) -> float:
        """Returns when the job's processes have written something last, by the file system's own clock.

        At most 64 hosts are looked at: one that lives is enough.
        """
        hosts = self.progress_names()[:_MOST_HOSTS_ASKED]
        names = [layout.JOB, *layout.OF_PROCESSES, *(layout.of_rank(layout.PROGRESS, host) for host in hosts)]
        return max(self.files.changed_s(f"{self.path}/{name}") for name in names)

    def remove_stale_temporaries(self) -> int:
        """Removes what dead writers have left in the job's folders; returns how many files.

        Checks at most 1,000 files in each folder, and only the 20 newest schedules.
        """
        newest = self.schedule_numbers()[-_MOST_SCHEDULES_CLEANED:]
        folders = ["", *layout.JOB_FOLDERS, *map(layout.schedule, newest), *map(layout.results, newest)]
        return sum(self.files.remove_stale_temporaries(f"{self.path}/{folder}".rstrip("/")) for folder in folders)
