"""Schedules one job: polls its folder, compares the policy's request with what is published, writes the difference.

All state is in the folder. If a coordinator is killed at any point, a new one, here or on another host, replays the
results in the folder and goes on.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from pfo_fs.coordination.policy_runner import PolicyRunner
from pfo_fs.coordination.policy_start import Kind, MakePolicy, PolicyCall
from pfo_fs.coordination.progress import PollPace, Progress
from pfo_fs.coordination.publication import OnPublish, Publication
from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.coordination.reconciler import Reconciler
from pfo_fs.coordination.site_policy import SitePolicy
from pfo_fs.errors import ConfigError, PlanError, PolicyFailed, PolicyLost, RecordError, StoreError, StoreUnavailable
from pfo_fs.models import RankInfo
from pfo_fs.scheduler import FrequencyScheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, OffSwitch, SwitchedOff, bodies, layout

log = logging.getLogger(__name__)

_SILENCES = ((24 * 3600.0, "a day"), (3600.0, "an hour"), (600.0, "ten minutes"))
"""After training has reported nothing for one of these times, in s, a message says so; the longest first."""
_ANEW_AFTER_S = 3600.0
"""A policy that failed, or met a limit of memory or time, begins anew after this time: the host may have been busy."""
MISSING_AFTER_S = 30.0
"""Ranks that have not registered after this time are named in the status."""
_CHECK_EVERY_S = 2.0
"""Seconds between two checks, of one read each, whether another process has replaced `current.json`."""

GONE_AFTER_S = 3600.0
"""A cause that has not been reported for this time is over: the next report of it is logged again."""
_MOST_CAUSES = 200
"""At most this many causes are kept, the newest ones: memory stays bounded. A forgotten cause is logged again."""

State = Literal["waiting", "running", "broken", "ended"]


@dataclass
class LogOnce:
    """Logs a text the first time that it is reported, and again after it was not reported for `GONE_AFTER_S`."""

    logger: logging.Logger
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._reported: dict[str, float] = {}  # when each text was reported last
        self._lock = threading.Lock()

    def log(self, level: int, text: str) -> None:
        now = self.monotonic()
        with self._lock:
            last = self._reported.pop(text, None)
            self._reported[text] = now
            if len(self._reported) > _MOST_CAUSES:
                del self._reported[next(iter(self._reported))]
        if last is None or now - last > GONE_AFTER_S:
            self.logger.log(level, "%s", text)


@dataclass
class Coordinator:
    """Schedules one job.

    Args:
        generation: The generation of the leading daemon; ranks ignore schedules of an older one. 0 for `local`.
        lead_s: All ranks surely receive a new schedule within this time in s, and it does not start earlier. `PollPace`
            makes the time longer if hosts poll more rarely: because they are many, or because a host says so.
        remote: Whether the directory is on a file system of another host.
        rank_infos: All ranks, if they are not read from the folder.
        on_publish: Called for each schedule with (number, start step, schedules, term), to broadcast it in
            `local` coordination.
        still_leads: Called before a schedule or `current.json` is written: a suspended daemon may have been replaced.
        switch: Returns what is switched off; None: the coordinator reads that itself.

    Attributes:
        state: The state of the job, as `current.json` names it.
        message: Text for the status about a problem; may be empty.
        last_alive: When a process of the job was last seen to do something, in monotonic s.
    """

    folder: JobFolder
    settings: PFOSettings
    _: KW_ONLY
    kind: Kind
    generation: int = 0
    lead_s: float = 1.5
    remote: bool = False
    rank_infos: Sequence[RankInfo] | None = None
    on_publish: OnPublish | None = None
    still_leads: Callable[[], bool] = lambda: True
    site: Callable[[], SitePolicy] = SitePolicy
    switch: Callable[[], SwitchedOff] | None = None
    monotonic: Callable[[], float] = time.monotonic
    make_policy: MakePolicy = PolicyCall.make

    def __post_init__(self) -> None:
        self.first_seen = self.last_alive = self.monotonic()
        self.state: State = "waiting"
        self.message = ""
        self._switch = self.switch or OffSwitch(self.folder.files).read
        self._was_off = False
        self._log = LogOnce(log, self.monotonic)
        self._ranks = RankRegistry(self.folder, self.rank_infos, self.monotonic)
        adapts = self.kind == "daemon" and self.settings.poll_interval is None
        self._pace = PollPace(self.lead_s, remote=self.remote, adapts=adapts, now=self.first_seen)
        self._progress = Progress(self.folder, self._pace, self.first_seen)
        self._publication = Publication(self.folder, self.generation, self._pace, self.on_publish)
        self._job: bodies.JobBody | None = None
        self._mine: bool | None = None  # whether this coordinator schedules the job; None: not known yet
        self._reconciler: Reconciler | None = None  # once it is known that this coordinator schedules the job
        self._anew_at = math.inf
        self._published: bodies.CurrentBody | None = None
        self._checked = -math.inf  # when `current.json` was last read to see whether it is still `_published`
        self._status_text = ""  # as it was logged last

    @property
    def _runner(self) -> PolicyRunner | None:
        return self._reconciler.runner if self._reconciler is not None else None

    @property
    def scheduler(self) -> FrequencyScheduler | None:
        """The policy, once it runs."""
        return self._runner.scheduler if self._runner is not None else None

    @property
    def is_mine(self) -> bool:
        """False once it is known that another process schedules this job."""
        return self._mine is not False

    @property
    def is_calm(self) -> bool:
        """Whether nothing has happened to the job for long, so that it may be polled rarely."""
        return self.state == "running" and self._pace.is_calm(self.monotonic())

    @property
    def lease(self) -> tuple[float, int]:
        """How long ranks may follow the newest schedule without a change of the heartbeat, and the heartbeat."""
        longest_plan_s = self._runner.longest_plan_s if self._runner is not None else 0.0
        return self._publication.lease(
            self.monotonic(), self.settings.straggler_timeout, longest_plan_s, followed=self.scheduler is not None
        )

    # ---- one poll

    def claim(self, names: set[str]) -> bool:
        """Claims the job, if it is free and allowed; returns False if there is no job yet."""
        if self._job is None:
            self._job = self.folder.read_job() if layout.JOB in names else None
        if self._job is not None and self._mine is None:
            claim = self.folder.read(bodies.ClaimBody) if layout.COORDINATOR in names else None
            if claim is None and self._may_claim(self._job):
                claim = self.folder.claim_coordinator(bodies.ClaimBody(kind=self.kind, nonce=secrets.token_hex(8)))
            self._mine = claim is not None and claim.kind == self.kind
        return self._job is not None

    def _may_claim(self, job: bodies.JobBody) -> bool:
        if self.site().daemon_only and job.coordination != "none":
            return self.kind == "daemon"
        return job.coordination in ("auto", self.kind)

    def poll(self) -> float:
        """Polls the job once and does what is due; never raises because of a problem of this job.

        Returns:
            Seconds until the next poll is due, if no file-system event comes first; 0: at once.
        """
        try:
            return self._poll()
        except RecordError as error:
            self._report("broken", str(error))
            return 2.0
        except StoreError as error:
            self._no_answer(error)
            return 1.0
        except (PlanError, ConfigError) as error:
            return self._fail(str(error))
        except PolicyFailed as error:
            self._anew_at = self.monotonic() + _ANEW_AFTER_S
            return self._fail(f"{error} It is tried again in an hour.")
        except PolicyLost as error:
            if self._runner is not None:
                self._runner.lost(str(error))
            return 1.0
        except (Exception, SystemExit) as error:
            # A user's scheduler may raise anything, which must not affect other jobs.
            text = f"the scheduler failed: {type(error).__name__}: {error}"
            if self._runner is None or text != self._runner.failure:
                log.exception("job %s: the scheduler failed", self.folder.job_id)
            return self._fail(text)

    def _fail(self, text: str) -> float:
        """Ends the scheduler; returns s until the next poll: 0 after a new failure, to go to default clocks at once."""
        is_new = self._runner is not None and text != self._runner.failure
        if self._runner is not None:
            self._runner.failure = text
            self._runner.close()
        self._report("broken", text)
        return 0.0 if is_new else 5.0

    def _poll(self) -> float:
        now = self.monotonic()
        names = self.folder.names()
        if not self.claim(names):
            age_s = now - self.first_seen
            return 0.02 if age_s < 1 else 0.2 if age_s < 10 else 5.0
        if layout.JOB not in names:
            # A file that was there is missing: the folder is not seen for a moment, or removed. Either way, wait.
            return 1.0
        if layout.END in names:
            end = self.folder.read(bodies.EndBody)
            if end is not None:
                failure = self._runner.failure if self._runner is not None else ""
                self._report("ended", end.message or failure or end.reason)
                return 60.0
        if not self.is_mine:
            self._look_at_progress(now)
            return 5.0
        if now >= self._anew_at:  # begin as a new coordinator does
            self._reconciler, self._anew_at = None, math.inf
        reconciler = self._begin()
        runner = reconciler.runner
        assert self._job is not None
        self._pace.update(now, self._job.job_info.world_size)
        if not self._all_ranks_known(now):
            return 0.02 if now - self.first_seen < 10 else 0.5
        self._pace.hosts_poll(self._ranks.longest_poll_s)
        self._look_at_progress(now)
        if self._switch().covers(self.folder.job_id):
            self._was_off = True
            self._report("running", "switched off; default clocks until `pfo-fs on`")
            return self._pace.calm_pause_s if self.is_calm else 1.0
        if self._was_off:  # what was being measured is measured again
            self._was_off = False
            reconciler.forget_lost_results()
        if reconciler.reconcile(now, names):
            self._pace.changed(now)
            self._pace.update(now, self._job.job_info.world_size)
            self._publish_status(force=True)
        if reconciler.override.unsettled:
            self._pace.changed(now)
        if runner.failure and not reconciler.override.active:
            self._report("broken", runner.failure)
        else:
            self._report("running", runner.trouble or reconciler.lost_results or self._silence(now))
        if reconciler.override.unsettled:
            return 0.25
        return self._pace.calm_pause_s if self.is_calm else 1.0

    def _begin(self) -> Reconciler:
        """Reads what earlier coordinators of this job have published, once."""
        assert self._job is not None
        if self._reconciler is None:
            with suppress(RecordError):
                before = self.folder.read(bodies.CurrentBody)
                self._pace.took_over(self.monotonic(), before.poll_s if before is not None else 0.0)
            runner = PolicyRunner(
                self.folder, self._job, self.settings, self.kind, self._ranks, self.monotonic, self.make_policy
            )
            self._reconciler = Reconciler(runner, self._progress, self._publication, self.still_leads, self._note)
        return self._reconciler

    def _all_ranks_known(self, now: float) -> bool:
        assert self._job is not None
        job = self._job.job_info
        if self._ranks.poll(job):
            self.last_alive = now
        missing = self._ranks.missing(job)
        if not missing:
            return True
        late = now - self.first_seen >= MISSING_AFTER_S
        text = f"{missing} of {job.world_size} have not registered; scheduling waits for them"
        self._report("waiting", text if late else "")
        return False

    def _look_at_progress(self, now: float) -> None:
        if self._progress.poll(now):
            self.last_alive = now
        self._publication.follow(self._progress)

    def _silence(self, now: float) -> str:
        """Returns a message after a long silence: if all processes of a job are killed, none records its end."""
        silent_s = now - self.last_alive
        words = next((words for least_s, words in _SILENCES if silent_s >= least_s), "")
        return words and f"training has reported no step for {words}: was the job killed?"

    # ---- what is reported

    def _report(self, state: State, message: str) -> None:
        if message and (state, message) != (self.state, self.message):
            self._note(logging.INFO if message in ("finished", "interrupted") else logging.WARNING, message)
        self.state, self.message = state, message
        if self._mine:
            try:
                self._publish_status()
            except (StoreError, RecordError) as error:
                self._no_answer(error)

    def _no_answer(self, error: StoreError | RecordError) -> None:
        what = "the shared directory does not answer: " if isinstance(error, StoreUnavailable) else ""
        self._note(logging.WARNING, f"{what}{error.args[-1]}")

    def _note(self, level: int, text: str) -> None:
        """Logs a text that every poll may report: once, and again if its cause comes back later (`LogOnce`)."""
        self._log.log(level, f"job {self.folder.job_id}: {text}")

    def _publish_status(self, *, force: bool = False) -> None:
        """Writes `current.json` if it differs from what was written last, or if another process has replaced it."""
        (number, start_step, source), (lease_s, heartbeat) = self._publication.announced, self.lease
        request = self._runner.request if self._runner is not None else None
        body = bodies.CurrentBody(
            generation=self._publication.generation,
            number=number,
            start_step=start_step,
            state=self.state,
            message=self.message[:4000],
            yaml_problem=self._reconciler.override.problem[:4000] if self._reconciler is not None else "",
            status_text=request.message[:4000] if request is not None else "",
            converged=request is not None and request.converged,
            source=source,
            lease_s=lease_s,
            heartbeat=heartbeat,
            poll_s=self._pace.poll_s,
        )
        if (body == self._published and not force and self._still_there()) or not self.still_leads():
            return
        if body.status_text != self._status_text:
            self._status_text = body.status_text
            log.info("job %s: %s", self.folder.job_id, body.status_text)
        self.folder.write(body)
        self._published = body

    def _still_there(self) -> bool:
        """Checks every two seconds whether the `current.json` that was published is still there. It may have been
        replaced by an older coordinator that was suspended, or by another user, whose file may name any generation."""
        now = self.monotonic()
        if now - self._checked < _CHECK_EVERY_S:
            return True
        self._checked = now
        try:
            return self.folder.read(bodies.CurrentBody) == self._published
        except StoreUnavailable:
            raise
        except (RecordError, StoreError):  # another user's file, or no record
            return False

    # ---- called by other objects

    def applied(self, number: int, step: int) -> None:
        """Notes that rank 0 follows schedule `number` from `step` on; called at once where rank 0 broadcasts."""
        self._publication.applied(number, step)

    def close(self) -> None:
        """Ends the process of the job's scheduler, if it has one; may be called during a poll, which then fails."""
        if self._runner is not None:
            self._runner.close()

    def end(self, reason: Literal["finished", "crashed", "idle"], message: str = "") -> None:
        """Writes that the job has ended."""
        self.folder.write(bodies.EndBody(reason=reason, message=message))
