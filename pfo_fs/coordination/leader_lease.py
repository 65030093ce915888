"""The rules by which a daemon leads, without file-system calls (`leader.py` makes those).

A daemon becomes the leader by claiming the next generation, which only one can. Every `current.json` has the generation
of its writer and ranks ignore older ones, so two daemons that both lead do no harm. The leader holds a lease: it counts
as alive for `lease_s` after each change of its counter, timed by the observer's own clock, since clocks of hosts are
never compared. A lock makes a takeover quicker where locks work; nothing depends on it.
"""

from __future__ import annotations

import math
from typing import Literal

from pfo_fs.store import bodies

LEASES_WITH_LOCK = 4 / 3
"""A silent leader whose lock is still held counts as dead after this many lease times: file servers keep the lock of a
host that is cut off. A leader that was only slow then steps down, which costs nothing."""
LONGEST_BEAT_S = 1.0
"""The leader's record is written at least this often, so that `pfo-fs status` sees a dead daemon soon."""

Step = Literal["wait", "lock", "claim", "beat", "step down"]


class LeaderLease:
    """One daemon's view of the leader, and what this daemon should do next.

    Args:
        lease_s: Seconds of silence after which a standby considers the leader dead.
        now: Monotonic time in s.

    Attributes:
        generation: The generation in which this daemon leads; 0 while it stands by.
        silent_s: Seconds without a change of the leader's record. Each gap between two polls counts at most a third of
            the lease, so that a standby that was itself suspended needs several polls before it considers the leader
            dead.
    """

    def __init__(self, lease_s: float, now: float) -> None:
        self.generation = 0
        self._lease_s = lease_s
        self._seen: tuple[int, int, int] | None = None  # newest generation, and the leader's generation and counter
        self._looked_at = now
        self._beat_at = -math.inf
        self.silent_s = 0.0

    @property
    def beat_interval_s(self) -> float:
        """Seconds between two heartbeats of a leader."""
        return min(LONGEST_BEAT_S, self._lease_s / 3)

    @property
    def next_look_at(self) -> float:
        """When the next step is due, in monotonic s."""
        if self.generation:
            return self._beat_at + self.beat_interval_s
        return -math.inf

    def next_step(self, now: float, newest: int, leader: bodies.DaemonBody | None, *, has_lock: bool) -> Step:
        """Returns what to do now.

        Args:
            now: Monotonic time in s.
            newest: The newest generation that a daemon has claimed; 0 for none.
            leader: The content of `daemon.json`; None if it is missing or damaged.
            has_lock: Whether this daemon holds the lock.

        Returns:
            `wait`: nothing. `lock`: try the lock, and claim only with it. `claim`: claim the next generation.
            `beat`: write the heartbeat. `step down`: another daemon leads.
        """
        if self.generation:
            if newest > self.generation:
                return "step down"
            return "beat" if now - self._beat_at >= self.beat_interval_s else "wait"
        seen = (newest, leader.generation if leader else -1, leader.counter if leader else -1)
        gap_s, self._looked_at = now - self._looked_at, now
        self.silent_s = self.silent_s + min(gap_s, self._lease_s / 3) if seen == self._seen else 0.0
        self._seen = seen
        resigned = leader is not None and leader.stopped and leader.generation == newest
        if resigned or (newest == 0 and leader is None):
            return "claim"
        if self.silent_s < self._lease_s:
            return "wait"
        if has_lock or self.silent_s >= LEASES_WITH_LOCK * self._lease_s:
            return "claim"
        return "lock"

    def claimed(self, generation: int) -> None:
        """Notes that this daemon leads in `generation` from now on. Its first heartbeat is due at once."""
        self.generation = generation
        self._beat_at = -math.inf

    def beat(self, now: float) -> None:
        """Notes that the heartbeat was written."""
        self._beat_at = now

    def stand_by(self, now: float) -> None:
        """Notes that this daemon stands by; the leader gets a whole lease time for its next heartbeat."""
        self.generation = 0
        self.forget_silence(now)

    def forget_silence(self, now: float) -> None:
        """Restarts the timing of the leader's silence: during an outage of the file system no heartbeat is seen."""
        self._seen, self._looked_at, self.silent_s = None, now, 0.0
