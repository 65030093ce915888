"""The daemon: one leader schedules all jobs of a shared directory; others stand by.

Leading is a hint, fenced by data: a leader claims a generation by exclusive creation, every `current.json` carries it,
and ranks ignore older ones, so that two daemons that both think they lead do no harm. Whether the leader lives is told
by a counter that moves, timed by the watcher's own clock; a lock only makes the takeover quicker where locks work.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from filelock import BaseFileLock

import pfo_fs
from pfo_fs.coordination import Coordinator
from pfo_fs.errors import RecordError, StoreError
from pfo_fs.scheduler import check_scheduler_args, load_scheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, SharedDirectory, Watcher, bodies, is_local

log = logging.getLogger("pfo_fs.coordination.daemon")

_SILENT_LOCK_HOLDER = 3
"""How many lease timeouts a silent leader gets while its lock is still held."""
_LISTING_EVERY_S = 1.0
_AFTER_FAILURE_S = 5.0
_PATIENCE_S = 0.05
"""So long a job may keep all others waiting; what takes longer goes on in its thread."""


class _Look(threading.Thread):
    """One look of a coordinator that may plan for seconds or minutes; ends with the process, whatever it is doing."""

    def __init__(self, coordinator: Coordinator, done: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._coordinator = coordinator
        self._done = done
        self.is_left_alone = False
        self.delay_s = _AFTER_FAILURE_S
        self.start()

    def run(self) -> None:
        """Looks."""
        try:
            self.delay_s = self._coordinator.poll()
        finally:
            if self.is_left_alone:
                self._done()


class Daemon:
    """Schedules every job of a shared directory while it leads.

    Args:
        files: The shared directory.
        settings: What to schedule with.

    Raises:
        ConfigError: The scheduler of the settings cannot be had, or its arguments do not fit.
    """

    def __init__(self, files: Files, settings: PFOSettings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        check_scheduler_args(load_scheduler(settings.scheduler), settings.scheduler_args)
        self._settings = settings
        self._monotonic = monotonic
        self._host = socket.gethostname()
        self._shared = SharedDirectory(files, f"daemon@{self._host}:{os.getpid()}")
        self._files = files
        local = is_local(files.root)
        self._interval_s = settings.poll_interval or (0.25 if local else 1.0)
        # Until a helper surely looks again (2 s apart on network file systems), and a little for writing.
        self._lead_s = 1.0 if local else 5.0
        self._watcher = Watcher(files.root, "jobs", settings.watch)
        self._stopped = False
        self._lock: BaseFileLock | None = None
        self.generation = 0
        self._counter = 0
        self._stands_by_for = 0
        self._jobs: dict[str, Coordinator] = {}
        self._due: dict[str, float] = {}
        self._looks: dict[str, _Look] = {}
        self._over: dict[str, float] = {}  # jobs that have ended, and when that was seen
        self._problem = ""
        self._listed = -math.inf
        self._beat = -math.inf
        self._seen: tuple[tuple[int, int] | None, float] = (None, monotonic())

    @property
    def leads(self) -> bool:
        """Whether this daemon is the leader, as far as it knows."""
        return self.generation > 0

    def stop(self) -> None:
        """Ends `run` soon; may be called from a signal handler or another thread."""
        self._stopped = True
        self._watcher.wake()

    def run(self) -> None:
        """Leads, or stands by, until `stop`."""
        while not self._stopped:
            try:
                self._shared.make_folders()
                break
            except StoreError as error:
                if str(error.args[-1]) != self._problem:
                    self._problem = str(error.args[-1])
                    log.warning("%s; trying again until this user can write there", self._problem)
                self._watcher.wait(1.0)
        log.info(
            "watching %s (%s)", self._files.root, "events and polling" if is_local(self._files.root) else "polling"
        )
        try:
            while not self._stopped:
                try:
                    wait_s = self._turn()
                except (StoreError, RecordError) as error:
                    if str(error.args[-1]) != self._problem:
                        self._problem = str(error.args[-1])
                        log.warning("%s", self._problem)
                    self._restart_timers()
                    wait_s = 1.0
                else:
                    self._problem = ""
                if not self._stopped:
                    self._heed(self._watcher.wait(wait_s))
        finally:
            self._resign()

    def _heed(self, hints: set[str]) -> None:
        """Makes the jobs due under whose folders something may have changed."""
        for job_id in hints:
            if job_id in self._jobs:
                self._due[job_id] = -math.inf
            elif job_id not in self._over:
                self._listed = -math.inf

    def _turn(self) -> float:
        """One look at everything that is due; returns the seconds until the next."""
        now = self._monotonic()
        if not self.leads:
            if not self._take_over(now):
                return min(0.5, self._settings.lease_timeout / 4)
            self._watcher.start()
        if now - self._beat >= min(1.0, self._settings.lease_timeout / 3) and not self._heartbeat(now):
            return 0.0
        if now - self._listed >= _LISTING_EVERY_S:
            self._listed = now
            self._find_jobs()
        for job_id, due in list(self._due.items()):
            if now >= due and not self._stopped:
                self._serve(job_id)
        soonest = min(self._due.values(), default=now + _LISTING_EVERY_S)
        wait_s = min(soonest, self._listed + _LISTING_EVERY_S, self._beat + 1.0) - self._monotonic()
        # A burst of registrations is looked at in lots, not one by one.
        return max(0.005, wait_s)

    # ---- leading

    def _take_over(self, now: float) -> bool:
        """Becomes the leader if there is none, or if the one there is has been silent for too long."""
        newest, generation = self._shared.last_and_next_generation()
        told = self._shared.read_daemon()
        state = None if told is None else (told.generation, told.counter)
        key = (newest, state[1] if state else -1)
        if key != self._seen[0]:
            self._seen = (key, now)
        self._note_leader(told)
        resigned = told is not None and told.stopped and told.generation == newest
        never_led = newest == 0 and told is None
        if not (resigned or never_led):
            silent_s = now - self._seen[1]
            if silent_s < self._settings.lease_timeout:
                return False
            self._lock = self._lock or self._shared.try_leader_lock()
            if self._lock is None and silent_s < _SILENT_LOCK_HOLDER * self._settings.lease_timeout:
                return False
            log.warning("the leading daemon (generation %d) has been silent for %.1f s", newest, silent_s)
        claim = bodies.LeaderBody(generation=generation, nonce=secrets.token_hex(8), host=self._host, pid=os.getpid())
        if not self._shared.claim_generation(claim):
            self._release_lock()
            return False
        self.generation = generation
        self._lock = self._lock or self._shared.try_leader_lock()
        self._jobs.clear()
        self._due.clear()
        self._looks.clear()
        self._over.clear()
        self._listed = -math.inf
        log.info("leading, generation %d", self.generation)
        self._say(stopped=False)
        self._beat = now
        with suppress(StoreError):
            self._shared.remove_stale_temporaries()
        return True

    def _note_leader(self, told: bodies.DaemonBody | None) -> None:
        """Says once whom this daemon stands by for, and if that one schedules otherwise."""
        if told is None or told.stopped or self._stands_by_for == told.generation:
            return
        self._stands_by_for = told.generation
        log.info("standing by for the daemon on %s (process %d)", told.host, told.pid)
        ours = self._settings.scheduler.rpartition(":")[2]
        if told.scheduler != ours:
            log.warning("it schedules with %s, this one would with %s: give both the same", told.scheduler, ours)

    def _heartbeat(self, now: float) -> bool:
        """Says that this daemon lives, unless another one has taken over; False then."""
        newest = self._shared.last_generation()
        if newest > self.generation:
            log.warning("generation %d leads now; standing by", newest)
            self._stand_by(now)
            return False
        # Its holder may have been silent when this daemon took over, and have let go of it since.
        self._lock = self._lock or self._shared.try_leader_lock()
        self._say(stopped=False)
        self._beat = now
        return True

    def _say(self, *, stopped: bool) -> None:
        self._counter += 1
        self._shared.write_daemon(
            bodies.DaemonBody(
                generation=self.generation,
                counter=self._counter,
                host=self._host,
                pid=os.getpid(),
                version=pfo_fs.__version__,
                scheduler=self._settings.scheduler.rpartition(":")[2],
                interval_s=self._interval_s,
                stopped=stopped,
            )
        )

    def _stand_by(self, now: float) -> None:
        self.generation = 0
        self._jobs.clear()
        self._due.clear()
        self._looks.clear()
        self._watcher.stop()
        self._release_lock()
        self._seen = (None, now)

    def _release_lock(self) -> None:
        if self._lock is not None:
            try:
                self._lock.release()
            except OSError as error:
                log.debug("the lock was lost: %s", error)
            self._lock = None

    def _resign(self) -> None:
        self._watcher.stop()
        if self.leads:
            try:
                if self._shared.last_generation() == self.generation:
                    self._say(stopped=True)
            except (StoreError, RecordError) as error:
                log.warning("could not say goodbye: %s", error.args[-1])
        self._release_lock()
        log.info("stopped")

    # ---- jobs

    def _find_jobs(self) -> None:
        for job_id in self._shared.job_ids(known=self._jobs.keys() | self._over.keys()):
            self._jobs[job_id] = Coordinator(
                self._shared.job(job_id),
                self._settings,
                kind="daemon",
                generation=self.generation,
                lead_s=self._lead_s,
                still_leads=lambda: self._shared.last_generation() == self.generation,
                monotonic=self._monotonic,
            )
            self._due[job_id] = 0.0
        now = self._monotonic()
        for job_id, since in list(self._over.items()):
            if now - since > self._settings.max_job_idle_time:
                del self._over[job_id]
                self._shared.archive(job_id)

    def _serve(self, job_id: str) -> None:
        coordinator = self._jobs[job_id]
        delay_s = self._look_at(job_id, coordinator)
        now = self._monotonic()
        if delay_s is None:
            self._due[job_id] = now + _LISTING_EVERY_S  # its thread makes it due sooner
            return
        if coordinator.state == "ended":
            self._forget(job_id)
            return
        if coordinator.is_mine and not self._watcher.uses_events:
            delay_s = min(delay_s, self._interval_s)
        self._due[job_id] = now + delay_s
        if coordinator.is_quiet:
            self._watcher.leave(job_id)
        else:
            self._watcher.follow(job_id)
        idle_s = now - coordinator.last_alive
        if idle_s > self._settings.max_job_idle_time:
            log.warning("job %s: no sign of life for %.0f s; ended and archived", job_id, idle_s)
            coordinator.end("idle", f"no sign of life for {idle_s:.0f} s")
            self._forget(job_id)
            self._over[job_id] = -math.inf  # archived with the next listing

    def _look_at(self, job_id: str, coordinator: Coordinator) -> float | None:
        """Lets a job's coordinator look; None if that takes longer than the other jobs and the heartbeat can wait."""
        look = self._looks.get(job_id)
        if look is None:
            if not coordinator.may_be_slow:
                return coordinator.poll()
            look = self._looks[job_id] = _Look(coordinator, lambda: self._watcher.wake(job_id))
        look.join(_PATIENCE_S)
        look.is_left_alone = True
        if look.is_alive():
            return None
        del self._looks[job_id]
        return look.delay_s

    def _forget(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)
        self._looks.pop(job_id, None)
        self._due.pop(job_id, None)
        self._watcher.leave(job_id)
        self._over[job_id] = self._monotonic()

    def _restart_timers(self) -> None:
        """After an outage of the file system nobody's silence means anything."""
        now = self._monotonic()
        self._seen = (None, now)
        for coordinator in self._jobs.values():
            coordinator.last_alive = now
