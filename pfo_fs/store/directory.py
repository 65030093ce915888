"""The shared directory: jobs, the leading daemon, and whether two hosts see the same directory."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import secrets
import socket
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from pfo_fs.errors import AlreadyClaimed, NotShared, RecordError, StoreError, StoreUnavailable
from pfo_fs.models import JobInfo, is_safe_job_id
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.fs import Files
from pfo_fs.store.job_folder import JobFolder
from pfo_fs.store.records import RecordFolder

log = logging.getLogger(__name__)

_DATED = re.compile(r"\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\+")
_MOST_READS = 32
_TRIES = 3
"""A record is read this many times before it counts as bad, because a stale read may return an older content."""
_AGAIN_EVERY = 16
"""A bad record is read again at every 16th poll. The reason may have passed, such as an NFS server that did not know
the record's owner for a while; then the daemon that wrote it leads."""


@dataclass
class Leaders:
    """The generations of daemons: each daemon that becomes the leader claims the next number.

    A file name alone proves nothing: any member of the directory's group can put `leaders/999999999.json` there. A
    generation counts only if its record is valid and says the same number, and if it is at most 1,000 above the one
    below it. Names of bad records are skipped when a daemon claims the next generation.
    """

    records: RecordFolder

    def __post_init__(self) -> None:
        self._valid: set[int] = set()
        self._bad_reads: dict[int, int] = {}
        self._polls = 0

    def poll(self) -> tuple[int, int]:
        """Returns the newest generation that a daemon has claimed (0 before the first), and the next free number.

        Both come from one listing: a daemon that finds the newest leader dead must not claim a number above that of
        another daemon that has replaced the leader meanwhile. At most 32 records are read.
        """
        self._polls += 1
        most_bad_reads = _TRIES if self._polls % _AGAIN_EVERY else math.inf
        reads = 0
        listed = layout.without_jumps(self.records.numbers(b.LeaderBody))
        next_free = max(listed, default=0) + 1
        for generation in reversed(listed):
            bad_reads = self._bad_reads.get(generation, 0)
            if generation not in self._valid and reads < _MOST_READS and bad_reads < most_bad_reads:
                reads += 1
                self._judge(generation)
            if generation in self._valid:
                return generation, next_free
        return 0, next_free

    def claim(self, body: b.LeaderBody) -> bool:
        """Becomes the leader of `body.generation`; False if another daemon has."""
        if claimed := self.records.write(body):
            self._valid.add(body.generation)
        return claimed

    def _judge(self, generation: int) -> None:
        try:
            if self.records.read(b.LeaderBody, generation=generation) is not None:
                self._valid.add(generation)
                return
            problem = "it is not there any more"
        except StoreUnavailable:
            raise
        except (RecordError, StoreError) as error:
            problem = str(error.args[-1])
        self._bad_reads[generation] = self._bad_reads.get(generation, 0) + 1
        if self._bad_reads[generation] == _TRIES:
            log.warning("leaders/%d.json is ignored: %s", generation, problem)


class SharedDirectory(RecordFolder):
    """The whole directory; jobs are opened with `job`. `writer` names this process in records: `daemon@login1:4242`."""

    def __init__(self, files: Files, writer: str = "") -> None:
        super().__init__(files, "", writer or f"pfo-fs@{socket.gethostname()}")
        self.leaders = Leaders(RecordFolder(files, "", self.writer, reads=1))

    @classmethod
    def open(cls, root: str | os.PathLike[str], writer: str = "", *, create: bool = False) -> SharedDirectory:
        """Opens the directory at `root`; `create`: for a daemon and the host of rank 0, never for a host that joins."""
        shared = cls(Files(root, create=create), writer)
        if create:
            shared.make_folders()
        return shared

    # ---- is this the directory?

    def make_folders(self) -> None:
        """Makes the top-level folders that are missing, and `directory.json`."""
        present = set(self.files.names())
        for name in (layout.JOBS, layout.ARCHIVE, layout.LEADERS, layout.OFF):
            if name not in present or self.files.shared_with_group:  # it may be there without the group's permissions
                self.files.make_folder(name)
        with suppress(StoreError):  # a file in the place of `off/`, for example, is a switch too
            self.files.make_name(layout.off(layout.SPARE))
        if layout.DIRECTORY not in present:
            self.write(b.DirectoryBody(directory_id=secrets.token_hex(16), host=socket.gethostname()))

    def directory_id(self) -> str:
        """Returns the random id of this directory; empty while `directory.json` is not seen."""
        if layout.DIRECTORY not in self.files.names():  # by listing: an NFS client remembers that a name was missing
            return ""
        body = self.read(b.DirectoryBody)
        return body.directory_id if body is not None else ""

    def check_same(self, directory_id: str, job_id: str, attempt: str) -> None:
        """Checks that this host sees the directory that rank 0's host has named: by its id, or by rank 0's job in it.

        The job counts, too, because a purge of old files may have removed the id, and the next daemon made another.

        Raises:
            StoreUnavailable: There is no `directory.json` here, or not yet: a listing may be some seconds old.
            NotShared: This is another directory.
        """
        if self._has_job(job_id, attempt):
            return
        own_id = self.directory_id()
        if own_id == directory_id:
            return
        text = f"this host sees another directory at {self.files.root} than the host of rank 0: is it mounted?"
        if not own_id:
            raise StoreUnavailable(errno.ENOENT, f"{text} ({layout.DIRECTORY} is not there)")
        raise NotShared(errno.ESTALE, f"{text} ({layout.DIRECTORY} has another id)")

    def _has_job(self, job_id: str, attempt: str) -> bool:
        try:
            job = self.job(job_id)
            # By listing: an NFS client remembers that a name was missing.
            return layout.JOB in job.names() and job.read_job() is not None and job.attempt == attempt
        except (StoreError, RecordError):
            return False

    # ---- jobs

    def job_ids(self, known: Container[str] = ()) -> list[str]:
        """Returns the names of all jobs that are not archived, oldest first, except those in `known`."""
        return [name for name in self.files.names(layout.JOBS) if name not in known and is_safe_job_id(name)]

    def newest_job_ids(self) -> list[str]:
        """Does the same as `job_ids`, newest first; names that do not begin with a date up to tomorrow come last."""
        tomorrow = (datetime.now() + timedelta(days=1)).strftime("%Y-%m-%d-%H-%M-%S")
        return sorted(
            self.job_ids(), key=lambda name: (bool(_DATED.match(name)) and name <= tomorrow, name), reverse=True
        )

    def archived_job_ids(self) -> list[str]:
        """Returns the names of all archived jobs, oldest first."""
        return [name for name in self.files.names(layout.ARCHIVE) if is_safe_job_id(name)]

    def job(self, job_id: str, *, archived: bool = False) -> JobFolder:
        """Returns the folder of a job, which need not exist; `job_id` must be a plain folder name."""
        if not is_safe_job_id(job_id):
            raise StoreError(errno.EINVAL, f"{job_id!r} is not a job id")
        return JobFolder(self.files, layout.job(job_id, archived=archived), self.writer, job_id=job_id)

    def create_job(self, body: b.JobBody, attempt: str) -> JobFolder:
        """Makes the folder of a new job and publishes `job.json` in it, last.

        If the id in `body.job_info` is used already, it gets `.2`, `.3`, ...; `job.json` has the final id.
        """
        self.make_folders()
        base = body.job_info.job_id
        for suffix in chain([""], (f".{n}" for n in range(2, 10_000))):
            job_id = base[: 255 - len(suffix)] + suffix
            if self.files.make_folder(layout.job(job_id)):
                break
        folder = self.job(job_id)
        for name in layout.JOB_FOLDERS:
            self.files.make_folder(f"{folder.path}/{name}")
        info: JobInfo = body.job_info.model_copy(update={"job_id": job_id})
        folder.attempt = attempt
        folder.write(body.model_copy(update={"job_info": info}))
        return folder

    def archive(self, job_id: str) -> None:
        """Moves a job that has ended to `archive/`, after removing what dead writers have left in its folder."""
        with suppress(StoreError):
            self.job(job_id).remove_stale_temporaries()
        for suffix in chain([""], (f".archived{n}" for n in range(2, 1000))):
            try:
                target = layout.job(f"{job_id[: 255 - len(suffix)]}{suffix}", archived=True)
                self.files.move(layout.job(job_id), target)
                return
            except AlreadyClaimed:
                continue

    def remove_stale_temporaries(self) -> int:
        """Removes what dead writers have left beside the jobs; returns how many files. The leader calls it, rarely."""
        folders = ("", layout.LEADERS, layout.JOBS, layout.ARCHIVE)
        return sum(self.files.remove_stale_temporaries(folder) for folder in folders)

    # ---- the leading daemon

    def read_daemon(self) -> b.DaemonBody | None:
        """Returns the leading daemon's last record; None before the first one, and if it is not valid."""
        try:
            return self.read(b.DaemonBody)
        except StoreUnavailable:
            raise
        except (RecordError, StoreError) as error:  # damaged, planted by another user, or not a plain file
            log.debug("%s: %s", self.files.root / layout.DAEMON, error)
        return None
