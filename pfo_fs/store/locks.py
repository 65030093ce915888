"""Locks, by filelock, for clear messages where locks work. Correctness never depends on a lock.

filelock locks the descriptor that `Files` has opened, so that no link is followed and no file of others is changed.

On many mounts a lock is silently local to the host, or lost at the next reconnection. So the protocol is also correct
if no lock here has any effect (`Files.claim`). On other mounts a call never returns (NFS whose lock manager is gone,
FUSE): so calls are made in a thread, and a process waits for a call for a limited time.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pfo_fs.errors import StoreError
from pfo_fs.store.fs import Files

log = logging.getLogger(__name__)

ANSWERS_WITHIN_S = 2.0
"""A call of a lock that takes longer is given up; as long as it hangs, no other lock is tried in this process."""

_AGAIN_AFTER_S = 0.05
"""A lock that another process holds for a moment is tried again this soon."""

_hanging: list[threading.Thread] = []


@contextmanager
def courtesy_lock(files: Files, *paths: str, timeout_s: float = 2.0) -> Iterator[bool]:
    """Holds those locks at `paths` that are free within `timeout_s`, not the others; yields whether it holds any.

    All processes must name locks in the same order, so that no two of them wait for each other.
    """
    answered, over = threading.Event(), threading.Event()
    held: list[int] = []

    def hold() -> None:
        deadline_s = time.monotonic() + timeout_s
        try:
            held.extend(fd for path in paths if (fd := _acquired(files, path, deadline_s)) is not None)
        finally:
            answered.set()
        over.wait()
        _release(held)

    _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
    thread = threading.Thread(target=hold, daemon=True, name="pfo-fs-lock")
    try:
        if not _hanging:
            thread.start()
    except RuntimeError as error:  # the limit of processes is reached
        log.debug("no lock: %s", error)
    if thread.ident is None:
        yield False
        return
    if not answered.wait(timeout_s + ANSWERS_WITHIN_S):
        _hanging.append(thread)
        log.warning("the lock %s does not answer; going on without it", files.root / paths[0])
    try:
        yield answered.is_set() and bool(held)
    finally:
        over.set()
        if thread not in _hanging:
            thread.join(ANSWERS_WITHIN_S)
            if thread.is_alive():
                _hanging.append(thread)


def _acquired(files: Files, path: str, deadline_s: float) -> int | None:
    """Returns a descriptor that holds the lock; None if it is not free in time, or cannot be had here."""
    try:
        from filelock import lock_descriptor  # here, because the training process imports this module and locks nothing

        fd = files.open_lock(path)
    except (StoreError, ImportError) as error:  # no such folder, a link, no rights; or the environment was removed
        log.debug("no lock: %s", error.args[-1])
        return None
    try:
        while not lock_descriptor(fd, blocking=False):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(_AGAIN_AFTER_S)
        else:
            return fd
    except OSError as error:
        log.debug("no lock at %s: %s", path, error)
    os.close(fd)
    return None


def _release(held: list[int]) -> None:
    from filelock import unlock_descriptor

    for fd in held:
        with suppress(OSError):
            unlock_descriptor(fd)  # a forked child may hold the descriptor, too
        with suppress(OSError):
            os.close(fd)
