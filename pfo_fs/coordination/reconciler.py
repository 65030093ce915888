"""Compares the schedule that is wanted for one job with the published one, and publishes the difference."""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pfo_fs.coordination.policy_runner import PolicyRunner
from pfo_fs.coordination.progress import IterationTimeReader, Progress
from pfo_fs.coordination.publication import Publication
from pfo_fs.coordination.rank_registry import NAMED
from pfo_fs.coordination.yaml_override import YamlOverride
from pfo_fs.errors import RecordError, StoreError
from pfo_fs.models import FrequencySchedule
from pfo_fs.schedule_yaml import ScheduleDocument
from pfo_fs.schedule_yaml.problems import name_ranks
from pfo_fs.scheduler import ScheduleRequest, check_schedules
from pfo_fs.store import bodies, layout, save_dump
from pfo_fs.turns import ROUND, Term

log = logging.getLogger(__name__)

_PROGRESS_WITHIN_S = 10.0
"""A new schedule, or a new coordinator, waits this long for the first progress of ranks that are known to run."""
_ORDERS_WITHIN_S = 90.0
"""Complete results wait this long for instruction orders, because an NFS client's listing can be a minute old."""
MOST_REPEATS = 2
"""A schedule is measured again at most this many times for missing results, because a rank may be unable to measure."""


class Wanted(NamedTuple):
    """A request that should be in force, of the policy or of a person, and its source."""

    source: bodies.Source
    request: ScheduleRequest


@dataclass
class Reconciler:
    """Publishes the schedule that is wanted. Begins with what earlier coordinators have published.

    `log` logs a text once, and again if its cause comes back later. `lost_results` is text for the status.
    """

    runner: PolicyRunner
    progress: Progress
    publication: Publication
    still_leads: Callable[[], bool]
    log: Callable[[int, str], None]

    def __post_init__(self) -> None:
        self.folder, self.job, self.ranks = self.runner.folder, self.runner.job, self.runner.ranks
        self._reader = IterationTimeReader(self.folder, self.runner.monotonic)
        self.lost_results = ""
        self._repeats = 0  # how often the newest schedule has been measured again for missing results
        self._complete_since = math.inf  # since when complete results wait for instruction orders
        self._waits_since = -math.inf  # when this coordinator began, or when it published last
        self.override = self._restore()

    def _restore(self) -> YamlOverride:
        """Goes on from the committed schedules."""
        publication = self.publication
        for problem in publication.restore(self.runner.policy):
            self.log(logging.WARNING, problem)
        source = publication.source
        accepted = source.sha256 if source is not None and source.kind == "yaml" else ""
        pipelines, by_hand = self.job.job_info.dp_degree, publication.by_hand
        override = YamlOverride(self.folder, pipelines, accepted, by_hand, publication.plan_inputs)
        override.term = publication.term if accepted and not publication.checked_until else override.term
        return override

    def reconcile(self, now: float, names: set[str]) -> bool:
        """Does what is due, with the names in the job's folder now; returns whether a schedule was published."""
        if math.isinf(self._waits_since):
            self._waits_since = now
        if self.ranks.order_changed():
            self.runner.forget()
            self.publication.forget()
        if self.runner.scheduler is None and not self.runner.failure and now >= self.runner.start_at:
            if self.runner.is_outdated(self.publication.newest_made):
                self.publication.forget()
            self.runner.start(self.publication.made, self.publication.kept)
        if not self.progress.is_awaited:  # progress tells whether the steps of a file are over
            self.override.poll(layout.YAML in names, now, self._resolve, self.progress.start_step(now))
        self._end_override(now)
        if not self._update_plan_inputs(now):
            self._observe_results(now)
        self._write_rank_files()  # before a newer schedule: the coordinator that published this one may have died
        wanted = self._wanted()
        published = wanted is not None and self._publish_if_new(wanted, now)
        if wanted is not None and not published and layout.CHECK in names and self._rests(wanted):
            published = self._check(wanted, now)
        if published:  # otherwise only the next poll, if there is one, would write them
            self._write_rank_files()
        self._report_on_yaml()
        return published

    def _write_rank_files(self) -> None:
        """Writes some more of the files of single ranks; they are for users, since ranks read the plan files."""
        if self.publication.number >= 0:
            try:
                self.folder.write_rank_files(self.publication.number, self.ranks.infos)
            except StoreError as error:
                self.log(logging.WARNING, f"files of single ranks cannot be written: {error.args[-1]}")

    def _resolve(self, document: ScheduleDocument) -> list[FrequencySchedule]:
        return document.resolve(self.job.job_info, self.ranks.infos, self.runner.orders())

    def _end_override(self, now: float) -> None:
        """Ends a person's schedule whose last step is over, or was before ranks could follow it."""
        override, progress = self.override, self.progress
        is_published = override.published_sha256 == override.accepted_sha256
        if override.active and 0 < override.term.until <= (progress.step if is_published else progress.start_step(now)):
            override.end()

    # ---- what has happened

    def _observe_results(self, now: float) -> None:
        """Passes complete results to the scheduler."""
        runner, number = self.runner, self.publication.newest_made
        if not runner.learns or number < 0 or runner.observed[0] == number:
            return
        if self.publication.made[number].revision < 0 or runner.results.missing(number):
            return
        if runner.measures and not all(runner.orders().values()):
            # Orders are written before results. If they are missing here, a listing is old.
            self._complete_since = min(self._complete_since, now)
            if now - self._complete_since < _ORDERS_WITHIN_S:
                return
        self._complete_since = math.inf
        self.forget_lost_results()
        runner.observe(number)

    def _update_plan_inputs(self, now: float) -> bool:
        """Gives the scheduler what users request and how long iterations take.

        Returns whether the scheduler asks for another plan now. Then it does not get the results of the schedule in
        force, because they were measured while something changed.
        """
        runner = self.runner
        if not runner.learns:
            return False
        plan_inputs = runner.plan_inputs
        if runner.watches_iteration_times:
            read = self._reader.read(now, self.ranks.by_rank, self.progress.iteration_s)
            publication = self.publication
            in_force = [
                iteration._replace(turn=publication.term.turn_at(iteration.step))
                for iteration in read
                if iteration.number == publication.number and iteration.step >= publication.checked_until
            ]
            source = publication.source
            if in_force and source is not None and source.kind == "scheduler" and runner.scheduler is not None:
                plan_inputs = runner.scheduler.assess(in_force)
        asked_for = {"target": self.override.target, "straggler": self.override.straggler}
        before = runner.ask().revision
        runner.tell(plan_inputs.model_copy(update=asked_for))
        return runner.ask().revision != before

    # ---- what is wanted

    def _wanted(self) -> Wanted | None:
        """Returns the schedule that should be in force; None: the present schedule stays in force."""
        runner = self.runner
        if self.override.active:
            source = bodies.Source(kind="yaml", sha256=self.override.accepted_sha256)
            # After a restart, the schedules are None until the file that is in force has been read again.
            return None if self.override.schedules is None else Wanted(source, ScheduleRequest(self.override.schedules))
        if runner.failure:
            # The clocks that a failed scheduler has set go back to their default.
            source = bodies.Source(kind="scheduler", policy=runner.policy)
            return Wanted(source, ScheduleRequest([])) if self.publication.number >= 0 else None
        if runner.scheduler is None:
            return None
        request = runner.ask()
        source = bodies.Source(
            kind="scheduler",
            policy=runner.policy,
            revision=request.revision,
            plan_inputs=runner.plan_inputs,
            observed=runner.observed[0],
            observed_with=runner.observed[1],
        )
        return Wanted(source, request)

    # ---- what is published

    def _publish_if_new(self, wanted: Wanted, now: float) -> bool:
        publication, progress, schedules = self.publication, self.progress, wanted.request.schedules
        repeat = not publication.differs(wanted.source)
        lost = repeat and self._look_for_lost_results(now)
        if repeat and publication.is_announced and not lost:
            return False
        infos = self.ranks.infos
        check_schedules(schedules, self.job.job_info, infos, self.runner.orders())
        if not self.still_leads():
            return False
        waits = progress.step < 0 and now - self._waits_since < _PROGRESS_WITHIN_S
        if waits and (progress.is_awaited or self.folder.numbers(bodies.OrderBody)):
            return False  # the ranks run and must switch at the same step, but their step is not known yet
        self._waits_since = now
        start_step = progress.start_step(now)
        term = self._term(wanted, start_step, now)
        if not publication.publish(wanted.source, schedules, infos, start_step=start_step, term=term):
            number = publication.number + 1
            log.warning("job %s: another coordinator wrote schedule %d; going on from it", self.folder.job_id, number)
            self.override = self._restore()
            return False
        if lost:
            self._repeats += 1
        elif not repeat:
            self.forget_lost_results()
        if wanted.source.kind == "yaml":
            self.override.report_published(publication.number, start_step, in_force=False)
        if self.runner.dump_folder is not None:
            save_dump(FrequencySchedule, schedules, self.runner.dump_folder, publication.number)
        return True

    def _rests(self, wanted: Wanted) -> bool:
        """Returns whether a schedule is in force for good, and the policy waits for no results of it."""
        publication, runner = self.publication, self.runner
        by_policy = wanted.source.kind == "scheduler" and runner.learns
        always_in_turns = publication.term.turns and not publication.term.until  # as a person wants it
        return (
            bool(wanted.request.schedules)
            and publication.staying == publication.number
            and not always_in_turns
            and publication.in_force_step is not None
            and publication.term.until <= self.progress.step
            and not publication.differs(wanted.source)
            and not (by_policy and runner.observed[0] != publication.newest_made)
        )

    def _check(self, wanted: Wanted, now: float) -> bool:
        """Publishes the schedule in force again, in turns, if `pfo-fs check` has asked for it."""
        try:
            asked = self.folder.read(bodies.CheckBody)
        except RecordError as error:
            self.log(logging.WARNING, f"what `pfo-fs check` has asked for is left out: {error}")
            return False
        if asked is None or asked.nonce == self.publication.checked[1]:
            return False
        turns = tuple(turn for turn in ROUND for _ in range(asked.block))
        source = wanted.source.model_copy(update={"check": asked.nonce})
        request = ScheduleRequest(wanted.request.schedules, turns=turns, steps=asked.steps)
        published = self._publish_if_new(Wanted(source, request), now)
        if published:
            with suppress(StoreError):  # the check is known by its nonce, so it is not done twice
                self.folder.remove_file(layout.CHECK)
        return published

    def _term(self, wanted: Wanted, start_step: int, now: float) -> Term:
        """Returns for how long the next schedule holds, and in which turns."""
        publication = self.publication
        if wanted.source.kind == "yaml" and not wanted.source.check:
            return self.override.term._replace(after=publication.staying)
        measures, turns = wanted.request.purpose == "measure", wanted.request.turns
        if turns:
            after = publication.staying if measures else publication.number + 1
            # Measuring leaves out the first step.
            return Term(start_step + 1 + wanted.request.steps, after, turns)
        if measures:
            # Enough for the window, and for planning the next schedule and sending it to the ranks. After these steps
            # clocks go to their default, even if a process has died in between.
            more = math.ceil(publication.results_take_s(now) / max(self.progress.iteration_s, 1e-3))
            return Term(start_step + 10 * (self.job.profile_steps + 1) + more)
        return Term()

    def _look_for_lost_results(self, now: float) -> bool:
        """Returns whether to measure the newest schedule again: it ran for long enough, but results are missing.

        A helper process that dies loses the results that it has not written.
        """
        runner, publication, progress = self.runner, self.publication, self.progress
        waits = runner.learns and (runner.measures or runner.watches_iteration_times)
        if not waits or publication.number not in publication.made or runner.observed[0] == publication.number:
            return False
        since = publication.in_force_step
        if since is None and 0 < publication.term.until <= progress.step:
            since = publication.start_step  # the schedule has ended, and ranks no longer report that they follow it
        if since is None or not progress.iteration_s:
            return False
        windows = 4 * (self.job.profile_steps + 1)
        if publication.term.turns:
            windows = publication.term.until - publication.start_step
        if progress.step < since + windows + math.ceil(publication.results_take_s(now) / progress.iteration_s):
            return False
        missing = runner.results.missing(publication.number)
        if not missing:
            return False
        self.lost_results = f"{name_ranks(missing, NAMED)} measured nothing under schedule {publication.number}"
        if self._repeats >= MOST_REPEATS:
            self.lost_results += ", nor when it was repeated. Is a clock process or a helper process dead there?"
            return False
        self.lost_results += "; it is measured again"
        return True

    def forget_lost_results(self) -> None:
        """Counts missing results afresh: another schedule has replaced this one, or the results have come."""
        self._repeats, self.lost_results = 0, ""

    def _report_on_yaml(self) -> None:
        publication, override = self.publication, self.override
        if publication.in_force_step is not None and override.active:
            override.report_published(publication.number, publication.in_force_step, in_force=True)
        elif publication.source is not None and publication.source.kind == "scheduler":
            plan_inputs = self.runner.plan_inputs
            if (plan_inputs.target, plan_inputs.straggler) == (override.target, override.straggler):
                override.report_applied(publication.number, publication.start_step)
