"""When to look again: the poll is the truth, file-system events are a hint to look sooner."""

from __future__ import annotations

import logging
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pfo_fs.store.mounts import is_local

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

log = logging.getLogger(__name__)


class Watcher:
    """Waits for a change below a folder, or for the time to be up.

    On a network file system another host's change makes no event here, and an observer looks alive all the same;
    so events are used on local file systems only (`watch="auto"`), and even there a missed one costs no more than
    one polling interval.

    Args:
        root: The shared directory.
        folder: The folder in it to watch, with all below.
        watch: `auto`, `poll` or `events`.
    """

    def __init__(self, root: Path, folder: str, watch: str = "auto") -> None:
        self._root = root
        self._path = root / folder
        self._wanted = watch == "events" or (watch == "auto" and is_local(root))
        self._event = threading.Event()
        self._changed: set[str] = set()
        self._observer: object | None = None

    @property
    def uses_events(self) -> bool:
        """Whether events shorten the wait right now."""
        return self._observer is not None

    def start(self) -> None:
        """Starts listening where that makes sense; polling alone is enough if it cannot."""
        if not self._wanted or self._observer is not None:
            return
        from watchdog.events import (
            DirCreatedEvent,
            FileClosedEvent,
            FileCreatedEvent,
            FileMovedEvent,
            FileSystemEventHandler,
        )
        from watchdog.observers import Observer

        class Handler(FileSystemEventHandler):
            def on_any_event(_, event: FileSystemEvent) -> None:  # noqa: N805 - `self` is the watcher
                self._note(str(event.dest_path or event.src_path))

        # A folder that is made and filled at once is noted twice by watchdog, which it warns of, and which is fine.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"watchdog\.")
        observer = Observer()
        try:
            # Our own reads make events too; only those of finished writes are asked for.
            observer.schedule(
                Handler(),
                str(self._path),
                recursive=True,
                event_filter=[DirCreatedEvent, FileCreatedEvent, FileMovedEvent, FileClosedEvent],
            )
            observer.start()
        except OSError as error:
            log.info("no file-system events for %s (%s); polling alone", self._path, error)
            return
        self._observer = observer

    def _note(self, path: str) -> None:
        above = f"{self._path}/"
        parts = path.removeprefix(above).split("/") if path.startswith(above) else [""]
        # Progress is written all the time, and not read any sooner for that.
        if parts[-1].startswith(".") or parts[1:2] == ["progress"] or not parts[0]:
            return
        self._changed.add(parts[0])
        self._event.set()

    def wait(self, timeout_s: float) -> set[str]:
        """Returns the names in the folder under which something may have changed; empty when the time was up."""
        self._event.wait(timeout_s)
        self._event.clear()
        changed, self._changed = self._changed, set()
        return changed

    def wake(self) -> None:
        """Ends a wait from another thread or a signal handler."""
        self._event.set()

    def stop(self) -> None:
        """Stops listening, without waiting for a file system that hangs."""
        if self._observer is not None:
            self._observer.stop()  # type: ignore[attr-defined]
            self._observer = None
