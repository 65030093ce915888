"""One job's folder: reads and writes its records and its other files."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from pfo_fs.errors import FolderAway, RecordError
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.rank_files import RankFiles
from pfo_fs.store.schedule_files import ScheduleFiles

_MOST_HOSTS_ASKED = 64
_MOST_SCHEDULES_CLEANED = 20
"""Only the newest schedules can have been half written by a coordinator that died."""


@dataclass
class JobFolder(ScheduleFiles, RankFiles):
    """One job's folder: `read` and `write` for records, and what they do not do.

    Attributes:
        job_id: The folder's name.
    """

    job_id: str = ""

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
        self.attempt, known = None, self.attempt
        try:
            found = self._read(b.JobBody)
        finally:
            self.attempt = known
        if found is None:
            return None
        header, body = found
        if body.job_info.job_id != self.job_id and not self.is_archived:
            raise RecordError(f"{self.location / layout.JOB}: it is of job {body.job_info.job_id!r}")
        self.attempt = header.attempt
        return body

    def claim_coordinator(self, body: b.ClaimBody) -> b.ClaimBody:
        """Claims the job for a daemon or for its own rank 0; returns the claim that is valid."""
        return body if self.write(body) else self.read(b.ClaimBody) or body

    def read_file(self, name: str) -> bytes | None:
        """Reads a file that is no record (`layout.FILES`); None if it is not there now."""
        return self.files.read(self.below(name), layout.FILES[name])

    def write_file(self, name: str, content: bytes) -> None:
        """Replaces a file that is no record, in one step."""
        self.files.publish(self.below(name), content)

    def remove_yaml(self) -> None:
        """Removes `schedule.yaml` if it is there: the scheduler's own schedule comes into force again."""
        self.files.remove(self.below(layout.YAML))

    def last_sign_s(self) -> float:
        """Returns when the job's processes have written something last, by the file system's own clock.

        At most 64 hosts are looked at: one that lives is enough.
        """
        hosts = self.numbers(b.ProgressBody)[:_MOST_HOSTS_ASKED]
        paths = [self.below(name) for name in (layout.JOB, *layout.OF_PROCESSES)]
        paths += [self.path_of(b.ProgressBody, name=host) for host in hosts]
        return max(map(self.files.changed_s, paths))

    def remove_stale_temporaries(self) -> int:
        """Removes what dead writers have left in the job's folders; returns how many files.

        Checks at most 1,000 files in each folder, and only the 20 newest schedules.
        """
        newest = self.schedule_numbers()[-_MOST_SCHEDULES_CLEANED:]
        folders = ["", *layout.JOB_FOLDERS, *map(layout.schedule, newest), *map(layout.results, newest)]
        return sum(self.files.remove_stale_temporaries(self.below(folder).rstrip("/")) for folder in folders)
