"""File-system events on one host."""

from __future__ import annotations

from pathlib import Path

from pfo_fs.doctor.catalogue_directory import EVENTS
from pfo_fs.doctor.lines import Check
from pfo_fs.store import Watcher, is_local


def check_events(root: Path) -> Check:
    """Says whether the daemon would use events here, and tries to get them where it would."""
    if not is_local(root):
        return EVENTS.check("polling", "not used on this kind of file system")
    watcher = Watcher(root, "", "events")
    watcher.start()
    try:
        return EVENTS.check("ok", "used") if watcher.uses_events else EVENTS.check("none", "cannot be had")
    finally:
        watcher.stop()
