"""Reads below the root of the shared directory: walks every path, and repeats calls whose errors may pass.

- Every path is walked from the root one name at a time with O_NOFOLLOW, so that a symbolic link planted in the
  directory is not followed. No descriptor and no working directory outlives a call.
- After an error that may pass (stale handle, lost connection, "busy"), the call is tried again by path after a random
  pause, and then raises `StoreUnavailable`; an error that only an operator can fix becomes `StoreError`. A missing file
  is a value, not an error, and means only "not seen now".
"""

import errno
import math
import os
import random
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pfo_fs.errors import StoreError, StoreUnavailable
from pfo_fs.store.file_systems import OPERATOR, TRANSIENT, SystemCalls, is_local

T = TypeVar("T")
P = ParamSpec("P")
Reader = TypeVar("Reader", bound="FileReader")

TEMP_PREFIX = ".pfo-"
"""The names of unfinished files begin with this; listings leave them out."""

_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.004


def by_path(once: Callable[Concatenate[Reader, str, P], T]) -> Callable[Concatenate[Reader, str, P], T]:
    """Makes a method on a path try again, a few times, after an error that may pass."""

    @wraps(once)
    def call(self: Reader, path: str, /, *args: P.args, **options: P.kwargs) -> T:
        return self._retry(path, lambda: once(self, path, *args, **options))

    return call


class FileReader:
    """Reads below one root folder; paths are relative, `"jobs/x/job.json"`.

    Args:
        create: Make a missing directory, private to this user, in a folder that is there: a mistyped path is not made.
            A host that only joins must not make it: without the mount, the folder would be made on the host's own disk.
        users: Only files of these users are read, of this process's user, the root folder's owner and the user root;
            but none that other users may write into: a member of the group may rename a file of an allowed user, and
            write into it. None: in a directory of a group, files of all users; otherwise, of the last three users.

    Raises:
        StoreError: The root is not there or not a folder, or users other than its owner and group may write into it.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        create: bool = False,
        calls: SystemCalls | None = None,
        users: Collection[int] | None = None,
    ) -> None:
        self.root = Path(os.path.abspath(root))
        self.calls = calls or SystemCalls()
        if create:
            try:
                self.root.mkdir(mode=0o700)
            except FileExistsError:
                pass  # what is there is looked at below
            except FileNotFoundError as error:
                why = f"{self.root.parent} is not there, or accepts no folders: is the path right, and mounted?"
                raise StoreError(error.errno, f"{self.root} is not made, because {why}") from error
            except OSError as error:
                raise StoreError(error.errno, f"{self.root}: cannot be made: {error.strerror}") from error
        try:
            status = os.stat(self.root)
        except OSError as error:
            raise StoreError(error.errno, f"{self.root}: {error.strerror}; is the file system mounted here?") from error
        if not stat.S_ISDIR(status.st_mode):
            raise StoreError(errno.ENOTDIR, f"{self.root} is a file; name a folder")
        if status.st_mode & stat.S_IWOTH:
            others = status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX  # /tmp: it must stay as it is
            advice = f"`mkdir -m 700 {self.root / 'pfo-fs'}` and use that" if others else f"`chmod o-w {self.root}`"
            text = f"{self.root}: all users of the host may write there, so any of them could plant a schedule"
            raise StoreError(errno.EPERM, f"{text}; {advice} (mode 2770 to share it with a group)")
        self.shared_with_group = bool(status.st_mode & stat.S_IWGRP)
        # The modes of what is made here; files are replaced, never written into.
        self._file_mode, self._folder_mode = (0o640, 0o2770) if self.shared_with_group else (0o600, 0o700)
        self._caches_may_be_old = not is_local(self.root)
        self._trusted_uids = {os.geteuid(), status.st_uid, 0, *(users or ())}
        self._names_users = users is not None

    @by_path
    def read(self, path: str, limit: int) -> bytes | None:
        """Returns the content of a file, None when there is none now.

        Raises:
            StoreError: The file is larger than `limit` bytes, not a plain file, or of a user who is not trusted here.
            StoreUnavailable: The file system gave no stable answer.
        """
        return self._read_once(path, limit)

    def _read_once(self, path: str, limit: int) -> bytes | None:
        with self.parent(path) as (folder, name):
            if folder is None:
                return None
            try:
                # O_NONBLOCK: opening a planted FIFO must not wait for a writer.
                fd = self.calls.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
            except FileNotFoundError:
                return None
            try:
                status = self.calls.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise StoreError(errno.EINVAL, f"{self.root / path}: not a plain file")
                if not self._trusts(status.st_uid):
                    raise StoreError(errno.EPERM, f"{self.root / path}: belongs to user {status.st_uid}, not read")
                if self._names_users and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise StoreError(
                        errno.EPERM,
                        f"{self.root / path}: others may write into it (mode {stat.S_IMODE(status.st_mode):o}), so "
                        "it is not read: its owner may not have written it. `chmod go-w` it",
                    )
                if status.st_size > limit:
                    raise StoreError(
                        errno.EFBIG, f"{self.root / path}: {status.st_size} bytes, at most {limit} are read"
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
                if size != status.st_size:
                    raise OSError(errno.ESTALE, "torn read")
                return b"".join(chunks)
            finally:
                self.calls.close(fd)

    def _trusts(self, uid: int) -> bool:
        return (self.shared_with_group and not self._names_users) or uid in self._trusted_uids

    @by_path
    def foreign_owner(self, path: str) -> int | None:
        """Returns the user whom a folder belongs to, if `users` were named and it is none of them; otherwise None.

        Also None if the folder is not there now. Without `users`, only the owners of files count.
        """
        if not self._names_users:
            return None
        with self._folder(path) as folder:
            owner = None if folder is None else self.calls.fstat(folder).st_uid
        return None if owner is None or self._trusts(owner) else owner

    def names(self, path: str = "") -> list[str]:
        """Lists a folder, sorted, without unfinished files; a folder that is not there now is empty."""
        return self.names_if_there(path) or []

    @by_path
    def names_if_there(self, path: str) -> list[str] | None:
        """Does the same as `names`, but returns None if the folder is not there now."""
        listed = self._listing(path)
        return None if listed is None else sorted(name for name in listed if not name.startswith(TEMP_PREFIX))

    @by_path
    def all_names(self, path: str) -> list[str]:
        """Lists a folder, unfinished files included; a folder that is not there now is empty."""
        return self._listing(path) or []

    @by_path
    def changed_s(self, path: str) -> float:
        """Returns when a file or folder has changed last, by the file system's own clock; -inf if it is not there."""
        with self.parent(path) as (folder, name), suppress(FileNotFoundError):
            if folder is not None:
                return self.calls.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        return -math.inf

    # ---- the way to a file

    def _listing(self, path: str) -> list[str] | None:
        above, _, name = path.rpartition("/")
        with self._folder(above) as folder:
            if folder is None:
                return None
            # Opened for reading by its name, which makes an NFS client ask the server what is in it now.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                fd = self.calls.open(name or ".", flags, dir_fd=folder)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _not_a_folder(error, self.root / path, name) from error
            try:
                return self.calls.listdir(fd)
            finally:
                self.calls.close(fd)

    @contextmanager
    def _folder(self, path: str) -> Iterator[int | None]:
        """Opens an O_PATH descriptor of a folder below the root; None if a name on the way is not there now."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = self.calls.open(str(self.root), flags)
        except FileNotFoundError as error:
            raise OSError(errno.ESTALE, f"{self.root} is not there: unmounted, or removed?") from error
        try:
            for name in filter(None, path.split("/")):
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
    def parent(self, path: str) -> Iterator[tuple[int | None, str]]:
        """Opens a descriptor of the folder of a file, None if it is not there now; yields also the file's name."""
        folder, _, name = path.rpartition("/")
        if not name:
            raise StoreError(errno.EINVAL, f"{path!r} does not name a file")
        with self._folder(folder) as fd:
            yield fd, name

    @contextmanager
    def _existing_parent(self, path: str) -> Iterator[tuple[int, str]]:
        with self.parent(path) as (fd, name):
            if fd is None:
                raise OSError(errno.ENOENT, "the folder is not there")
            yield fd, name

    def check_path(self, path: str) -> None:
        """Raises `StoreError` if a path does not lie below the root, or cannot be a path."""
        try:
            is_path = b"\0" not in os.fsencode(path)
        except UnicodeEncodeError:
            is_path = False
        if not is_path or not {".", ".."}.isdisjoint(path.split("/")):
            raise StoreError(errno.EINVAL, f"{path!r} is not a path below {self.root}")

    def _retry(self, path: str, once: Callable[[], T]) -> T:
        self.check_path(path)
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return once()
            except StoreError:
                raise
            except OSError as error:
                what = f"{self.root / path}: {error.strerror or error}"
                if error.errno in OPERATOR:
                    raise StoreError(error.errno, f"{what} ({OPERATOR[error.errno]})") from error
                if error.errno == errno.ELOOP:
                    raise StoreError(error.errno, f"{what} (symbolic links are not followed)") from error
                if error.errno not in TRANSIENT:
                    raise StoreError(error.errno, what) from error
                if attempt == _ATTEMPTS:
                    raise StoreUnavailable(error.errno, f"{what}, {attempt} times in a row") from error
            time.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s *= 3
        raise AssertionError("unreachable")


def _not_a_folder(error: OSError, path: Path, name: str) -> OSError:
    """Returns the error to raise: `error`, or a clearer one where a link or a file is in the place of a folder."""
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return StoreError(error.errno, f"{path}: {name} is a symbolic link, or no folder")
    return error
