"""Runs one job's scheduler: starts it, replays earlier results, passes it new ones, and gets its requests."""

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pfo_fs.coordination.policy_start import Kind, MakePolicy, PolicyCall, policy_name
from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.coordination.results import Results, StoredResults
from pfo_fs.errors import ConfigError, PlanError, PolicyLost, RecordError, StoreError
from pfo_fs.models import FrequencySchedule, InstructionOrder, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, ScheduleRequest, is_builtin
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, bodies, layout, save_dump


def replay(
    scheduler: FrequencyScheduler,
    made: dict[int, bodies.Source],
    observe: Callable[[FrequencyScheduler, int], object],
    published: Callable[[int], list[FrequencySchedule] | None],
) -> None:
    """Gives a new scheduler what an earlier one of this job received, in the same order.

    The new scheduler may plan otherwise, for example if it is of another release. Published schedules have run, so they
    count, and the last of them stays in force.

    Args:
        made: The schedules that the earlier scheduler has made, ascending.
        observe: Lets a scheduler observe the results of the schedule with this number.
        published: Returns the schedules that were published with this number; None if they cannot be read any more.

    Raises:
        PlanError: The scheduler acts in another way than the earlier one.
    """
    before, revision = -1, -1
    for number, source in made.items():
        if source.revision < 0:
            continue  # an earlier scheduler failed here, and clocks were at their default
        if before >= 0 and source.observed == before:
            _accept(scheduler, published(before))
            tell(scheduler, source.observed_with or scheduler.plan_inputs)
            observe(scheduler, before)
        tell(scheduler, source.plan_inputs)
        before, revision = number, source.revision
    if revision >= 0:
        _accept(scheduler, published(before))
        scheduler.continue_from(revision)


def _accept(scheduler: FrequencyScheduler, published: list[FrequencySchedule] | None) -> None:
    """Makes a scheduler go on from the schedules published for its present request, if it has planned others."""
    if published is not None and _by_rank(scheduler.request().schedules) != _by_rank(published):
        scheduler.was_published(published)


def _by_rank(schedules: Sequence[FrequencySchedule]) -> dict[int, FrequencySchedule]:
    return {schedule.rank: schedule for schedule in schedules}


def tell(scheduler: FrequencyScheduler, plan_inputs: PlanInputs) -> None:
    """Gives a scheduler its plan inputs, if they have changed."""
    if plan_inputs != scheduler.plan_inputs:
        scheduler.react(plan_inputs)


log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 3600.0


@dataclass
class PolicyRunner:
    """The scheduler of one job.

    Attributes:
        failure: Text for the status about why the policy does not run; empty if it runs, or has not been started.
        trouble: Text for the status while the policy's process is gone, and another one will take its place.
        start_at: When the policy may start, in monotonic s.
        observed: The schedule whose results the scheduler has observed last (-1: none), and its plan inputs then.
        longest_plan_s: The longest time in s for which the policy's planning has blocked this coordinator.
        policy: The scheduler and its arguments, as the sources of schedules name them.
        dump_folder: Where Zeus's dumps of the job go; None: there are none.
    """

    folder: JobFolder
    job: bodies.JobBody
    settings: PFOSettings
    kind: Kind
    ranks: RankRegistry
    monotonic: Callable[[], float]
    make: MakePolicy

    def __post_init__(self) -> None:
        self.scheduler: FrequencyScheduler | None = None
        self.request: ScheduleRequest | None = None
        self.failure = self.trouble = ""
        self.start_at = -math.inf
        self.longest_plan_s = 0.0
        self.observed: tuple[int, PlanInputs | None] = (-1, None)
        chosen = self.job if self.job.scheduler else self.settings
        self._name, self._args = chosen.scheduler, chosen.scheduler_args
        self.policy = policy_name(self._name, self._args)
        self.results = Results(self.folder, self.ranks)
        self.dump_folder = self.settings.dump_dir / self.folder.job_id if self.settings.dump_data else None
        self._profile = ""  # as it was written last
        self._model: dict[str, float] = {}
        self._losses = 0

    @property
    def learns(self) -> bool:
        """Whether the scheduler runs and its request can still change."""
        return self.scheduler is not None and not self.scheduler.done and not self.failure

    @property
    def measures(self) -> bool:
        """Whether the scheduler's last request is for a measurement."""
        return self.request is not None and self.request.purpose == "measure"

    @property
    def watches_iteration_times(self) -> bool:
        """As in the scheduler."""
        return self.scheduler is not None and self.scheduler.watches_iteration_times

    @property
    def plan_inputs(self) -> PlanInputs:
        """As in the scheduler."""
        return self.scheduler.plan_inputs if self.scheduler is not None else PlanInputs()

    def start(self, made: dict[int, bodies.Source], kept: int = -1) -> None:
        """Starts the scheduler and brings it to the state of an earlier one; sets `failure` if that does not work.

        Args:
            kept: The newest schedule that the earlier scheduler has made, if that scheduler had measured and kept it;
                else -1. It stays in force even if this scheduler would go on otherwise.
        """
        try:
            with self._planning():
                scheduler = self._make_scheduler()
                scheduler.request()
                replay(scheduler, made, self._hand_over, self._published)
            if kept >= 0 and kept in made and not scheduler.done and not self.results.missing(kept):
                self._hand_over(scheduler, kept)
                published = self._published(kept)
                if published is not None and not scheduler.done:  # it has just observed this schedule's results
                    request, revision = scheduler.request(), made[kept].revision
                    if request.revision != revision or _by_rank(request.schedules) != _by_rank(published):
                        scheduler.was_published(published, True)
                        scheduler.continue_from(revision)
        except (ConfigError, PlanError) as error:
            self.failure = str(error)
            return
        except PolicyLost as error:
            self.lost(str(error))
            return
        self.scheduler, self.trouble = scheduler, ""
        self.ask()
        if self.dump_folder is not None:
            save_dump(RankInfo, self.ranks.infos, self.dump_folder)
        if scheduler.done:
            self.close()

    def _make_scheduler(self) -> FrequencyScheduler:
        """Makes the scheduler that the job's own files request, or else the operator's.

        There are no limits for `local`, because rank 0 of the job has the permissions of the job's user.
        """
        call = PolicyCall(self._name, self.job.job_info, self.ranks.planned_infos, self.settings, self._args)
        if self.kind == "local" or not self.job.scheduler:
            return self.make(call)
        if not is_builtin(self._name):
            raise ConfigError(
                f"the job asks for the scheduler {self._name!r}; a daemon runs only built-in ones when a job asks, "
                f"others are given to the daemon itself (--scheduler {self._name})"
            )
        with tempfile.TemporaryDirectory(prefix="pfo-fs-") as place:  # in this process: the policy's may be killed
            return self.make(call._replace(copies=(self.folder, place)))

    def _published(self, number: int) -> list[FrequencySchedule] | None:
        """Returns the schedules with this number; None if they cannot be read any more."""
        try:
            index = self.folder.read(bodies.IndexBody, number=number)
            return None if index is None else self.folder.read_schedules(index, self.ranks.infos)
        except RecordError as error:
            log.warning("job %s: schedule %d cannot be read any more: %s", self.folder.job_id, number, error)
            return None

    def lost(self, text: str) -> None:
        """Notes that the scheduler's process is gone: another one is started after a pause, longer each time."""
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._losses, 30), _LONGEST_PAUSE_S)
        self._losses += 1
        self.start_at = self.monotonic() + pause_s
        self.trouble = f"{text}; another one starts in {pause_s:.0f} s"
        log.warning("job %s: %s", self.folder.job_id, self.trouble)
        self.close()
        self.scheduler, self.observed = None, (-1, None)
        self.results.forget()

    def forget(self) -> None:
        """Ends the scheduler in any state: ranks run other orders now, so the next scheduler begins from nothing."""
        self.close()
        self.scheduler, self.request, self.observed = None, None, (-1, None)
        self.failure = self.trouble = ""
        self.results.forget()

    def is_outdated(self, number: int) -> bool:
        """Returns whether ranks now run orders of another length than in the schedule with this number."""
        orders = self.ranks.orders()
        published = (self._published(number) if number >= 0 else None) or ()
        known = [(len(schedule.frequencies), orders.get(schedule.rank)) for schedule in published]
        return any(order is not None and len(order) != count for count, order in known)

    def close(self) -> None:
        """Ends the scheduler's process, if it has one; another thread that calls the scheduler gets PolicyLost."""
        if self.scheduler is not None:
            self.scheduler.close()

    def observe(self, number: int) -> None:
        """Passes the results of schedule `number`, which must be complete, to the scheduler."""
        assert self.scheduler is not None
        results = self._hand_over(self.scheduler, number)
        if self.dump_folder is not None:
            save_dump(ProfilingResult, results, self.dump_folder, number)
        self.ask()
        self._keep_profile(self.scheduler.export_profile())
        model = self.scheduler.model()
        if model and model != self._model:
            self._model = model
            body, before = bodies.ModelBody.model_validate({**model, "number": number}), None
            if body.energy_saved is None:
                with suppress(RecordError):
                    before = self.folder.read(bodies.ModelBody)  # perhaps of an earlier coordinator
            last = before and (before.last or (before if before.energy_saved is not None else None))
            self.folder.write(body.model_copy(update={"last": last}))
        if self.scheduler.done:
            self.close()

    def _keep_profile(self, csv: str) -> None:
        """Writes the job's profile if it has more than its header; if writing fails, the job goes on."""
        if csv != self._profile and "\n" in csv.strip():
            try:
                self.folder.write_file(layout.PROFILE, csv.encode())
                self._profile = csv
            except StoreError as error:
                log.warning("job %s: its profile cannot be written: %s", self.folder.job_id, error.args[-1])

    def _hand_over(self, scheduler: FrequencyScheduler, number: int) -> StoredResults:
        scheduler.orders = self.ranks.orders(scheduler.request().schedules)
        results = self.results.read(number)
        # Noted before the scheduler gets them, so that results on which it fails are not passed to it again.
        self.observed = (number, scheduler.plan_inputs)
        with self._planning():
            scheduler.observe(results)
        self.results.forget()
        return results

    def tell(self, plan_inputs: PlanInputs) -> None:
        """Gives the scheduler its plan inputs."""
        assert self.scheduler is not None
        with self._planning():
            tell(self.scheduler, plan_inputs)

    def ask(self) -> ScheduleRequest:
        """Returns the scheduler's present request; the scheduler may plan for minutes."""
        assert self.scheduler is not None
        with self._planning():
            self.request = self.scheduler.request()
        return self.request

    def orders(self) -> dict[int, InstructionOrder | None]:
        """Does the same as `RankRegistry.orders`, with the schedules that the scheduler has planned."""
        return self.ranks.orders(self.request.schedules if self.request is not None else [])

    @contextmanager
    def _planning(self) -> Iterator[None]:
        began_s = self.monotonic()
        yield
        self.longest_plan_s = max(self.longest_plan_s, self.monotonic() - began_s)
