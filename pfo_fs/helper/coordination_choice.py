"""Decides which process schedules a new job: a running daemon that claims it, or the helper of the job's rank 0."""

from __future__ import annotations

import math
from typing import Literal

from pfo_fs.helper.operations import AskWhoSchedules, ClaimForRank0, WhoSchedules

Mode = Literal["auto", "daemon", "local", "none"]

_SHORTEST_SILENCE_S, _LONGEST_SILENCE_S = 3.0, 5.0
"""A daemon counts as dead if its heartbeat does not change for three of its intervals, within these bounds.

The daemon writes the heartbeat once a second, and later than that on a busy machine.
"""
_BUSY_DAEMON_S = 5.0
"""If a running daemon has not claimed the job after this time, it will do so later, and the ranks do not wait."""


class CoordinationChoice:
    """The choice for one job; ends with `chosen`.

    Args:
        mode: The mode that the job requests; `auto`: a daemon if one runs; `none`: no process schedules it.
        now_s: Monotonic time.

    Attributes:
        chosen: `daemon`, `local` or `none`, once that is known.
    """

    def __init__(self, mode: Mode, now_s: float) -> None:
        self.chosen: Literal["daemon", "local", "none"] | None = mode if mode in ("daemon", "none") else None
        self._site_problem = self._reason = ""
        self._mode = mode
        self._since_s = now_s
        self._heartbeat: tuple[int, int] | None = None
        self._moved_at_s = -math.inf
        self._moves = 0

    @property
    def warning(self) -> str:
        """Text for the log about the choice; may be empty."""
        return "; ".join(filter(None, (self._site_problem, self._reason)))

    def learn(self, found: WhoSchedules, now_s: float) -> AskWhoSchedules | ClaimForRank0 | None:
        """Uses the directory's answer; returns the next question, or None if the choice is made."""
        daemon, self._site_problem = found.daemon, found.site.warning
        if found.site.daemon_only:
            self._reason = "site.yaml allows only a daemon to schedule; default clocks until a daemon claims this job"
            self.chosen = "daemon"
            return None
        if self._mode == "local" or found.claimed or daemon is None or daemon.stopped:
            if self._mode == "auto" and found.daemon_problem:
                self._reason = f"{found.daemon_problem}; rank 0 schedules this job itself unless that daemon does"
            return ClaimForRank0()  # if rank 0 does not get the claim, the result says who has it
        heartbeat = daemon.generation, daemon.counter
        if heartbeat != self._heartbeat:
            self._moves += self._heartbeat is not None
            self._heartbeat, self._moved_at_s = heartbeat, now_s
        patience_s = min(_LONGEST_SILENCE_S, max(_SHORTEST_SILENCE_S, 3 * daemon.interval_s))
        if now_s - self._moved_at_s > patience_s:
            self._reason = f"the daemon on {daemon.host} does not answer; rank 0 schedules this job itself"
            return ClaimForRank0()
        if self._moves and now_s - self._since_s > _BUSY_DAEMON_S:
            self._reason = f"the daemon on {daemon.host} runs but is busy; default clocks until it claims this job"
            self.chosen = "daemon"
            return None
        return AskWhoSchedules()

    def claimed_by(self, kind: str) -> None:
        """Notes which kind of process has the claim."""
        self.chosen = "daemon" if kind == "daemon" else "local"
