"""Which daemon leads.

A daemon becomes the leader by claiming the next generation, which only one daemon can claim. Every `current.json` has
the generation of its writer, and ranks ignore older generations, so two daemons that both lead do no harm. The leader
holds a lease: it counts as alive for `lease_s` after each change of its counter. The observer's own clock times that,
since clocks of hosts are never compared. A replaced leader that was only slow steps down, which costs nothing.
"""

import logging
import math
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pfo_fs
from pfo_fs.errors import StoreError
from pfo_fs.store import SharedDirectory, bodies

LONGEST_BEAT_S = 1.0
"""The leader's record is written at least this often, so that `pfo-fs status` sees a dead daemon soon."""

log = logging.getLogger(__name__)


@dataclass
class Leadership:
    """One period in which this daemon leads. Coordinators check `holds` before they write.

    Once it has ended, it never holds again. If the same daemon leads again later, that is another `Leadership`: a
    thread of the earlier one may still be planning then, and must not write.
    """

    generation: int
    newest_generation: Callable[[], int]
    ended: bool = False

    def holds(self) -> bool:
        """Returns whether this daemon still leads in this generation."""
        return not self.ended and self.newest_generation() <= self.generation and not self.ended


@dataclass
class Leader:
    """This daemon's part in choosing a leader.

    `scheduler` and `interval_s` (at which the daemon polls the directory) are for its record. `leadership` is the
    current one; None while this daemon stands by.
    """

    shared: SharedDirectory
    lease_s: float
    scheduler: str
    interval_s: float
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self.leadership: Leadership | None = None
        about = {"host": socket.gethostname(), "pid": os.getpid(), "version": pfo_fs.__version__}
        about |= {"scheduler": self.scheduler, "interval_s": self.interval_s}
        self._record = bodies.DaemonBody.model_validate({"generation": 0, "counter": 0, **about})
        self._noted_leader = 0
        self._beat_at = -math.inf
        self.forget_silence()

    def forget_silence(self) -> None:
        """Restarts the timing of the leader's silence: during an outage of the file system no heartbeat is seen."""
        self._seen: tuple[int, int, int] | None = None  # newest generation, and the leader's generation and counter
        self._looked_at, self._silent_s = self.monotonic(), 0.0

    @property
    def next_look_at(self) -> float:
        """When `poll` is due again, in monotonic s; minus infinity while this daemon stands by."""
        return self._beat_at + min(LONGEST_BEAT_S, self.lease_s / 3) if self.leadership is not None else -math.inf

    def poll(self) -> None:
        """Does what is due: claims, writes the heartbeat, or steps down."""
        now = self.monotonic()
        if now < self.next_look_at:
            return
        newest, next_generation = self.shared.leaders.poll()
        if self.leadership is None:
            leader = self.shared.read_daemon()
            may_claim = self._may_claim(newest, leader, now)
            self._note(leader)
            if may_claim:
                self._claim(newest, next_generation)
        elif newest > self.leadership.generation:
            mine = self.leadership.generation
            log.warning("generation %d leads now; this daemon (generation %d) stands by", newest, mine)
            self.step_down()
        else:
            self._write(self.leadership.generation, stopped=False)
            self._beat_at = now

    def _may_claim(self, newest: int, leader: bodies.DaemonBody | None, now: float) -> bool:
        """Returns whether no daemon leads: there was no leader yet, or the last one has resigned or let the lease end.

        Each gap between two polls counts at most a third of the lease, so that a standby that was itself suspended
        needs several polls before it considers the leader dead.
        """
        seen = (newest, leader.generation if leader else -1, leader.counter if leader else -1)
        gap_s, self._looked_at = now - self._looked_at, now
        self._silent_s = self._silent_s + min(gap_s, self.lease_s / 3) if seen == self._seen else 0.0
        self._seen = seen
        resigned = leader is not None and leader.stopped and leader.generation == newest
        return resigned or (newest == 0 and leader is None) or self._silent_s >= self.lease_s

    def _claim(self, newest: int, generation: int) -> None:
        if self._silent_s >= self.lease_s:
            log.warning("the leading daemon (generation %d) has been silent for %.1f s", newest, self._silent_s)
        claim = bodies.LeaderBody(
            generation=generation, nonce=secrets.token_hex(8), host=self._record.host, pid=os.getpid()
        )
        if not self.shared.leaders.claim(claim):
            self.forget_silence()  # another daemon was faster
            return
        # From here on this daemon leads, even if the next call fails: the claim is in the directory.
        self._beat_at = -math.inf
        self.leadership = Leadership(generation, lambda: self.shared.leaders.poll()[0])
        log.info("leading, generation %d", generation)
        with suppress(StoreError):
            self.shared.remove_stale_temporaries()

    def _note(self, leader: bodies.DaemonBody | None) -> None:
        """Logs once which daemon leads, and whether that daemon schedules with another policy."""
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

    def _write(self, generation: int, *, stopped: bool) -> None:
        now = {"generation": generation, "counter": self._record.counter + 1, "stopped": stopped}
        self._record = self._record.model_copy(update=now)
        self.shared.write(self._record)

    def step_down(self) -> None:
        """Ends the leadership without notifying the standby daemons; another leader has a whole lease to show life."""
        if self.leadership is not None:
            self.leadership.ended = True
        self.leadership = None
        self.forget_silence()

    def resign(self) -> None:
        """Ends the leadership and notifies standby daemons, so that one of them takes over at once.

        Raises:
            StoreError: The record could not be written; standby daemons wait until the lease ends.
        """
        try:
            if self.leadership is not None and self.leadership.holds():
                self.leadership.ended = True
                self._write(self.leadership.generation, stopped=True)
        finally:
            self.step_down()
