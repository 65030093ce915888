"""The daemon: one leader schedules all jobs of a shared directory; other daemons stand by to take over.

The daemon's loop waits for no job and no plan. It writes the leader's heartbeat (`leader.py`), and starts the polls of
jobs that are due (`served_jobs.py`); the polls run in threads.
"""

import logging
import math
import os
import socket
import time
from collections.abc import Callable

from pfo_fs.coordination.coordinator import Coordinator, LogOnce
from pfo_fs.coordination.job_folders import JobFolders
from pfo_fs.coordination.leader import Leader, Leadership
from pfo_fs.coordination.policy_start import MakePolicy, PolicyCall
from pfo_fs.coordination.served_jobs import ServedJobs
from pfo_fs.coordination.site_policy import SitePolicy, read_site_policy
from pfo_fs.errors import RecordError, StoreError
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, OffSwitch, SharedDirectory, SwitchedOff, Watcher, is_local

log = logging.getLogger("pfo_fs.coordination.daemon")

_AFTER_OUTAGE_S = 1.0  # after an error of the directory, the loop waits for this time
_LEAST_WAIT_S = 0.005
"""The loop waits at least this time, in s, so that it handles the registrations of many ranks together."""
_READ_RULES_EVERY_S = 1.0
"""After this time, in s, the daemon lists `off/` (for `pfo-fs off`) and reads `site.yaml` again."""


class Daemon:
    """Schedules every job of a shared directory while it leads."""

    def __init__(
        self,
        files: Files,
        settings: PFOSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        make_policy: MakePolicy = PolicyCall.make,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._make_policy = make_policy
        self._local = is_local(files.root)
        self._interval_s = settings.poll_interval or (0.25 if self._local else 1.0)
        self._shared = SharedDirectory(files, f"daemon@{socket.gethostname()}:{os.getpid()}")
        self._watcher = Watcher(files.root, "jobs", settings.watch)
        scheduler = settings.scheduler.rpartition(":")[2]
        self._leader = Leader(self._shared, settings.lease_timeout, scheduler, self._interval_s, monotonic)
        self._jobs: ServedJobs | None = None
        self._served: Leadership | None = None  # the leadership for which `_jobs` was made
        self._rules, self._rules_read = (SitePolicy(), SwitchedOff()), -math.inf
        self._log = LogOnce(log, monotonic)
        self._stopped = False

    @property
    def leads(self) -> bool:
        """Whether this daemon was the leader when it last looked; another daemon may have taken over since."""
        return self._leader.leadership is not None

    @property
    def busy(self) -> bool:
        """Whether a poll is still running in a thread of this daemon."""
        return self._jobs is not None and self._jobs.busy

    def stop(self) -> None:
        """Ends `run` soon; may be called from a signal handler or another thread."""
        self._stopped = True
        self._watcher.wake()

    def run(self) -> None:
        """Leads, or stands by, until `stop`."""
        how = "events and polling" if self._watcher.wants_events else "polling"
        policy = self._settings.scheduler
        log.info("watching %s (%s); scheduler %s unless a job names one", self._shared.files.root, how, policy)
        made_folders = False
        try:
            while not self._stopped:
                try:
                    if not made_folders:
                        self._shared.make_folders()
                        made_folders = True
                    wait_s = self._do_what_is_due()
                except (StoreError, RecordError) as error:
                    self._log.log(logging.WARNING, f"{error.args[-1]}; the daemon tries again until this succeeds")
                    self._leader.forget_silence()
                    if self._jobs is not None:
                        self._jobs.restart_timers()
                    wait_s = _AFTER_OUTAGE_S
                if not self._stopped:
                    changed = self._watcher.wait(wait_s)
                    if changed and self._jobs is not None:
                        self._jobs.list_soon()
        finally:
            self._resign()

    def _do_what_is_due(self) -> float:
        """Does what is due; returns the seconds until something is due again."""
        self._leader.poll()
        self._read_rules()  # so that a mistake in `site.yaml` is logged before a job comes
        leadership = self._leader.leadership
        if leadership is not self._served:
            self._serve(leadership)
        if self._jobs is None:
            return min(0.5, self._settings.lease_timeout / 4)
        self._watcher.start()
        wait_s = min(self._jobs.serve(), self._leader.next_look_at - self._monotonic())
        return max(_LEAST_WAIT_S, wait_s)

    def _serve(self, leadership: Leadership | None) -> None:
        """Stops serving the jobs for the earlier leadership, and starts to serve them for this one."""
        if self._jobs is not None:
            self._jobs.close()
            self._watcher.stop()
        self._jobs, self._served = None, leadership
        if leadership is None:
            return

        def make(job_id: str) -> Coordinator:
            return Coordinator(
                self._shared.job(job_id),
                self._settings,
                kind="daemon",
                generation=leadership.generation,
                # In this time a schedule is written, and each helper polls (every 2 s on network file systems).
                lead_s=1.0 if self._local else 5.0,
                remote=not self._local,
                still_leads=leadership.holds,
                site=lambda: self._read_rules()[0],
                switch=lambda: self._read_rules()[1],
                monotonic=self._monotonic,
                make_policy=self._make_policy,
            )

        self._jobs = ServedJobs(
            JobFolders(self._shared, make, self._settings.max_job_idle_time, self._monotonic),
            max_idle_s=self._settings.max_job_idle_time,
            interval_s=self._interval_s,
            wake=self._watcher.wake,
            monotonic=self._monotonic,
        )

    def _read_rules(self) -> tuple[SitePolicy, SwitchedOff]:
        """Returns what `site.yaml` allows, and which jobs are switched off; any thread may call it."""
        now = self._monotonic()
        if now - self._rules_read >= _READ_RULES_EVERY_S:
            site = read_site_policy(self._shared, self._rules[0])
            self._rules, self._rules_read = (site, OffSwitch(self._shared.files).read()), now
            if site.problem:
                self._log.log(logging.WARNING, site.warning)
        return self._rules

    def _resign(self) -> None:
        self._watcher.stop()
        try:
            self._leader.resign()
        except (StoreError, RecordError) as error:
            log.warning("this daemon stops, and a standby takes over only after the lease: %s", error.args[-1])
        if self._jobs is not None:
            self._jobs.close()
        log.info("stopped")
