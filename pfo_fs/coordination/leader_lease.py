"""Which daemon leads: the rules, without a file-system call (`leader.py` makes those).

A daemon becomes the leader by claiming the next generation, which only one can. Every `current.json` carries the
generation of its writer and ranks ignore older ones, so two daemons that both think they lead do no harm. Whether the
leader lives is seen from a counter that moves, timed by the observer's own clock: clocks of hosts are never compared.
A lock makes a takeover quicker where locks work; nothing depends on one.
"""

from __future__ import annotations

import math
from typing import Literal

from pfo_fs.store import bodies

SILENT_LOCK_HOLDER = 3
"""So many lease times a silent leader gets while its lock is still held."""
LONGEST_BEAT_S = 1.0

Step = Literal["wait", "lock", "claim", "beat", "step down"]


class LeaderLease:
    """One daemon's view of who leads, and what it should do next.

    Args:
        lease_s: Seconds of silence after which a standby calls the leader dead.
        now: Monotonic time in s.

    Attributes:
        generation: What this daemon leads in; 0 while it stands by.
        silent_s: For how long the leader has shown no sign of life, in s. Each gap between two looks counts at most a
            third of the lease, so that a standby that was itself suspended needs several looks before it calls the
            leader dead.
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
        """How often a leader writes its heartbeat, in s."""
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
            leader: What `daemon.json` says; None if it is missing or damaged.
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
        if has_lock or self.silent_s >= SILENT_LOCK_HOLDER * self._lease_s:
            return "claim"
        return "lock"

    def claimed(self, generation: int) -> None:
        """This daemon leads in `generation` from now on. Its first heartbeat is due at once."""
        self.generation = generation
        self._beat_at = -math.inf

    def beat(self, now: float) -> None:
        """The heartbeat was written."""
        self._beat_at = now

    def stand_by(self, now: float) -> None:
        """This daemon leads no more; the leader gets a whole lease time to show that it lives."""
        self.generation = 0
        self.forget_silence(now)

    def forget_silence(self, now: float) -> None:
        """After an outage of the file system the leader's silence proves nothing; it is timed anew."""
        self._seen, self._looked_at, self.silent_s = None, now, 0.0
