"""The system calls on the shared directory, and the meanings of their errors."""

from __future__ import annotations

import errno
import os

TRANSIENT = frozenset(
    getattr(errno, name)
    for name in (
        "ESTALE ENOENT EEXIST EBUSY EBADFD EBADF ENOTCONN ETIMEDOUT EIO ENOLCK EINTR EAGAIN EHOSTDOWN EHOSTUNREACH "
        "ENETDOWN ENETUNREACH ECONNRESET ECONNABORTED ECONNREFUSED EREMOTEIO ENXIO EACCES "
        "ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED"
    ).split()
)
"""Errors that may pass: the operation is tried again, by path. EACCES and those of keys: a ticket (Kerberos, AFS) that
may be renewed."""
OPERATOR = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is mounted read-only",
    errno.EPERM: "this user may not do that here",
}
"""Errors that only an operator can fix, and what they mean."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""No room for content, or for another file; a name, of an empty file or a hard link, may still be made."""
NO_MODES = frozenset((errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Errors of `chmod` where a file system refuses it (GPFS with ACLs only, SMB, FUSE): files have the rights it gives."""
NO_HARD_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV))
"""Errors of `link` where a file system has no hard links, or allows no more for this file."""


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

    @staticmethod
    def listdir(fd: int) -> list[str]:
        return os.listdir(fd)
