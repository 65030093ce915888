"""Schedules one job: reads its folder, compares what is wanted with what is there, and writes the difference.

All state is in the folder. A coordinator that is killed at any point and made anew, here or on another host, replays
`observe` over the results that are there and carries on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pfo_fs.coordination.iteration_times import IterationTimeReader
from pfo_fs.coordination.profile_cache import ProfileCache
from pfo_fs.coordination.progress import Progress
from pfo_fs.coordination.rank_registry import RankRegistry, list_ranks
from pfo_fs.coordination.results import Results
from pfo_fs.coordination.status_publisher import StatusPublisher
from pfo_fs.coordination.yaml_override import YamlOverride
from pfo_fs.errors import ConfigError, PlanError, RecordError, StoreError
from pfo_fs.models import FrequencySchedule, InstructionOrder, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.schedule_yaml.parse import ScheduleDocument
from pfo_fs.scheduler import FrequencyScheduler, check_scheduler_args, check_schedules, is_builtin, load_scheduler
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, bodies, dump

log = logging.getLogger(__name__)

MISSING_AFTER_S = 30.0
"""After this long without them, ranks that have not registered are named."""

_WORDS_PER_HOLD = 4
_LONGEST_PLAN_S = 300.0
"""A scheduler that thinks for longer than this may cost its job a break in a straggler's pace."""
_MOST_TRIES = 2
"""How often a schedule is measured again of which results were lost."""
_PROGRESS_WITHIN_S = 10.0
_ORDERS_WITHIN_S = 90.0
_MEASURED_WITHIN_S = 30.0
"""Beyond its iterations: how long the results of a window, and what comes of them, may take."""

State = Literal["waiting", "running", "broken", "ended"]


class Coordinator:
    """Schedules one job.

    Args:
        folder: The job.
        settings: What to schedule with, where the job does not say.
        kind: `daemon`, or `local` for rank 0 of the job itself.
        generation: Which daemon leads; schedules of an older one are ignored by the ranks. 0 for `local`.
        lead_s: How long all ranks surely need to learn of a new schedule; it starts no sooner.
        rank_infos: All ranks, where they are known otherwise than through the folder.
        on_publish: Called with (number, schedules, steps that it holds at most) for each schedule: the broadcaster of
            `local` coordination.
        still_leads: Asked before anything is written; a daemon that slept may have been replaced.
        monotonic: The clock.
    """

    def __init__(
        self,
        folder: JobFolder,
        settings: PFOSettings,
        *,
        kind: Literal["daemon", "local"],
        generation: int = 0,
        lead_s: float = 1.5,
        rank_infos: Sequence[RankInfo] | None = None,
        on_publish: Callable[[int, list[FrequencySchedule], int], None] | None = None,
        still_leads: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.state: State = "waiting"
        self.message = ""
        self._settings = settings
        self._kind = kind
        self._generation = generation
        self._lead_s = lead_s
        self._on_publish = on_publish
        self._still_leads = still_leads
        self._monotonic = monotonic

        self._job: bodies.JobBody | None = None
        self._mine: bool | None = None
        self._status_publisher = StatusPublisher(folder, still_leads, monotonic)
        self._rank_registry = RankRegistry(folder, rank_infos)
        self._results = Results(folder, self._rank_registry)
        self._scheduler: FrequencyScheduler | None = None
        self._scheduler_failed = ""
        self._longest_plan_s = 0.0
        self._index = 0  # how many lists of schedules the scheduler has yielded before the one in force
        self._made: dict[int, bodies.Source] = {}  # numbers that the scheduler made, ascending
        self._observed = -1  # the newest of them whose results the scheduler has observed
        self._observed_in: PlanInputs | None = None
        self._complete_since = math.inf  # when its results were all there
        self._tries = 0  # how often they were lost, and measured again
        self._lost_results = ""
        self._policy = ""  # the scheduler and its arguments, as schedules name them
        self._published: list[FrequencySchedule] | None = None
        self._profile_cache = ProfileCache(folder)
        self._iteration_times = IterationTimeReader(folder, monotonic)
        self._model: dict[str, float] = {}
        self._source: bodies.Source | None = None  # of the newest committed schedule
        self._number = -1
        self._start_step = 0
        self._steps = 0  # for how many steps it holds at most
        self._in_force_step: int | None = None  # since when rank 0 follows the newest schedule, once it does
        self._override: YamlOverride | None = None
        self._published_at = -math.inf
        self.first_seen = self.last_alive = monotonic()
        self._progress = Progress(folder, lead_s, self.first_seen)

    @property
    def scheduler(self) -> FrequencyScheduler | None:
        """The policy, once it runs."""
        return self._scheduler

    @property
    def may_be_slow(self) -> bool:
        """Whether the next `poll` may take seconds: the scheduler plans, or is about to be started."""
        if self._scheduler is None:
            return self.is_mine and not self._scheduler_failed
        return self._scheduler.plans

    @property
    def is_mine(self) -> bool:
        """False once somebody else turned out to schedule this job."""
        return self._mine is not False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is awaited from the ranks, so that the next look need not be any sooner for what they do."""
        if self.state == "waiting":
            return not self.is_mine
        if self._scheduler is None or self._scheduler.done:
            return True
        return not self._made or (self._observed == max(self._made) and not self._scheduler.watches_iteration_times)

    @property
    def hold(self) -> tuple[float, int]:
        """How long the schedule may outlive this coordinator, in s, and a number that changes while it lives.

        The pace of a straggler must not stay with nobody there to see that the straggler is gone. (0.0, 0) for other
        schedules, which may stay for ever.
        """
        plan_inputs = self._source.plan_inputs if self._source is not None else PlanInputs()
        if not plan_inputs.slow_pipelines and plan_inputs.straggler is None:
            return 0.0, 0
        lease_s = self._settings.straggler_timeout + min(self._longest_plan_s, _LONGEST_PLAN_S)
        if self._scheduler is None:
            return lease_s, 0  # nobody follows anything here
        return lease_s, 1 + int(_WORDS_PER_HOLD * self._monotonic() / lease_s)

    def poll(self) -> float:
        """Looks once and does what there is to do; never raises for what is wrong with this job.

        Returns:
            Seconds until another look is worth it even if nothing is heard; 0 if at once.
        """
        try:
            delay = self._poll()
        except RecordError as error:
            self._report_if_possible("broken", str(error))
            delay = 2.0
        except StoreError as error:
            self._note_store_problem(error)
            delay = 1.0
        except (PlanError, ConfigError) as error:
            self._scheduler_failed = str(error)
            self._report_if_possible("broken", str(error))
            delay = 5.0
        except Exception as error:
            # A user's scheduler may raise anything; it must not take the other jobs along.
            text = f"the scheduler failed: {type(error).__name__}: {error}"
            if text != self._scheduler_failed:
                log.exception("job %s: the scheduler failed", self.folder.job_id)
            self._scheduler_failed = text
            self._report_if_possible("broken", text)
            delay = 5.0
        return delay

    def _report_if_possible(self, state: State, message: str) -> None:
        try:
            self._report(state, message)
        except (StoreError, RecordError) as error:
            self._note_store_problem(error)

    def _note_store_problem(self, error: StoreError | RecordError) -> None:
        self._status_publisher.log(logging.WARNING, f"the shared directory does not answer: {error.args[-1]}")

    def _poll(self) -> float:
        now = self._monotonic()
        names = self.folder.names()
        if self._job is None:
            # Read only once it is listed: an NFS client remembers for half a minute that a name was not there.
            self._job = self.folder.read_job() if "job.json" in names else None
            if self._job is None:
                age = now - self.first_seen
                return 0.02 if age < 1 else 0.2 if age < 10 else 5.0
        if "end.json" in names:
            end = self.folder.read_end()
            if end is not None:
                self._report("ended", end.message or self._scheduler_failed or end.reason)
                return 60.0
        if self._mine is None:
            self._claim(self._job, names)
        if not self._mine:
            self._look_at_progress(now)
            return 5.0
        if self._override is None:
            self._restore(self._job)
        if not self._all_ranks_known(now):
            return 0.02 if now - self.first_seen < 10 else 0.5
        if self._scheduler is None and not self._scheduler_failed:
            self._start_scheduler()
        self._look_at_progress(now)
        assert self._override is not None
        self._override.look("schedule.yaml" in names, now, self._resolve)
        self._observe(now)
        self._update_plan_inputs(now)
        if self._number >= 0:
            self.folder.write_rank_files(self._number, self._rank_registry.infos)
        self._publish_if_wanted(now)
        if self._in_force_step is not None and self._override.active:
            self._override.say_published(self._number, self._in_force_step, in_force=True)
        elif self._source is not None and self._source.kind == "scheduler":
            plan_inputs = self._scheduler.plan_inputs if self._scheduler else PlanInputs()
            if (plan_inputs.target, plan_inputs.straggler) == (self._override.target, self._override.straggler):
                self._override.say_applied(self._number, self._start_step)
        if self._scheduler_failed and not self._override.active:
            self._report("broken", self._scheduler_failed)
        else:
            self._report("running", self._lost_results)
        return 0.25 if self._override.unsettled else 1.0

    # ---- who is there

    def _claim(self, job: bodies.JobBody, names: set[str]) -> None:
        claim = self.folder.read_coordinator() if "coordinator.json" in names else None
        if claim is None:
            allowed = job.coordination in ("auto", self._kind)
            if not allowed:
                self._mine = False
                return
            wanted = bodies.ClaimBody(kind=self._kind, nonce=secrets.token_hex(8))
            claim = self.folder.claim_coordinator(wanted)
        self._mine = claim.kind == self._kind

    def _all_ranks_known(self, now: float) -> bool:
        assert self._job is not None
        job = self._job.job_info
        if self._rank_registry.look(job):
            self.last_alive = now
        missing = self._rank_registry.missing(job)
        if missing:
            late = now - self.first_seen >= MISSING_AFTER_S
            text = f"{missing} of {job.world_size} have not registered; training goes on without" if late else ""
            self._report("waiting", text)
        return not missing

    def _look_at_progress(self, now: float) -> None:
        if self._progress.look(now):
            self.last_alive = now
        follows = self._progress.number == self._number >= 0 and self._progress.step >= self._start_step
        if follows and self._in_force_step is None:
            self._in_force_step = self._start_step

    # ---- the scheduler

    def _start_scheduler(self) -> None:
        assert self._job is not None
        job = self._job
        name, args = self._scheduler_of(job)
        self._index = 0
        try:
            if self._kind == "daemon" and job.scheduler and not is_builtin(name):
                raise ConfigError(
                    f"the job asks for the scheduler {name!r}; a daemon runs only built-in ones on a job's word, "
                    f"others are given to the daemon itself (--scheduler {name})"
                )
            cls = load_scheduler(name)
            check_scheduler_args(cls, args)
            infos = self._rank_registry.infos
            scheduler = cls(job.job_info, infos, self._settings, **args)
            scheduler.next_schedule()
            self._replay(scheduler)
        except (ConfigError, PlanError) as error:
            self._scheduler_failed = str(error)
            return
        self._scheduler = scheduler
        if self._settings.dump_data:
            dump.save_ranks(infos, self._settings.dump_dir / self.folder.job_id)

    def _scheduler_of(self, job: bodies.JobBody) -> tuple[str, dict[str, Any]]:
        """The scheduler's name and arguments: the job's own wish, or else what the settings say."""
        if job.scheduler:
            return job.scheduler, job.scheduler_args
        return self._settings.scheduler, self._settings.scheduler_args

    def _replay(self, scheduler: FrequencyScheduler) -> None:
        """Tells a new scheduler what an earlier one of this job was told, in the same order."""
        before = -1
        for number, source in self._made.items():
            if source.index < 0:
                continue  # clocks were given back: an earlier scheduler failed
            if before >= 0 and source.observed == before:
                _tell(scheduler, source.observed_with or scheduler.plan_inputs)
                self._hand_over(scheduler, before)
            _tell(scheduler, source.plan_inputs)
            before, self._index = number, source.index

    def _hand_over(self, scheduler: FrequencyScheduler, number: int) -> list[ProfilingResult]:
        """Lets a scheduler observe the results of schedule `number`."""
        assert self._job is not None
        scheduler.orders = self._rank_registry.orders(scheduler.next_schedule())
        if not self._profile_cache.consulted:
            known = self._profile_cache.known(self._job, scheduler.orders, self._rank_registry.gpu_names())
            if known is not None:
                scheduler.load_profile(known.csv, known.source)
        results = self._results.read(number)
        self._observed, self._observed_in, self._tries = number, scheduler.plan_inputs, 0
        self._lost_results = ""
        with self._planning():
            scheduler.observe(results)
        return results

    @contextmanager
    def _planning(self) -> Iterator[None]:
        """Takes note of how long the scheduler keeps this coordinator from giving word."""
        began_s = self._monotonic()
        yield
        self._longest_plan_s = max(self._longest_plan_s, self._monotonic() - began_s)

    def _restore(self, job: bodies.JobBody) -> None:
        """Reads which schedules an earlier coordinator committed, and which of them this scheduler can go on from."""
        name, args = self._scheduler_of(job)
        exactly = json.dumps([name, args], sort_keys=True)
        self._policy = f"{name.rpartition(':')[2][:60]}-{hashlib.sha256(exactly.encode()).hexdigest()[:12]}"
        self._made.clear()
        plan_inputs = None
        for number in self.folder.schedule_numbers():
            try:
                index = self.folder.read_index(number)
            except RecordError as error:  # whatever it was, the next one takes its place
                self._status_publisher.log(logging.WARNING, f"schedule {number} cannot be read any more: {error}")
                self._number, self._source = number, None
                self._made.clear()
                continue
            if index is None:
                continue
            self._number, self._source = number, index.source
            self._start_step, self._steps = index.start_step, index.steps
            if index.source.kind == "scheduler":
                plan_inputs = index.source.plan_inputs
                if index.source.policy != self._policy:
                    self._made.clear()
                else:
                    self._made[number] = index.source
        if next((source.index for source in self._made.values()), 0) > 0:
            self._made.clear()  # what came before is lost, and a replay from the middle would be another scheduler's
        accepted = self._source.sha256 if self._source and self._source.kind == "yaml" else ""
        self._override = YamlOverride(self.folder, job.job_info.dp_degree, accepted, plan_inputs)
        self._published = None

    def _observe(self, now: float) -> None:
        """Hands a complete set of results to the scheduler."""
        number = next(reversed(self._made), -1)
        if self._scheduler is None or self._scheduler.done or number < 0 or self._observed == number:
            return
        if self._scheduler_failed or self._made[number].index < 0:
            return
        assert self._job is not None
        if self._results.missing(number):
            return
        if self._scheduler.measuring and not all(self._known_orders().values()):
            # Orders are written before results. If they are not seen, a listing is old: an NFS client's lives a minute.
            self._complete_since = min(self._complete_since, now)
            if now - self._complete_since < _ORDERS_WITHIN_S:
                return
        self._complete_since = math.inf
        before = self._scheduler.next_schedule()
        results = self._hand_over(self._scheduler, number)
        if self._settings.dump_data:
            dump.save_prof(results, self._settings.dump_dir / self.folder.job_id, number)
        if not self._scheduler.done and self._scheduler.next_schedule() is not before:
            self._index += 1
        self._profile_cache.keep(self._scheduler.findings(), measuring=self._scheduler.measuring)
        model = self._scheduler.model()
        if model and model != self._model:
            self._model = model
            self.folder.write_model(bodies.ModelBody(**model, profile=self._profile_cache.path))  # type: ignore[arg-type]

    def _update_plan_inputs(self, now: float) -> None:
        """Tells the scheduler what people wish and what iterations take."""
        if self._scheduler is None or self._scheduler.done or self._scheduler_failed:
            return
        assert self._override is not None
        plan_inputs = self._scheduler.plan_inputs
        if self._scheduler.watches_iteration_times:
            pace = self._iteration_times.read(now, self._rank_registry.by_rank, self._progress.iteration_s)
            in_force = [one for one in pace if one.number == self._number]
            if in_force and self._source is not None and self._source.kind == "scheduler":
                plan_inputs = self._scheduler.assess(in_force)
        plan_inputs = plan_inputs.model_copy(
            update={"target": self._override.target, "straggler": self._override.straggler}
        )
        with self._planning():
            _tell(self._scheduler, plan_inputs)

    # ---- what is wanted, and its publication

    def _wanted(self) -> tuple[bodies.Source, list[FrequencySchedule] | None]:
        assert self._override is not None
        if self._override.active:
            return bodies.Source(kind="yaml", sha256=self._override.accepted_sha256), self._override.schedules
        if self._scheduler_failed:
            # Clocks that it has set stay nobody's business: back to their default, until somebody else says otherwise.
            return bodies.Source(kind="scheduler", policy=self._policy), [] if self._number >= 0 else None
        if self._scheduler is None:
            return bodies.Source(kind="scheduler"), None
        source = bodies.Source(
            kind="scheduler",
            policy=self._policy,
            index=self._index,
            plan_inputs=self._scheduler.plan_inputs,
            observed=self._observed,
            observed_with=self._observed_in,
        )
        return source, self._scheduler.next_schedule()

    def _is_news(self, source: bodies.Source, schedules: list[FrequencySchedule]) -> bool:
        """Whether what is wanted differs from what is published."""
        last = self._source
        if last is None or _what(source) != _what(last):
            return True
        if source.plan_inputs == last.plan_inputs:
            return False
        # Another plan inputs that leads to the same clocks needs no new number, unless new measurements are wanted.
        return source.plan_inputs.remeasure_epoch != last.plan_inputs.remeasure_epoch or schedules != self._published

    def _publish_if_wanted(self, now: float) -> None:
        with self._planning():
            source, schedules = self._wanted()
        if schedules is None:
            return
        again = not self._is_news(source, schedules)
        if again and not self._results_are_lost():
            return
        assert self._job is not None
        infos = self._rank_registry.infos
        check_schedules(schedules, self._job.job_info, infos, self._known_orders())
        number = self._number + 1
        if not self._still_leads():
            return
        if self._progress.step < 0 and now - self._published_at < _PROGRESS_WITHIN_S and self.folder.ranks_with_order():
            return  # the ranks run, but at which step is not known yet, and they must switch at one
        self._published_at = now
        start_step = self._progress.start_step(now)
        steps = self._steps_to_measure() if source.kind == "scheduler" else 0
        try:
            ours = self.folder.write_schedule(number, self._generation, start_step, source, schedules, infos, steps)
        except StoreError:
            if self._on_publish is not None:  # the ranks can have it without the directory
                self._on_publish(number, schedules, steps)
            raise
        if not ours:
            log.warning("job %s: somebody else wrote schedule %d; taking it over", self.folder.job_id, number)
            self._restore(self._job)
            return
        self._number, self._source = number, source
        self._start_step, self._steps = start_step, steps
        self._tries = self._tries + 1 if again else 0
        if not again:
            self._lost_results = ""
        self._published = schedules
        self._in_force_step = None
        if source.kind == "scheduler":
            self._made[number] = source
        if self._on_publish is not None:
            self._on_publish(number, schedules, steps)
        self._say(force=True)
        what = f"scheduler, number {source.index}" if source.kind == "scheduler" else "schedule.yaml"
        log.info("job %s: schedule %d (%s) from step %d", self.folder.job_id, number, what, start_step)
        if source.kind == "yaml" and self._override is not None:
            self._override.say_published(number, start_step, in_force=False)
        if self._settings.dump_data:
            dump.save_sched(schedules, self._settings.dump_dir / self.folder.job_id, number)

    def _steps_to_measure(self) -> int:
        """For how many steps a schedule holds at most that is there for measuring; 0 for any other: for ever.

        Enough for the window, and for whatever comes next to be planned and learned of; then clocks go back to their
        default, whoever has died in between.
        """
        if self._scheduler is None or not self._scheduler.measuring or self._job is None:
            return 0
        iteration_s = max(self._progress.iteration_s, 1e-3)
        return 10 * (self._job.profile_steps + 1) + math.ceil((_MEASURED_WITHIN_S + 4 * self._lead_s) / iteration_s)

    def _results_are_lost(self) -> bool:
        """Whether results must be measured again: the schedule was followed for long, and some are not there.

        A helper process that dies takes them along. Not for ever, for a rank may be unable to measure.
        """
        scheduler = self._scheduler
        waits = (
            scheduler is not None and not scheduler.done and (scheduler.measuring or scheduler.watches_iteration_times)
        )
        if not waits or self._number not in self._made or self._observed == self._number:
            return False
        assert self._job is not None
        since = self._in_force_step
        if since is None and self._steps and self._progress.step >= self._start_step + self._steps:
            since = self._start_step  # it is over, and ranks do not say any more that they have followed it
        if since is None or not self._progress.iteration_s:
            return False
        windows = 4 * (self._job.profile_steps + 1)
        steps = windows + math.ceil((_MEASURED_WITHIN_S + 4 * self._lead_s) / self._progress.iteration_s)
        if self._progress.step < since + steps:
            return False
        missing = self._results.missing(self._number)
        if not missing:
            return False
        self._lost_results = f"{list_ranks(missing)} measured nothing under schedule {self._number}"
        if self._tries >= _MOST_TRIES:
            self._lost_results += ", nor when it was repeated. Is a clock process or a helper process dead there?"
            return False
        self._lost_results += "; it is measured again"
        return True

    def _resolve(self, document: ScheduleDocument) -> list[FrequencySchedule]:
        assert self._job is not None
        return document.resolve(self._job.job_info, self._rank_registry.infos, self._known_orders())

    def _known_orders(self) -> dict[int, InstructionOrder | None]:
        return self._rank_registry.orders(self._scheduler.next_schedule() if self._scheduler else [])

    # ---- what is said

    def _report(self, state: State, message: str) -> None:
        changed = (state, message) != (self.state, self.message)
        self.state, self.message = state, message
        if changed and message:
            level = logging.INFO if message in ("finished", "interrupted") else logging.WARNING
            self._status_publisher.log(level, message)
        if self._mine:
            self._say()

    def _say(self, force: bool = False) -> None:
        lease_s, heartbeat = self.hold
        body = bodies.CurrentBody(
            generation=self._generation,
            number=self._number,
            start_step=self._start_step,
            state=self.state,
            message=self.message[:4000],
            yaml_problem=self._override.problem[:4000] if self._override else "",
            status_text=self._scheduler.status_text[:4000] if self._scheduler else "",
            converged=self._scheduler is not None and self._scheduler.converged,
            source=self._source,
            lease_s=lease_s,
            heartbeat=heartbeat,
        )
        self._status_publisher.say(body, force=force)

    def applied(self, number: int, step: int) -> None:
        """Rank 0 follows schedule `number` from `step` on: known at once where the broadcaster is torch.distributed."""
        if number == self._number:
            self._start_step = self._in_force_step = step

    def end(self, reason: Literal["finished", "crashed", "idle"], message: str = "") -> None:
        """Writes the job's tombstone."""
        self.folder.write_end(bodies.EndBody(reason=reason, message=message))


def _what(source: bodies.Source) -> tuple[str, str, int, str]:
    """What a schedule is, whatever the plan_inputs."""
    return source.kind, source.policy, source.index, source.sha256


def _tell(scheduler: FrequencyScheduler, plan_inputs: PlanInputs) -> None:
    if plan_inputs != scheduler.plan_inputs:
        scheduler.react(plan_inputs)
