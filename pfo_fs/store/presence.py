"""Tells a directory that was removed from one that cannot be seen for a moment: not mounted, stale, hanging.

Both look alike at first: the path is not there, or is empty. They differ in what stays. A user who removes a directory
leaves the folder above it, on the same mount, and a fresh listing of that folder lacks the name. When a file system is
not mounted, the path leads to another mount; when the server or the client is in trouble, the calls fail with other
errors than "not there". Only the first case means removed. While the job's folder is in its place nothing was removed,
whatever inode numbers say: some file systems (SMB, rclone, other FUSE) give a folder a new number now and then.
"""

import os
from dataclasses import dataclass, field

from pfo_fs.errors import RecordError
from pfo_fs.store import layout
from pfo_fs.store.directory import SharedDirectory
from pfo_fs.store.file_systems import mount_of
from pfo_fs.store.fs import Files


@dataclass
class Presence:
    """Where the shared directory lay, and the top of its mount, while all was well."""

    files: Files
    _path: str = ""  # empty: it was never seen
    _top: str = ""
    _inodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _id: str = ""

    def remember(self) -> None:
        """Notes where the directory lies, while it is known to be there.

        Raises:
            OSError: It cannot be seen now.
        """
        path = os.path.realpath(self.files.root)
        top = mount_of(path).point or path
        self._inodes = {place: _inode(self.files.calls.stat(place)) for place in (path, top)}
        self._path, self._top, self._id = path, top, self._directory_id()

    def why_gone(self, job_id: str) -> str:
        """Returns what was removed, the directory or the folder of a running job; empty if nothing, or unknown.

        The caller asks again after some seconds before it believes that, because one listing may be old.
        """
        if not self._path:
            return ""
        try:
            path, below = self._path, ""
            while True:
                try:
                    found = _inode(self.files.calls.stat(path))
                    break
                except FileNotFoundError:
                    if path in (self._top, "/"):
                        return ""
                    path, below = os.path.dirname(path), path
            is_same = found == self._inodes.get(path)
            # At a mount point, another folder shows that the file system is not mounted.
            is_mounted = is_same or (found[0] == self._inodes[self._path][0] and path != self._top)
            if below:
                gone = is_mounted and os.path.basename(below) not in self._names(path)
                return f"{self.files.root} was removed" if gone else ""
            gone_content = self._content_gone(job_id)
            if not gone_content or is_same or (self._id and self._directory_id() == self._id):
                return gone_content
            return f"{self.files.root} was replaced" if is_mounted else ""
        except OSError:
            return ""

    def _directory_id(self) -> str:
        try:
            return SharedDirectory(self.files).directory_id()
        except (OSError, RecordError):
            return ""

    def _names(self, path: str) -> list[str]:
        fd = self.files.calls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self.files.calls.listdir(fd)
        finally:
            self.files.calls.close(fd)

    def _content_gone(self, job_id: str) -> str:
        """The directory itself is there: tells whether its content, or the job's folder, was removed."""
        if self.files.names_if_there(layout.job(job_id)) is not None:
            return ""
        jobs = self.files.names_if_there(layout.JOBS)
        if jobs is None:
            return "" if layout.JOBS in self.files.names() else f"the content of {self.files.root} was removed"
        return "" if job_id in jobs else f"the job's folder was removed from {self.files.root / layout.JOBS}"


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
