"""The only file-system calls on the shared directory: four primitives that work on every file system.

They are exclusive creation of a name (`claim`, `make_folder`), replacement of a file by its one writer (`publish`),
reading a small file that is opened afresh (`read`) and listing a folder (`names`). Other calls move a finished
folder (`move`), remove files (`remove`, `remove_stale_temporaries`, `pruning.py`), and open locks (`open_lock`).
`file_reader.py` describes how paths are walked and which errors are tried again.
"""

import errno
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pfo_fs.errors import AlreadyClaimed, StoreError
from pfo_fs.store.file_reader import TEMP_PREFIX, FileReader, by_path
from pfo_fs.store.file_systems import FULL, NO_HARD_LINKS, NO_MODES

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CLAIM_PREFIX = f"{TEMP_PREFIX}claim-"
_STALE_AFTER_S = 3600.0
"""A temporary file this old belongs to a process that has died: none is written for longer than some seconds."""


class Files(FileReader):
    """File primitives below one root folder; arguments and errors of the constructor as in `FileReader`."""

    @by_path
    def publish(self, path: str, data: bytes) -> None:
        """Writes `data` to `path`, whole or not at all, replacing a file there; only the file's one writer may call it.

        Raises:
            StoreError: No space, no permission, read-only; the old content stays.
            StoreUnavailable: The file system gave no answer; the old content stays, or the new one is in place.
        """
        with self._existing_parent(path) as (folder, name), self._complete_file(folder, data) as temp:
            self.calls.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)

    @by_path
    def claim(self, path: str, data: bytes) -> bool:
        """Creates `path` with `data` if it is not there; returns True if the file has exactly this data.

        The name appears with its whole content, by a hard link of a finished private file. After an error that leaves
        open whether the link exists, the name is read back.
        """
        with self._existing_parent(path) as (folder, name), self._complete_file(folder, data) as temp:
            try:
                self.calls.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                self._drop(temp, folder)
            except OSError as error:
                present = self._read_once(path, max(len(data), 1 << 22))
                if present is not None:
                    self._drop(temp, folder)
                    return present == data
                if error.errno in NO_HARD_LINKS:
                    return self._claim_without_links(folder, temp, name, path, data)
                raise
        return True

    def claim_each(self, folder: str, names: Sequence[str], data: bytes) -> list[str]:
        """Claims several names in a folder for the same data; returns those that have another content.

        Where there are hard links, all names are names of one file: that costs one call for each name, and one sync. A
        file for each name would cost several calls each. After an error, some of the names may be claimed.
        """
        left = self._link_each(f"{folder}/{names[0]}", names, data)
        return [name for name in left if not self.claim(f"{folder}/{name}", data)]

    @by_path
    def _link_each(self, path: str, names: Sequence[str], data: bytes) -> list[str]:
        left = []
        with self._existing_parent(path) as (folder, _), self._complete_file(folder, data) as temp:
            for name in names:
                try:
                    self.calls.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                except OSError:
                    left.append(name)
            self._drop(temp, folder)
        return left

    def _claim_without_links(self, folder: int, temp: str, name: str, path: str, data: bytes) -> bool:
        """Claims without hard links: the process that renames its folder to `.pfo-claim-NAME` owns NAME.

        The folder holds the content, and a rename never replaces a folder that is not empty, so exactly one process
        succeeds. Every process, not only the owner, then puts that content in place, so that the claim is also
        completed if the owner dies before that.
        """
        box = f"{temp}.d"
        self.calls.mkdir(box, self._folder_mode, dir_fd=folder)
        self._share_folder(folder, box)
        try:
            self.calls.rename(temp, f"{box}/content", src_dir_fd=folder, dst_dir_fd=folder)
            self.calls.rename(box, f"{_CLAIM_PREFIX}{name}", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            self._drop_folder(box, folder)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        above = path.rpartition("/")[0]
        content = self._read_once(f"{above}/{_CLAIM_PREFIX}{name}/content", max(len(data), 1 << 22))
        if content is None:
            raise OSError(errno.EBUSY, "the content of a claim is not seen yet")
        with self._complete_file(folder, content) as finished:
            self.calls.replace(finished, name, src_dir_fd=folder, dst_dir_fd=folder)
        return content == data

    @by_path
    def make_name(self, path: str) -> None:
        """Makes an empty file, if the name is free: a full file system may have room for that."""
        with self._existing_parent(path) as (folder, name), suppress(FileExistsError):
            self.calls.close(self.calls.open(name, _NEW, self._file_mode, dir_fd=folder))

    @by_path
    def open_lock(self, path: str) -> int:
        """Returns a descriptor of a file that only serves as a lock, made if it is not there; the caller closes it.

        As everywhere, no link is followed, on the way or as the last name, and what is there already stays as it is.
        """
        with self._existing_parent(path) as (folder, name):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = self.calls.open(name, flags, self._file_mode, dir_fd=folder)
            if stat.S_ISREG(self.calls.fstat(fd).st_mode):
                return fd
            self.calls.close(fd)
            raise StoreError(errno.EINVAL, f"{self.root / path}: not a plain file")

    @by_path
    def make_folder(self, path: str) -> bool:
        """Makes a folder whose parent exists; False if it was there already.

        If this user's process died while it made the folder, the group may not have its permissions yet: this call
        gives them.
        """
        with self._existing_parent(path) as (folder, name):
            try:
                self.calls.mkdir(name, self._folder_mode, dir_fd=folder)
            except FileExistsError:
                return False
            finally:
                self._share_folder(folder, name)
        return True

    @by_path
    def remove(self, path: str) -> None:
        """Removes a file if it is there."""
        with self.parent(path) as (folder, name):
            if folder is not None:
                with suppress(FileNotFoundError):
                    self.calls.unlink(name, dir_fd=folder)

    @by_path
    def move(self, path: str, target: str) -> None:
        """Renames a folder to a name that must be free, or a file, which replaces another file.

        Raises:
            AlreadyClaimed: `target` exists.
        """
        self.check_path(target)
        with self._existing_parent(path) as (source, name), self._existing_parent(target) as (sink, new_name):
            try:
                self.calls.rename(name, new_name, src_dir_fd=source, dst_dir_fd=sink)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    raise AlreadyClaimed(error.errno, f"{self.root / target} exists already") from error
                raise

    @by_path
    def remove_stale_temporaries(self, path: str, *, most: int = 1000) -> int:
        """Removes unfinished files that dead writers have left in a folder; returns how many.

        Their age is by the file system's own clock: that of a file that is made now, in the same folder. Files younger
        than an hour stay, because their writers may be running. It checks `most` files at most, none in folders below.
        """
        with self._folder(path) as folder:
            listed = self._listing(path) or []
            found = [name for name in listed if name.startswith(TEMP_PREFIX) and name.endswith((".tmp", ".tmp.d"))]
            if folder is None or not found:
                return 0
            now_s = self._now_s(folder)
            return sum(self._drop_if_older(name, folder, now_s - _STALE_AFTER_S) for name in found[:most])

    @by_path
    def now_s(self, path: str) -> float:
        """Returns the time by the file system's own clock, from a new file in a folder, or from a full folder."""
        with self._existing_parent(f"{path}/x") as (folder, _):
            return self._now_s(folder)

    def _now_s(self, folder: int) -> float:
        try:
            with self._complete_file(folder, b"") as probe:
                now_s = self.calls.stat(probe, dir_fd=folder, follow_symlinks=False).st_mtime
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.calls.utime(".", dir_fd=folder)
            return self.calls.stat(".", dir_fd=folder, follow_symlinks=False).st_mtime
        self._drop(probe, folder)
        return now_s

    def _drop_if_older(self, name: str, folder: int, than_s: float) -> bool:
        try:
            if self.calls.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime >= than_s:
                return False
        except OSError:
            return False  # its writer, or another cleaner, was faster
        self._drop(name, folder)
        if name.endswith(".d"):
            self._drop_folder(name, folder)
        return True

    # ---- parts of these

    @contextmanager
    def _complete_file(self, folder: int, data: bytes) -> Iterator[str]:
        """Makes a private file with `data` written, synced and closed without error; removes it on any error."""
        temp = _temporary()
        fd = self.calls.open(temp, _NEW, self._file_mode, dir_fd=folder)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[self.calls.write(fd, view) :]
                if self.shared_with_group:  # the umask may have removed its permission
                    try:
                        self.calls.fchmod(fd, self._file_mode)
                    except OSError as error:
                        if error.errno not in NO_MODES:
                            raise
                # Besides durability: clients that delay writes report "no space" only here or at close.
                self.calls.fsync(fd)
            finally:
                self.calls.close(fd)
            yield temp
        except BaseException:
            self._drop(temp, folder)
            raise

    def _drop(self, temp: str, folder: int) -> None:
        with suppress(OSError):
            self.calls.unlink(temp, dir_fd=folder)

    def _drop_folder(self, box: str, folder: int) -> None:
        with suppress(OSError):
            self.calls.unlink(f"{box}/content", dir_fd=folder)
        with suppress(OSError):
            self.calls.rmdir(box, dir_fd=folder)

    def _share_folder(self, folder: int, name: str) -> None:
        """Gives the group its permissions for a folder of this user; `mkdir` obeys the umask, which may remove them."""
        if not self.shared_with_group:
            return
        with suppress(OSError):  # it is a folder of another user, for example
            fd = self.calls.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                mode = stat.S_IMODE(self.calls.fstat(fd).st_mode)
                if mode | self._folder_mode != mode:
                    self.calls.fchmod(fd, mode | self._folder_mode)
            finally:
                self.calls.close(fd)


def _temporary() -> str:
    return f"{TEMP_PREFIX}{_HOST}-{os.getpid()}-{secrets.token_hex(6)}.tmp"


_HOST = "".join(c if c.isalnum() or c in "-_" else "_" for c in socket.gethostname())[:40] or "host"
