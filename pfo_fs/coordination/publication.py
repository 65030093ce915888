"""The newest schedule of a job: its number, since when the ranks follow it, and how long they may."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pfo_fs.coordination.progress import PollPace, Progress
from pfo_fs.errors import RecordError, StoreError
from pfo_fs.models import FrequencySchedule, PlanInputs, RankInfo
from pfo_fs.store import JobFolder, bodies
from pfo_fs.turns import FOR_EVER, Term

log = logging.getLogger(__name__)

_MOST_REPLAYED = 20_000
"""At most this many schedules of the policy are replayed; a slow pipeline in their plan inputs counts as one more."""
_HEARTBEATS_PER_LEASE = 4
"""A rank may miss three renewals of a lease before the lease ends."""
_LONGEST_PLAN_S = 300.0
"""The lease allows for planning up to this long. If planning takes longer, the lease can end meanwhile; ranks then go
to default clocks until the coordinator reports again."""
MEASURED_WITHIN_S = 30.0
"""The results of a measuring window, and the plan after them, may take this time beyond the window's iterations."""
_MOST_UNLISTED = 8
"""A network file system may list a folder as it was some seconds ago, without up to this many of the newest names."""

OnPublish = Callable[[int, int, list[FrequencySchedule], Term], None]


Announced = tuple[int, int, bodies.Source | None]
"""The schedule that ranks are told to follow: its number (-1: none), its first step and its source."""


@dataclass
class Committed:
    """What coordinators of a job have committed.

    Attributes:
        number: The newest schedule's number; -1 for none. `start_step` and `term` belong to this schedule.
        source: The newest schedule's source; None before the first, and if it cannot be read any more. For a check, the
            source of the schedule that the check repeats.
        staying: The number of the newest schedule that holds for ever; ranks follow it after a schedule that does not.
            -1 for none.
        checked: Number and nonce of the latest schedule that was published for a check; -1 for none.
        made: The schedules that the policy made since it started from nothing, ascending. Empty if it cannot go on
            from them.
        plan_inputs: The plan inputs of the newest schedule of any policy.
        by_hand: The hash of the `schedule.yaml` whose schedule was published last; empty if none was.
    """

    number: int = -1
    source: bodies.Source | None = None
    start_step: int = 0
    term: Term = FOR_EVER
    staying: int = -1
    checked: tuple[int, str] = (-1, "")
    made: dict[int, bodies.Source] = field(default_factory=dict)
    plan_inputs: PlanInputs | None = None
    by_hand: str = ""

    def add(self, number: int, source: bodies.Source, start_step: int, term: Term, policy: str) -> None:
        """Notes a newer schedule; `policy`: the scheduler and its arguments, as sources name them."""
        self.number, self.start_step, self.term = number, start_step, term
        self.staying = number if term.stays(number) else self.staying
        if source.check:
            self.checked = number, source.check
            return
        self.source = source
        if source.kind != "scheduler":
            self.by_hand = source.sha256
            return
        self.plan_inputs = source.plan_inputs
        if source.policy != policy or source.revision == 0:
            self.made.clear()  # revision 0: a scheduler started from nothing
        if source.policy == policy:
            self.made[number] = source


def _read_committed(folder: JobFolder, policy: str, announced: int) -> tuple[Committed, list[str]]:
    """Reads the committed schedules; returns also what is wrong with them.

    The schedule with the number `announced` counts even if it is not listed.
    """
    read, problems, replayed = Committed(), [], 0
    listed = folder.schedule_numbers()
    after = listed[-1] + 1 if listed else 0
    for number in [*listed, *range(after, min(announced + 1, after + _MOST_UNLISTED))]:
        try:
            index = folder.read(bodies.IndexBody, number=number)
        except RecordError as error:  # its number is used anyway; the next schedule replaces it
            problems.append(f"schedule {number} cannot be read any more: {error}")
            read.number, read.source = number, None
            read.made.clear()
            continue
        if index is None:
            continue
        read.add(number, index.source, index.start_step, index.term, policy)
        inputs = (index.source.plan_inputs, index.source.observed_with or PlanInputs())
        replayed += number in read.made and 1 + sum(len(given.slow_pipelines) for given in inputs)
        if replayed > _MOST_REPLAYED:
            problems.append(f"more than {_MOST_REPLAYED} schedules: the scheduler starts afresh")
            read.made.clear()
            replayed = 0
    if next((source.revision for source in read.made.values()), 0) > 0:
        # The beginning is lost, and a replay from the middle would bring the scheduler to another state.
        read.made.clear()
    return read, problems


class Publication(Committed):
    """The newest schedule of one job, as a `Coordinator` publishes it.

    Attributes:
        in_force_step: The step since which rank 0 follows the newest schedule; None while it does not.
        kept: The newest schedule, if an earlier coordinator's policy had measured it and kept it; else -1.
    """

    def __init__(self, folder: JobFolder, generation: int, pace: PollPace, on_publish: OnPublish | None = None) -> None:
        super().__init__()
        self.folder, self.generation, self.pace, self.on_publish = folder, generation, pace, on_publish
        self.in_force_step: int | None = None
        self.kept = -1
        self._announced_before: Announced | None = None

    def restore(self, policy: str) -> list[str]:
        """Goes on from the schedules that earlier coordinators have committed; returns what is wrong with them.

        If ranks were told to follow an older schedule than the newest, the coordinator that committed the newest died
        before it announced it, and the step at which all ranks were to switch may have passed. (A schedule that begins
        with step 0 has no such step: ranks follow it as soon as they have it.) `made` then has only schedules of
        `policy`, named as in sources.
        """
        current, problem = None, False
        try:
            current = self.folder.read(bodies.CurrentBody)
        except RecordError:
            problem = True
        announced = (current.number, current.start_step, current.source) if current else (-1, 0, None)
        read, problems = _read_committed(self.folder, policy, announced[0])
        vars(self).update(vars(read))
        kept = current is not None and current.converged and current.number == self.number
        self.kept = self.newest_made if kept else -1
        self.in_force_step = None
        may_have_passed = not problem and announced[0] < self.number and self.start_step > 0
        self._announced_before = announced if may_have_passed else None
        return problems

    @property
    def is_announced(self) -> bool:
        """Whether ranks are told to follow the newest schedule; if not, it must be published again, as a new one."""
        return self._announced_before is None

    @property
    def announced(self) -> Announced:
        """The schedule that ranks are told to follow."""
        return self._announced_before or (self.number, self.start_step, self.source)

    @property
    def checked_until(self) -> int:
        """The step before which the newest schedule is measured for a check; 0 if it is not for a check."""
        return self.term.until if self.checked[0] == self.number else 0

    @property
    def newest_made(self) -> int:
        """The number of the newest schedule that the policy made; -1 for none."""
        return next(reversed(self.made), -1)

    def forget(self) -> None:
        """Makes the newest schedule differ from any that is wanted, because the policy begins from nothing."""
        self.made.clear()
        self.source, self.kept = None, -1

    def differs(self, source: bodies.Source) -> bool:
        """Returns whether a schedule of this source differs from the newest."""
        return self.source is None or _identity(source) != _identity(self.source)

    def publish(
        self,
        source: bodies.Source,
        schedules: list[FrequencySchedule],
        infos: Sequence[RankInfo],
        *,
        start_step: int,
        term: Term,
    ) -> bool:
        """Commits the next schedule; returns False if another coordinator has committed one with its number.

        A rank without a schedule keeps its default clocks.
        """
        number = self.number + 1
        try:
            ours = self.folder.write_schedule(number, self.generation, start_step, source, schedules, infos, term)
        except StoreError:
            if self.on_publish is not None:  # the broadcast does not need the directory
                self.on_publish(number, start_step, schedules, term)
            raise
        if not ours:
            return False
        self.add(number, source, start_step, term, source.policy)
        self.in_force_step, self._announced_before = None, None
        if self.on_publish is not None:
            self.on_publish(number, start_step, schedules, term)
        what = f"the scheduler's request {source.revision}" if source.kind == "scheduler" else "schedule.yaml"
        what += ", for a check" if source.check else ""
        log.info("job %s: schedule %d (%s) from step %d", self.folder.job_id, number, what, start_step)
        return True

    def follow(self, progress: Progress) -> None:
        """Notes since when rank 0 follows the newest schedule, if it does."""
        follows = progress.number == self.number >= 0 and progress.step >= self.start_step
        if follows and self.in_force_step is None:
            self.in_force_step = self.start_step

    def applied(self, number: int, step: int) -> None:
        """Notes that rank 0 follows schedule `number` from `step` on."""
        if number == self.number:
            if self.term.until and not self.term.by_hand:
                self.term = self.term._replace(until=self.term.until + step - self.start_step)
            self.start_step = self.in_force_step = step

    def results_take_s(self, now: float) -> float:
        """Returns how long results may take after their iterations, in s; `now` is monotonic time."""
        return MEASURED_WITHIN_S + 4 * self.pace.lead_s(now)

    def lease(self, now: float, timeout_s: float, longest_plan_s: float, *, followed: bool) -> tuple[float, int]:
        """Returns how long (0.0: for ever) ranks may follow the newest schedule after the last change of the heartbeat,
        and the heartbeat, a number that changes while a scheduler follows the straggler here (`followed`).

        A schedule that follows the pace of a straggler must end if no process is left to notice that the straggler is
        gone. `longest_plan_s` is the longest time for which planning has blocked the coordinator.
        """
        plan_inputs = self.source.plan_inputs if self.source is not None else PlanInputs()
        if not plan_inputs.slow_pipelines and plan_inputs.straggler is None:
            return 0.0, 0
        lease_s = timeout_s + min(longest_plan_s, _LONGEST_PLAN_S)
        return lease_s, 1 + int(_HEARTBEATS_PER_LEASE * now / lease_s) if followed else 0


def _identity(source: bodies.Source) -> tuple[str, str, int, str, str]:
    return source.kind, source.policy, source.revision, source.sha256, source.check
