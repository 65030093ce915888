"""Measures and removes what ended jobs have left: for `pfo-fs prune`.

A folder is first renamed to a name that no process looks at, so that a daemon and commands see it whole or not at all;
then it is removed, one name at a time. No symbolic link is followed, and nothing on another file system is touched.
Ages are those of the newest file inside, by the file system's own clock: a job that still writes is never old, whatever
its name, its records or another user's files in it say.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pfo_fs.errors import StoreError
from pfo_fs.store import layout
from pfo_fs.store.directory import SharedDirectory
from pfo_fs.store.file_reader import TEMP_PREFIX
from pfo_fs.store.fs import Files

LEAST_AGE_S = 3600.0
"""Nothing younger is removed: a job that begins has no `job.json` for a moment."""
_HALF_REMOVED = f"{TEMP_PREFIX}prune-"
_MOST_DEPTH = 8
"""Deeper folders are an error: what pfo-fs writes lies at most four folders deep."""
_MOST_FILES = 1_000_000
"""A job of pfo-fs leaves some thousand files: more files than this are not a job's."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Leftover:
    """A folder or file that may be removed: its path below the shared directory, its owner, and its size.

    `kind` is `ended job`, `no job`, `switch` or `half removed`; `age_s` the time since the last change in it.
    """

    path: str
    kind: str
    uid: int
    bytes: int
    files: int
    age_s: float


class Pruning:
    """Finds and removes old things of one directory.

    Attributes:
        problems: What could not be looked at or removed, as text.
        running: Number of jobs that have not ended.
    """

    def __init__(self, shared: SharedDirectory) -> None:
        self._shared = shared
        self._files: Files = shared.files
        self.problems: list[str] = []
        self.running = 0

    def find(self, *, older_than_s: float) -> Iterator[Leftover]:
        """Yields what is over, and has not changed for this time, or for an hour if that is longer."""
        now_s = self._files.now_s("")
        for path, kind in self._over():
            try:
                left = self._measure(path, kind, now_s)
            except OSError as error:
                self.problems.append(f"{path}: {error.strerror or error}")
                continue
            if left is not None and left.age_s >= max(older_than_s, LEAST_AGE_S):
                yield left

    def _over(self) -> Iterator[tuple[str, str]]:
        jobs = self._shared.job_ids()
        for archived, ids in ((False, jobs), (True, self._shared.archived_job_ids())):
            for job_id in ids:
                folder = self._shared.job(job_id, archived=archived)
                try:
                    names = folder.names()
                except StoreError as error:
                    self.problems.append(str(error.args[-1]))
                    continue
                if layout.JOB not in names:
                    if names <= layout.OF_JOBS:
                        yield folder.path, "no job"
                elif archived or layout.END in names:
                    yield folder.path, "ended job"
                else:
                    self.running += 1
        for name in self._files.names(layout.OFF):
            if name not in (layout.EVERY_JOB, *jobs):
                yield layout.off(name), "switch"
        for folder_name in (layout.JOBS, layout.ARCHIVE, layout.OFF):
            for name in self._files.all_names(folder_name):
                if name.startswith(_HALF_REMOVED):
                    yield f"{folder_name}/{name}", "half removed"

    def _measure(self, path: str, kind: str, now_s: float) -> Leftover | None:
        """Returns what is at a path; None if it is gone by now."""
        calls = self._files.calls
        with self._files.parent(path) as (folder, name):
            if folder is None:
                return None
            try:
                status = calls.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None
            newest_s, inodes, count = status.st_mtime, {status.st_ino: status.st_blocks * 512}, 1
            if stat.S_ISDIR(status.st_mode):
                for _, _, inside in self._walk(folder, name, status.st_dev):
                    newest_s = max(newest_s, inside.st_mtime)
                    inodes[inside.st_ino] = inside.st_blocks * 512  # ranks of a host share a file by several names
                    count += 1
                    if count > _MOST_FILES:
                        raise OSError(errno.EFBIG, f"more than {_MOST_FILES:,} files; remove it by hand")
            return Leftover(path, kind, status.st_uid, sum(inodes.values()), count, now_s - newest_s)

    def remove(self, left: Leftover) -> bool:
        """Removes a folder or file; returns whether all of it is gone. What is wrong is added to `problems`.

        A folder of which this user may not remove all keeps its name and its content.
        """
        calls = self._files.calls
        try:
            with self._files.parent(left.path) as (folder, name):
                if folder is None:
                    return False
                hidden = name if left.kind == "half removed" else f"{_HALF_REMOVED}{secrets.token_hex(6)}"
                status = calls.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    for parent, inside, about in self._walk(folder, name, status.st_dev):
                        _require_removable(parent, inside, about)
                if hidden != name:
                    calls.rename(name, hidden, src_dir_fd=folder, dst_dir_fd=folder)
                if not stat.S_ISDIR(status.st_mode):
                    calls.unlink(hidden, dir_fd=folder)
                    return True
                for parent, inside, about in self._walk(folder, hidden, status.st_dev):
                    if stat.S_ISDIR(about.st_mode):
                        calls.rmdir(inside, dir_fd=parent)
                    else:
                        with suppress(FileNotFoundError):
                            calls.unlink(inside, dir_fd=parent)
                calls.rmdir(hidden, dir_fd=folder)
        except FileNotFoundError:
            return False  # the daemon has moved it, or another user was faster
        except OSError as error:
            self.problems.append(f"{left.path} cannot be removed: {error.strerror or error}")
            return False
        return True

    def _walk(self, above: int, name: str, device: int, depth: int = 0) -> Iterator[tuple[int, str, os.stat_result]]:
        """Yields (descriptor of the folder, name, what it is) for all in a folder, each folder after its content.

        Raises:
            OSError: A folder cannot be read, lies on another file system, or is too deep.
        """
        calls = self._files.calls
        if depth > _MOST_DEPTH:
            raise OSError(errno.ELOOP, f"folders lie more than {_MOST_DEPTH} deep; remove it by hand")
        fd = calls.open(name, _FOLDER, dir_fd=above)
        try:
            for inside in calls.listdir(fd):
                try:
                    about = calls.stat(inside, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(about.st_mode):
                    if about.st_dev != device:
                        raise OSError(errno.EXDEV, f"{inside} is another file system; remove it by hand")
                    yield from self._walk(fd, inside, device, depth + 1)
                yield fd, inside, about
        finally:
            calls.close(fd)


def _require_removable(parent: int, name: str, about: os.stat_result) -> None:
    """Raises an error if this user may not remove what is in a folder, by the folder's mode and owner."""
    user, folder = os.geteuid(), os.stat(parent)
    kept = folder.st_mode & stat.S_ISVTX and user not in (0, about.st_uid, folder.st_uid)
    if kept or not os.access(".", os.W_OK | os.X_OK, dir_fd=parent, effective_ids=True):
        raise OSError(errno.EACCES, f"this user may not remove {name} in it; all of it stays")
