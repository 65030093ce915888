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
    from watchdog.observers.api import BaseObserver, ObservedWatch

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 60.0
"""After file-system events could not be had, they are asked for again after this time."""


class Watcher:
    """Waits for a change in a folder, or below those of its folders that are followed, or until a timeout.

    Only followed folders cost watches and a thread: a thousand jobs that are not followed cost nothing.

    On a network file system another host's change makes no event here, although the observer seems to work. So events
    are used on local file systems only (`watch="auto"`); even there, a missed one costs at most one polling interval.
    """

    def __init__(self, root: Path, folder: str, watch: str = "auto") -> None:
        self._root = root
        self._path = root / folder
        self._wanted = watch == "events" or (watch == "auto" and is_local(root))
        # Not a threading.Event: setting one in a signal handler deadlocks if the signal came inside its `wait`.
        self._changed: SimpleQueue[str | None] = SimpleQueue()
        self._observer: BaseObserver | None = None
        self._not_before = -math.inf  # when `start` tries again
        self._followed: dict[str, ObservedWatch] = {}

    @property
    def uses_events(self) -> bool:
        """Whether events shorten the wait right now."""
        return self._observer is not None

    @property
    def is_due(self) -> bool:
        """Whether `start` is to be called."""
        return self._wanted and self._observer is None and time.monotonic() >= self._not_before

    def start(self) -> None:
        """Starts the observer if events are to be used; if it cannot start, polling alone is enough."""
        if not self.is_due:
            return
        from watchdog.observers import Observer

        # watchdog warns that it adds a folder twice if the folder is made and filled at once, which does no harm.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"watchdog\.")
        observer: BaseObserver | None = None
        try:
            observer = Observer()  # from watchdog 7 on, it has a thread and three descriptors from here on
            self._schedule(observer, self._path, recursive=False)
            observer.start()
        except (OSError, RuntimeError) as error:  # no inotify instance is left, or no thread
            log.info("no file-system events for %s (%s); polling alone", self._path, error)
            self._not_before = time.monotonic() + _RETRY_AFTER_S
            if observer is not None:
                observer.stop()
            return
        self._observer = observer

    def follow(self, name: str) -> None:
        """Also observes below `name`, a folder in the watched folder."""
        if self._observer is None or name in self._followed:
            return
        try:
            self._followed[name] = self._schedule(self._observer, self._path / name, recursive=True)
        except (OSError, RuntimeError) as error:
            log.debug("no file-system events for %s: %s", name, error)

    def leave(self, name: str) -> None:
        """Stops observing below `name`."""
        watch = self._followed.pop(name, None)
        if watch is not None and self._observer is not None:
            with suppress(KeyError, OSError, RuntimeError):
                self._observer.unschedule(watch)

    def _schedule(self, observer: BaseObserver, path: Path, *, recursive: bool) -> ObservedWatch:
        from watchdog.events import (
            DirCreatedEvent,
            FileClosedEvent,
            FileCreatedEvent,
            FileMovedEvent,
            FileSystemEventHandler,
        )

        class Handler(FileSystemEventHandler):
            def on_any_event(_, event: FileSystemEvent) -> None:  # noqa: N805 - `self` is the watcher
                self._note(str(event.dest_path or event.src_path))

        # The filter leaves out the events of this process's own reads.
        wanted = [DirCreatedEvent, FileCreatedEvent, FileMovedEvent, FileClosedEvent]
        watch: ObservedWatch = observer.schedule(Handler(), str(path), recursive=recursive, event_filter=wanted)
        return watch

    def _note(self, path: str) -> None:
        above = f"{self._path}/"
        parts = path.removeprefix(above).split("/") if path.startswith(above) else [""]
        # Progress is written all the time, so its events must not make polls earlier.
        if parts[-1].startswith(".") or parts[1:2] == ["progress"] or not parts[0]:
            return
        self._changed.put(parts[0])

    def wait(self, timeout_s: float) -> set[str]:
        """Returns the names in the folder under which something may have changed; empty after the timeout."""
        changed = set()
        with suppress(Empty):
            changed.add(self._changed.get(timeout=max(0.0, timeout_s)))
            while True:
                changed.add(self._changed.get_nowait())
        return {name for name in changed if name is not None}

    def wake(self, name: str | None = None) -> None:
        """Ends a wait from another thread or a signal handler, as if something had changed under `name`."""
        self._changed.put(name)

    def stop(self) -> None:
        """Stops the observer, without waiting for a file system that hangs."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None
            self._followed.clear()
