"""The only file-system calls on the shared directory: four primitives that every file system keeps.

Exclusive creation of a name (`claim`, `make_folder`), replacement of a file by its one writer (`publish`), reading a
small file opened afresh (`read`) and listing a folder (`names`); plus moving a finished folder aside (`move`).

What they have in common:

- Every path is walked from the root one name at a time with O_NOFOLLOW, so that a symbolic link planted in the
  directory leads nowhere. No descriptor and no working directory outlives a call.
- Errors that may pass (stale handles, lost connections, "busy") are tried again by path with a little jitter, then
  become `StoreUnavailable`; what only an operator can mend becomes `StoreError`. Absence is a value, not an error,
  and says only "not seen now".
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from pfo_fs.errors import AlreadyClaimed, StoreError, StoreUnavailable
from pfo_fs.store.mounts import is_local

T = TypeVar("T")

TEMP_PREFIX = ".pfo-"
"""How the names of unfinished files begin; listings leave them out."""

_TRANSIENT = frozenset(
    getattr(errno, name)
    for name in (
        "ESTALE ENOENT EEXIST EBUSY EBADFD EBADF ENOTCONN ETIMEDOUT EIO ENOLCK EINTR EAGAIN EHOSTDOWN EHOSTUNREACH "
        "ENETDOWN ENETUNREACH ECONNRESET ECONNABORTED ECONNREFUSED EREMOTEIO ENXIO EACCES"
    ).split()
)
_OPERATOR = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is mounted read-only",
    errno.EPERM: "this user may not do that here",
}
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.004


class SystemCalls:
    """The system calls that `Files` makes, one method each, so that tests can let any one of them fail."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    fstat = staticmethod(os.fstat)
    fchmod = staticmethod(os.fchmod)
    replace = staticmethod(os.replace)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)

    @staticmethod
    def listdir(fd: int) -> list[str]:
        return os.listdir(fd)


class Files:
    """File primitives below one root folder; paths are relative, `"jobs/x/job.json"`.

    Args:
        root: The shared directory.
        create: Make it, private to this user, when it is not there.

    Raises:
        StoreError: The root is no folder, or others than its owner and group may write into it.
    """

    def __init__(self, root: str | os.PathLike[str], *, create: bool = True, calls: SystemCalls | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self.calls = calls or SystemCalls()
        if create:
            try:
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(error.errno, f"{self.root}: cannot be made: {error.strerror}") from error
        try:
            found = os.stat(self.root)
        except OSError as error:
            raise StoreError(error.errno, f"{self.root}: {error.strerror}; is the file system mounted here?") from error
        if not stat.S_ISDIR(found.st_mode):
            raise StoreError(errno.ENOTDIR, f"{self.root} is no folder")
        if found.st_mode & stat.S_IWOTH:
            raise StoreError(
                errno.EPERM,
                f"{self.root}: everybody may write there, so anybody could plant a schedule; "
                f"`chmod o-w {self.root}`, and `chmod 2770` to share it with a group",
            )
        self.shared_with_group = bool(found.st_mode & stat.S_IWGRP)
        self._caches_may_be_old = not is_local(self.root)
        self._trusted_uids = {os.geteuid(), found.st_uid, 0}
        self._file_mode = 0o660 if self.shared_with_group else 0o600
        self._folder_mode = 0o2770 if self.shared_with_group else 0o700

    # ---- reading

    def read(self, path: str, limit: int) -> bytes | None:
        """Returns the content of a file, None when there is none now.

        Raises:
            StoreError: It is larger than `limit` bytes, no plain file, or belongs to a user who is not trusted here.
            StoreUnavailable: The file system gave no stable answer.
        """
        return self._retry(path, lambda: self._read_once(path, limit))

    def _read_once(self, path: str, limit: int) -> bytes | None:
        with self._parent(path) as (folder, name):
            if folder is None:
                return None
            try:
                # O_NONBLOCK: opening a planted FIFO must not wait for a writer.
                fd = self.calls.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
            except FileNotFoundError:
                return None
            try:
                found = self.calls.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise StoreError(errno.EINVAL, f"{self.root / path}: no plain file")
                if not self.shared_with_group and found.st_uid not in self._trusted_uids:
                    raise StoreError(errno.EPERM, f"{self.root / path}: belongs to user {found.st_uid}, not read")
                if found.st_size > limit:
                    raise StoreError(
                        errno.EFBIG, f"{self.root / path}: {found.st_size} bytes, at most {limit} are read"
                    )
                if self._caches_may_be_old:
                    with suppress(OSError):  # drop what this client may have cached of an older content
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                chunks, size = [], 0
                while chunk := self.calls.read(fd, min(limit + 1 - size, 1 << 20)):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        raise StoreError(errno.EFBIG, f"{self.root / path}: grew beyond {limit} bytes while read")
                if size != found.st_size:
                    raise OSError(errno.ESTALE, "torn read")
                return b"".join(chunks)
            finally:
                self.calls.close(fd)

    def names(self, path: str = "") -> list[str]:
        """Lists a folder, sorted, without unfinished files; a folder that is not there now is empty.

        Raises:
            StoreUnavailable: The file system gave no answer, or the root itself is not there.
        """

        def once() -> list[str]:
            above, _, name = path.rpartition("/")
            with self._folder(above) as folder:
                if folder is None:
                    return []
                # Opened for reading by its name, which makes an NFS client ask the server what is in it now.
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    fd = self.calls.open(name or ".", flags, dir_fd=folder)
                except FileNotFoundError:
                    return []
                except OSError as error:
                    raise _not_a_folder(error, self.root / path, name) from error
                try:
                    return sorted(found for found in self.calls.listdir(fd) if not found.startswith(TEMP_PREFIX))
                finally:
                    self.calls.close(fd)

        return self._retry(path, once)

    # ---- writing

    def publish(self, path: str, data: bytes) -> None:
        """Puts `data` in place of whatever is at `path`, whole or not at all; only the file's one writer may call it.

        Raises:
            StoreError: No space, no permission, read-only; what was there stays.
            StoreUnavailable: The file system gave no answer; what was there stays, or the new content is in place.
        """

        def once() -> None:
            with self._existing_parent(path) as (folder, name), self._complete_file(folder, data) as temp:
                self.calls.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)

        self._retry(path, once)

    def claim(self, path: str, data: bytes) -> bool:
        """Creates `path` with `data` if nobody has; True if the file is now ours, byte for byte.

        The name appears with its whole content, by a hard link of a finished private file. An error after which the
        link may or may not exist is settled by reading the name back.

        Raises:
            StoreError, StoreUnavailable: As `publish`.
        """

        def once() -> bool:
            with self._existing_parent(path) as (folder, name), self._complete_file(folder, data) as temp:
                try:
                    self.calls.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                    self._drop(temp, folder)
                except OSError as error:
                    present = self._read_once(path, max(len(data), 1 << 22))
                    if present is not None:
                        self._drop(temp, folder)
                        return present == data
                    if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
                        return self._claim_without_links(folder, temp, name, path, data)
                    raise
            return True

        return self._retry(path, once)

    def _claim_without_links(self, folder: int, temp: str, name: str, path: str, data: bytes) -> bool:
        """Where hard links are missing: whoever makes the folder `.pfo-claim-NAME` may put the file in place."""
        try:
            self.calls.mkdir(f"{TEMP_PREFIX}claim-{name}", self._folder_mode, dir_fd=folder)
        except FileExistsError:
            present = self._read_once(path, max(len(data), 1 << 22))
            if present is None:
                raise OSError(errno.EBUSY, "claimed by somebody who has not written yet") from None
            self._drop(temp, folder)
            return present == data
        self.calls.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True

    def make_folder(self, path: str) -> bool:
        """Makes a folder whose parent exists; False if it was there already."""

        def once() -> bool:
            with self._existing_parent(path) as (folder, name):
                try:
                    self.calls.mkdir(name, self._folder_mode, dir_fd=folder)
                except FileExistsError:
                    return False
                if self.shared_with_group:
                    with suppress(OSError):  # mkdir obeys the umask, which may take the group's rights away
                        os.chmod(name, self._folder_mode, dir_fd=folder)
            return True

        return self._retry(path, once)

    def move(self, path: str, target: str) -> None:
        """Renames a folder of ours to a name that must be free.

        Raises:
            AlreadyClaimed: `target` exists.
        """

        def once() -> None:
            with self._existing_parent(path) as (source, name), self._existing_parent(target) as (sink, new_name):
                try:
                    self.calls.rename(name, new_name, src_dir_fd=source, dst_dir_fd=sink)
                except OSError as error:
                    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                        raise AlreadyClaimed(error.errno, f"{self.root / target} exists already") from error
                    raise

        self._retry(path, once)

    # ---- the pieces

    @contextmanager
    def _complete_file(self, folder: int, data: bytes) -> Iterator[str]:
        """A private file with `data` written, synced and closed without error; dropped on any error."""
        temp = f"{TEMP_PREFIX}{_HOST}-{os.getpid()}-{secrets.token_hex(6)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self.calls.open(temp, flags, 0o600, dir_fd=folder)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[self.calls.write(fd, view) :]
                if self._file_mode != 0o600:
                    self.calls.fchmod(fd, self._file_mode)
                # Not for durability alone: write-behind clients report "no space" only here or at close.
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

    @contextmanager
    def _folder(self, path: str) -> Iterator[int | None]:
        """An O_PATH descriptor of a folder below the root, None if a name on the way is not there now."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = self.calls.open(str(self.root), flags)
        except FileNotFoundError as error:
            raise OSError(errno.ESTALE, f"{self.root} is not there: unmounted, or removed?") from error
        try:
            for name in filter(None, path.split("/")):
                if name in (".", ".."):
                    raise StoreError(errno.EINVAL, f"{path!r} leads out of {self.root}")
                try:
                    below = self.calls.open(name, flags | os.O_NOFOLLOW, dir_fd=fd)
                except FileNotFoundError:
                    yield None
                    return
                except OSError as error:
                    raise _not_a_folder(error, self.root / path, name) from error
                self.calls.close(fd)
                fd = below
            yield fd
        finally:
            self.calls.close(fd)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int | None, str]]:
        folder, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            raise StoreError(errno.EINVAL, f"{path!r} names no file")
        with self._folder(folder) as fd:
            yield fd, name

    @contextmanager
    def _existing_parent(self, path: str) -> Iterator[tuple[int, str]]:
        with self._parent(path) as (fd, name):
            if fd is None:
                raise OSError(errno.ENOENT, "the folder is not there")
            yield fd, name

    def _retry(self, path: str, once: Callable[[], T]) -> T:
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return once()
            except StoreError:
                raise
            except OSError as error:
                what = f"{self.root / path}: {error.strerror or error}"
                if error.errno in _OPERATOR:
                    raise StoreError(error.errno, f"{what} ({_OPERATOR[error.errno]})") from error
                if error.errno == errno.ELOOP:
                    raise StoreError(error.errno, f"{what} (symbolic links are not followed)") from error
                if error.errno not in _TRANSIENT:
                    raise StoreError(error.errno, what) from error
                if attempt == _ATTEMPTS:
                    raise StoreUnavailable(error.errno, f"{what}, {attempt} times in a row") from error
            time.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s *= 3
        raise AssertionError("unreachable")


def _not_a_folder(error: OSError, path: Path, name: str) -> OSError:
    """The error to raise: `error`, or a clearer one where a link or a file is in the place of a folder."""
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return StoreError(error.errno, f"{path}: {name} is no folder, or a symbolic link")
    return error


_HOST = "".join(c if c.isalnum() or c in "-_" else "_" for c in socket.gethostname())[:40] or "host"
