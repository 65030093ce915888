"""Locks, by `filelock`, for clear messages where locks work. Correctness never depends on one.

On many mounts a lock is silently local to the host, or lost at the next reconnection. So the protocol is also correct
if no lock here has any effect (`Files.claim`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from filelock import BaseFileLock, FileLock, Timeout

from pfo_fs.store.fs import Files

log = logging.getLogger(__name__)


@contextmanager
def courtesy_lock(files: Files, path: str, timeout_s: float = 2.0) -> Iterator[bool]:
    """Holds the lock at `path` if it is free within `timeout_s`; otherwise goes on without it."""
    lock = try_lock(files, path, timeout_s)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            with suppress(OSError):
                lock.release()


def try_lock(files: Files, path: str, timeout_s: float = 0.0) -> BaseFileLock | None:
    """Acquires and returns the lock at `path`; None if it is held, or if this file system has no locks."""
    if not (files.root / path).parent.is_dir():
        return None  # filelock would make the folders, on this host's own disk if the file system is not mounted
    lock = FileLock(
        str(files.root / path),
        timeout=timeout_s,
        mode=0o660 if files.shared_with_group else 0o600,
        fallback_to_soft=False,
    )
    try:
        lock.acquire()
    except Timeout:
        return None
    except (OSError, NotImplementedError) as error:
        log.debug("no lock at %s: %s", path, error)
        return None
    return lock
