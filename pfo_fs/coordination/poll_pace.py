"""How often the hosts of a job poll, and so how long a new schedule takes to reach all of them.

A file server serves all jobs of a site, so a job must not cost it more the more hosts it has, and little while nothing
happens. The coordinator writes the pace into `current.json`; hosts never poll more often than that.
"""

from __future__ import annotations

import math

_HOST_RANKS = 8
"""Hosts have about eight GPUs: the number of hosts follows from that of the ranks."""
_POLLS_PER_S = {"local": 1000.0, "remote": 250.0}
"""All hosts of a job together poll at most about this often."""
_MOST_LOCAL_RANKS = 64
"""A job with more ranks has several hosts: its directory is shared, whatever the file system's type says."""
CALM_AFTER_S = 60.0
"""A job is calm after this time without a new schedule or an edit of `schedule.yaml`."""
_CALM_POLL_S = 10.0
"""Seconds between two polls of a calm job's `current.json` by each of its hosts, and of its folder by a daemon."""
_CALM_LOCAL_POLL_S = 2.0
"""The same for the daemon where the job is of this host, and its directory on this host's own disk."""
_LONGEST_POLL_S = 60.0
"""However large a job is, a change reaches it within about a minute."""
_LATEST = 1.5
"""A poll comes at most this many times the interval after the last one: hosts vary their pauses."""
_LEAD_PER_POLL = _LATEST + 1.0
"""Of the interval at which hosts poll as they like; the rest is for writing, reading and a second try."""


class PollPace:
    """The pace of one job.

    Args:
        lead_s: Hosts that poll as often as they like surely have a new schedule within this time.
        remote: Whether the directory is on a file system of another host.
        adapts: Whether the pace may change; False where a user has set the interval, or nothing is polled.
        now: Monotonic time, in s.

    Attributes:
        poll_s: Hosts poll at most once in this time, in s; 0.0: as often as they like.
    """

    def __init__(self, lead_s: float, *, remote: bool, adapts: bool, now: float) -> None:
        self.poll_s = 0.0
        self._lead_s = lead_s
        self._remote = remote
        self._adapts = adapts
        self._changed_at = now
        self._is_shared = remote
        self._slower_s = 0.0  # the longest interval that hosts may still follow, and until when
        self._slower_until = -math.inf

    def is_calm(self, now: float) -> bool:
        """Returns whether nothing has happened for long."""
        return self._adapts and now - self._changed_at >= CALM_AFTER_S

    @property
    def calm_pause_s(self) -> float:
        """How long the coordinator may wait between two polls of the job while it is calm, in s."""
        return _CALM_POLL_S if self._is_shared else _CALM_LOCAL_POLL_S

    def changed(self, now: float) -> None:
        """Notes that something has happened to the job: other changes may follow soon."""
        self._changed_at = now

    def took_over(self, now: float, poll_s: float) -> None:
        """Notes what an earlier coordinator has asked for: hosts follow it until they poll again."""
        self._slower_s, self._slower_until = poll_s, now + _LATEST * poll_s

    def hosts_poll(self, poll_s: float) -> None:
        """Notes how often hosts poll where they poll as they like: their mount may differ from the coordinator's."""
        self._lead_s = max(self._lead_s, _LEAD_PER_POLL * poll_s)

    def update(self, now: float, world_size: int) -> None:
        """Chooses the interval of the next polls.

        Args:
            now: Monotonic time, in s.
            world_size: Number of ranks of the job.
        """
        if not self._adapts:
            return
        self._is_shared = self._remote or world_size > _MOST_LOCAL_RANKS
        polls_s = world_size / _HOST_RANKS / _POLLS_PER_S["remote" if self._remote else "local"]
        poll_s = min(round(polls_s, 1), _LONGEST_POLL_S) if polls_s >= 1 else 0.0
        if self.is_calm(now) and self._is_shared:
            poll_s = max(poll_s, _CALM_POLL_S)
        if poll_s < self.poll_s:
            self._slower_s, self._slower_until = self.poll_s, now + _LATEST * self.poll_s
        self.poll_s = poll_s

    def lead_s(self, now: float) -> float:
        """Returns the time within which all hosts surely have a schedule that is written now."""
        poll_s = max(self.poll_s, self._slower_s if now < self._slower_until else 0.0)
        return self._lead_s + _LATEST * poll_s
