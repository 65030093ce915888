"""Decides when to poll again: every change is found by polling, and file-system events only make the poll earlier."""

from __future__ import annotations

import logging
import math
import time
import warnings
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pfo_fs.store.file_systems import is_local

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 60.0
"""If file-system events were not available, they are requested again after this time."""


class Watcher:
    """Waits until something is made in a folder, or until a timeout. Folders below it are not watched.

    On a network file system another host's change makes no event here, although the observer seems to work. So events
    are used on local file systems only (`watch="auto"`); even there, a missed event costs at most one polling interval.
    """

    def __init__(self, root: Path, folder: str, watch: str = "auto") -> None:
        self._path = root / folder
        self.wants_events = watch == "events" or (watch == "auto" and is_local(root))
        # Not a threading.Event: setting one in a signal handler deadlocks if the signal came inside its `wait`.
        self._changed: SimpleQueue[bool] = SimpleQueue()
        self._observer: BaseObserver | None = None
        self._not_before = -math.inf  # when `start` tries again

    def start(self) -> None:
        """Starts the observer if events are to be used; if it cannot start, polling alone is enough."""
        if not self.wants_events or self._observer is not None or time.monotonic() < self._not_before:
            return
        from watchdog.events import DirCreatedEvent, FileCreatedEvent, FileMovedEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        class Handler(FileSystemEventHandler):
            def on_any_event(_, event: FileSystemEvent) -> None:  # noqa: N805 - `self` is the watcher
                if not Path(str(event.dest_path or event.src_path)).name.startswith("."):
                    self._changed.put(True)

        # watchdog warns that it adds a folder twice if the folder is made and filled at once, which does no harm.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"watchdog\.")
        observer: BaseObserver | None = None
        try:
            observer = Observer()  # from watchdog 7 on, it has a thread and three descriptors from here on
            # The filter leaves out the events of this process's own reads.
            wanted = [DirCreatedEvent, FileCreatedEvent, FileMovedEvent]
            observer.schedule(Handler(), str(self._path), event_filter=wanted)
            observer.start()
        except (OSError, RuntimeError) as error:  # no inotify instance is left, or no thread
            log.info("no file-system events for %s (%s); polling alone", self._path, error)
            self._not_before = time.monotonic() + _RETRY_AFTER_S
            if observer is not None:
                observer.stop()
            return
        self._observer = observer

    def wait(self, timeout_s: float) -> bool:
        """Returns whether something may have been made in the folder; False after the timeout, or a `wake`."""
        changed = False
        with suppress(Empty):
            changed = self._changed.get(timeout=max(0.0, timeout_s))
            while True:
                changed |= self._changed.get_nowait()
        return changed

    def wake(self) -> None:
        """Ends a wait from another thread or a signal handler."""
        self._changed.put(False)

    def stop(self) -> None:
        """Stops the observer, without waiting for a file system that hangs."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None
