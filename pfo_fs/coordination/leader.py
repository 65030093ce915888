"""Which daemon leads: the rules (`LeaderLease`, without file-system calls), and what carries them out (`Leader`).

A daemon becomes the leader by claiming the next generation, which only one can. Every `current.json` has the generation
of its writer and ranks ignore older ones, so two daemons that both lead do no harm. The leader holds a lease: it counts
as alive for `lease_s` after each change of its counter, timed by the observer's own clock, since clocks of hosts are
never compared. A leader that was only slow steps down, which costs nothing.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import pfo_fs
from pfo_fs.errors import StoreError
from pfo_fs.store import SharedDirectory, bodies

LONGEST_BEAT_S = 1.0
"""The leader's record is written at least this often, so that `pfo-fs status` sees a dead daemon soon."""

Step = Literal["wait", "claim", "beat", "step down"]


class LeaderLease:
    """One daemon's view of the leader, and what this daemon should do next.

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

    def next_step(self, now: float, newest: int, leader: bodies.DaemonBody | None) -> Step:
        """Returns what to do now.

        Args:
            newest: The newest generation that a daemon has claimed; 0 for none.
            leader: The content of `daemon.json`; None if it is missing or damaged.

        Returns:
            `wait`: nothing. `claim`: claim the next generation. `beat`: write the heartbeat. `step down`: another
            daemon leads.
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
        return "wait" if self.silent_s < self._lease_s else "claim"

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


log = logging.getLogger(__name__)


@dataclass
class Leadership:
    """One period in which this daemon leads. Coordinators check `holds` before they write.

    Once it has ended, it never holds again. If the same daemon leads again later, that is another `Leadership`: a
    thread of the earlier one may still be planning then, and must not write.
    """

    generation: int
    newest_generation: Callable[[], int]

    def __post_init__(self) -> None:
        self._ended = False

    def end(self) -> None:
        """Makes `holds` return False from now on."""
        self._ended = True

    def holds(self) -> bool:
        """Returns whether this daemon still leads in this generation.

        Raises:
            StoreError: The shared directory does not answer.
        """
        return not self._ended and self.newest_generation() <= self.generation and not self._ended


@dataclass
class Leader:
    """This daemon's part in choosing a leader.

    `scheduler` and `interval_s`, at which it polls the directory, are for its record. `leadership` is the current one;
    None while this daemon stands by.
    """

    shared: SharedDirectory
    lease_s: float
    scheduler: str
    interval_s: float
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self.leadership: Leadership | None = None
        self._host = socket.gethostname()
        self._lease = LeaderLease(self.lease_s, self.monotonic())
        self._counter = 0
        self._noted_leader = 0

    @property
    def next_look_at(self) -> float:
        """When `look` is due again, in monotonic s; minus infinity while this daemon stands by."""
        return self._lease.next_look_at

    def poll(self) -> None:
        """Does what is due: claims, writes the heartbeat, or steps down.

        Raises:
            StoreError: The shared directory does not answer. The next call tries again.
        """
        now = self.monotonic()
        if now < self._lease.next_look_at:
            return
        newest, next_generation = self.shared.leaders.poll()
        leader = self.shared.read_daemon() if self.leadership is None else None
        step = self._lease.next_step(now, newest, leader)
        if self.leadership is None:
            self._note(leader)
        if step == "claim":
            self._claim(newest, next_generation, now)
        elif step == "step down":
            log.warning(
                "generation %d leads now; this daemon (generation %d) stands by", newest, self._lease.generation
            )
            self.step_down()
        elif step == "beat":
            self._write(stopped=False)
            self._lease.beat(now)

    def _claim(self, newest: int, generation: int, now: float) -> None:
        silent_s = self._lease.silent_s
        if silent_s >= self.lease_s:
            log.warning("the leading daemon (generation %d) has been silent for %.1f s", newest, silent_s)
        claim = bodies.LeaderBody(generation=generation, nonce=secrets.token_hex(8), host=self._host, pid=os.getpid())
        if not self.shared.leaders.claim(claim):
            self._lease.forget_silence(now)  # another daemon was faster
            return
        # From here on this daemon leads, even if the next call fails: the claim is in the directory.
        self._lease.claimed(generation)
        self.leadership = Leadership(generation, lambda: self.shared.leaders.poll()[0])
        log.info("leading, generation %d", generation)
        with suppress(StoreError):
            self.shared.remove_stale_temporaries()

    def _note(self, leader: bodies.DaemonBody | None) -> None:
        """Logs once which daemon this one stands by for, and whether that one schedules with another policy."""
        if leader is None or leader.stopped or self._noted_leader == leader.generation:
            return
        self._noted_leader = leader.generation
        log.info("standing by for the daemon on %r (process %d)", leader.host, leader.pid)
        if leader.scheduler != self.scheduler:
            log.warning(
                "that daemon schedules with %r, this one would with %r: start both with the same scheduler",
                leader.scheduler,
                self.scheduler,
            )

    def _write(self, *, stopped: bool) -> None:
        self._counter += 1
        self.shared.write(
            bodies.DaemonBody(
                generation=self._lease.generation,
                counter=self._counter,
                host=self._host,
                pid=os.getpid(),
                version=pfo_fs.__version__,
                scheduler=self.scheduler,
                interval_s=self.interval_s,
                stopped=stopped,
            )
        )

    def forget_silence(self) -> None:
        """Restarts the timing of the leader's silence, after an outage of the file system."""
        self._lease.forget_silence(self.monotonic())

    def step_down(self) -> None:
        """Ends the leadership without notifying the standby daemons."""
        if self.leadership is not None:
            self.leadership.end()
        self.leadership = None
        self._lease.stand_by(self.monotonic())

    def resign(self) -> None:
        """Ends the leadership and notifies standby daemons, so that one of them takes over at once.

        Raises:
            StoreError: The record could not be written; standby daemons wait until the lease ends.
        """
        try:
            if self.leadership is not None and self.leadership.holds():
                self.leadership.end()
                self._write(stopped=True)
        finally:
            self.step_down()
