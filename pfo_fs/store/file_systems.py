"""The kind of a path's file system; the system calls on the shared directory, and what their errors mean."""

import errno
import os
from pathlib import Path
from typing import NamedTuple

TRANSIENT = frozenset(
    getattr(errno, name)
    for name in (
        "ESTALE ENOENT EEXIST EBUSY EBADFD EBADF ENOTCONN ETIMEDOUT EIO ENOLCK EINTR EAGAIN EHOSTDOWN EHOSTUNREACH "
        "ENETDOWN ENETUNREACH ECONNRESET ECONNABORTED ECONNREFUSED EREMOTEIO ENXIO EACCES "
        "ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED"
    ).split()
)
"""Errors that may pass: the operation is tried again, by path. EACCES and the errors of keys mean a ticket (Kerberos,
AFS) that may be renewed."""
OPERATOR = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is mounted read-only",
    errno.EPERM: "this user may not do that here",
}
"""Errors that only an operator can fix, and what they mean."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""No room for content, or for another file; a file may still be renamed."""
NO_MODES = frozenset((errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Errors of `chmod` where a file system refuses it (GPFS with ACLs only, SMB, FUSE): files keep the rights it gives."""
NO_HARD_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV))
"""Errors of `link` where a file system has no hard links, or allows no more for this file."""
LOCAL_TYPES = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs zfs f2fs bcachefs jfs reiserfs overlay overlayfs aufs".split()
)
"""File systems on which this host makes every change, so that inotify sees all of them."""


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
    rmdir = staticmethod(os.rmdir)
    stat = staticmethod(os.stat)
    utime = staticmethod(os.utime)

    @staticmethod
    def listdir(fd: int) -> list[str]:
        return os.listdir(fd)


class Mount(NamedTuple):
    """One mount, from the kernel's table.

    Attributes:
        point: Where it is mounted; empty if it was not found.
        kind: The type of the file system, as the kernel names it (`nfs4`, `lustre`, `ext4`), or `unknown`.
        source: What is mounted: a server and its path, or a device.
        options: All options, of the mount and of the file system.
    """

    point: str = ""
    kind: str = "unknown"
    source: str = ""
    options: tuple[str, ...] = ()


def mount_of(real_path: str, mountinfo: str | None = None) -> Mount:
    """Returns the mount that holds a path without symbolic links, which need not exist.

    It makes no call on the path's file system, so it cannot hang.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return Mount()
    best = Mount()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, of_kind = before.split(), after.split()
        if len(fields) < 6 or not of_kind:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = real_path == point or real_path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):  # the last mount on a point is the one on top
            options = [*fields[5].split(","), *",".join(of_kind[2:3]).split(",")]
            best = Mount(point, of_kind[0], "".join(of_kind[1:2]), tuple(dict.fromkeys(filter(None, options))))
    return best


def is_local(path: str | os.PathLike[str]) -> bool:
    """Returns whether all changes below `path` are made by this host."""
    return mount_of(os.path.realpath(path)).kind in LOCAL_TYPES
