"""How long rank 0 of a new job waits for a daemon to claim the job."""

from __future__ import annotations

from typing import Literal

from pfo_fs.store import bodies

NextStep = Literal["wait", "claimed", "alone"]

SILENT_S = 3.0
"""A daemon whose heartbeat has not moved for so long does not answer; it beats once a second."""
LONGEST_S = 15.0
"""A job does not wait longer than this, whatever the daemon does: training would wait too."""


class ClaimWait:
    """Decides whether to go on waiting; makes no call itself.

    A job in `auto` waits as long as the daemon's heartbeat moves, but at most `LONGEST_S`. A heartbeat that does not
    move for `SILENT_S` was left behind by a daemon that is dead or cut off.

    Args:
        now: Monotonic time in s.
    """

    def __init__(self, now: float) -> None:
        self._began = self._moved = now
        self._heartbeat: tuple[int, int] | None = None

    def look(self, now: float, daemon: bodies.DaemonBody | None, *, claimed: bool) -> NextStep:
        """Returns what to do.

        Args:
            now: Monotonic time in s.
            daemon: What `daemon.json` holds now; None if it is missing or damaged.
            claimed: Whether the job's folder shows `coordinator.json`.

        Returns:
            `wait`: look again soon. `claimed`: read who has claimed the job. `alone`: do not wait for a daemon.
        """
        if claimed:
            return "claimed"
        if daemon is None or daemon.stopped:
            return "alone"
        heartbeat = daemon.generation, daemon.counter
        if self._heartbeat is not None and heartbeat != self._heartbeat:
            self._moved = now
        self._heartbeat = heartbeat
        if now - self._moved >= SILENT_S or now - self._began >= LONGEST_S:
            return "alone"
        return "wait"
