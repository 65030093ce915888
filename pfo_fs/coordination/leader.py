"""Carries out what `LeaderLease` decides: claims generations, writes heartbeats, acquires and releases the lock."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pfo_fs
from pfo_fs.coordination.leader_lease import LeaderLease
from pfo_fs.errors import StoreError
from pfo_fs.store import CourtesyLock, SharedDirectory, bodies

log = logging.getLogger(__name__)


@dataclass
class Leadership:
    """One period in which this daemon leads. Coordinators check `holds` before they write.

    Once it has ended, it never holds again. If the same daemon leads again later, that is another `Leadership`: a
    thread of the earlier one may still be planning then, and must not write.

    Args:
        generation: The claimed generation.
        newest_generation: Reads the newest generation from the shared directory.
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

    Args:
        lease_s: A standby considers the leader dead after this many seconds of silence.
        scheduler: The name of this daemon's scheduler, for its record.
        interval_s: Seconds between two polls of the directory by this daemon, for its record.

    Attributes:
        leadership: The current one; None while this daemon stands by.
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
        self._lock: CourtesyLock | None = None
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
        step = self._lease.next_step(now, newest, leader, has_lock=self._lock is not None)
        if self.leadership is None:
            self._note(leader)
        if step == "lock" and self._take_lock():
            step = "claim"
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
            self._take_lock()  # a silent leader that this daemon replaced may have released it since

    def _claim(self, newest: int, generation: int, now: float) -> None:
        silent_s = self._lease.silent_s
        if silent_s >= self.lease_s:
            log.warning("the leading daemon (generation %d) has been silent for %.1f s", newest, silent_s)
        claim = bodies.LeaderBody(generation=generation, nonce=secrets.token_hex(8), host=self._host, pid=os.getpid())
        if not self.shared.leaders.claim(claim):
            self._release_lock()
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
        self._release_lock()

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

    def _take_lock(self) -> bool:
        self._lock = self._lock or self.shared.try_leader_lock()
        return self._lock is not None

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
