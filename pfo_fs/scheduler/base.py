"""The interface of a scheduling policy: a generator that yields requests for schedules and gets results."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionOrder, JobInfo, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.scheduler.checks import plausible_results
from pfo_fs.settings import PFOSettings
from pfo_fs.turns import ALL


@dataclass(frozen=True)
class ScheduleRequest:
    """What a policy asks for.

    Attributes:
        schedules: At most one per rank; a rank that is left out keeps its default clocks.
        purpose: `run`: in force until the next request. `measure`: for a measuring window only; if no other request
            follows in time, the ranks go back to default clocks.
        message: What the policy is doing, as one line for the status.
        converged: Whether the policy has measured this schedule under load and keeps it.
        turns: Which ranks follow the schedules in which step (`Term.turns`), for `steps` steps: so the schedules are
            measured beside default clocks. Then all ranks follow the schedule that ran before, or these if purpose is
            `run`. Empty: all ranks follow these in all steps.
        steps: For how many steps there are turns.
        revision: Number of the request, from 0 on. If it changes, the coordinator publishes a new schedule.
            `FrequencyScheduler.request` fills it in; what a policy writes here is not used.
    """

    schedules: list[FrequencySchedule]
    purpose: Literal["run", "measure"] = "run"
    message: str = ""
    converged: bool = False
    turns: tuple[int, ...] = ()
    steps: int = 0
    revision: int = 0


ScheduleGenerator: TypeAlias = Generator[ScheduleRequest | list[FrequencySchedule], list[ProfilingResult], None]
T = TypeVar("T")
Windows: TypeAlias = Generator[ScheduleRequest, list[ProfilingResult], T]
"""A part of a policy that asks for measuring windows, and returns something."""


class IterationTime(NamedTuple):
    """One iteration of one pipeline, as its first stage measured it.

    Attributes:
        number: Number of the schedule in force; `turn`: which ranks follow it in that step, as in `Term`.
        span_s: Time from the iteration's begin to the end of its last instruction, in s: without waiting for other
            pipelines.
        throttled: Why a GPU of the pipeline runs below its set clock; empty if none does.
    """

    pipeline: int
    step: int
    number: int
    span_s: float
    throttled: str = ""
    turn: int = ALL


class FrequencyScheduler(ABC):
    """A policy: decides which clocks the ranks run at, from what they measured.

    **A scheduler must be deterministic.** Only what is in the shared directory survives a daemon: after a restart, or
    on another host, the coordinator makes a new scheduler from the same arguments and replays `react` and `observe`
    with the records. After the same calls, a scheduler must make the same requests: it must not read the time or files
    that change, use randomness without a seed, or iterate over unordered sets.

    Attributes:
        watches_iteration_times: Whether the class needs `assess` to be called with iteration times.
        orders: Instructions of each rank in the order of an iteration, known before `observe` is called.
        plan_inputs: What schedules depend on besides results: target and stragglers.
    """

    watches_iteration_times: bool = False

    def __init__(self, job_info: JobInfo, rank_infos: Sequence[RankInfo], pfo_settings: PFOSettings) -> None:
        if type(self).next_schedule is not FrequencyScheduler.next_schedule:
            raise PlanError(
                f"{type(self).__name__} overrides next_schedule(), which is not called here, so that it would publish "
                "nothing: move what it does into _run(), where each `yield schedules` returns the results of a window "
                "(docs/coming-from-zeus.md)"
            )
        self.job_info = job_info
        self.rank_infos = sorted(rank_infos, key=lambda info: info.rank)
        self.world_size = job_info.world_size
        self.pfo_settings = pfo_settings
        self.orders: Mapping[int, InstructionOrder | None] = {}
        self.plan_inputs = PlanInputs()
        self._generator: ScheduleGenerator | None = None
        self._yielded: ScheduleRequest | None = None
        self._answer: ScheduleRequest | None = None  # what `request` returned last
        self._windows_wanted = 0  # yields that must be measured even if the schedules are the same as before
        self._answered_for = (0, 0)  # windows wanted and remeasure epoch when `request` made that answer
        self._done = False
        # What `_run` has planned, and what an earlier scheduler of the job had published for the same request.
        self._other_plan: tuple[list[FrequencySchedule], list[FrequencySchedule]] | None = None
        self._staying: list[FrequencySchedule] | None = None  # stays in force, whatever `_run` asks for meanwhile

    @abstractmethod
    def _run(self) -> ScheduleGenerator:
        """Yields requests; each `yield` returns the results that were measured under the request, sorted by rank.

            while not good_enough:
                results = yield schedules

        A yield is one of:

        - a list of `FrequencySchedule`: it is published with a new number and measured, even if it equals the last;
        - a `ScheduleRequest` with purpose `measure`: likewise, but its clocks are for a measuring window only;
        - a `ScheduleRequest` with purpose `run`: it is published only if its purpose or schedules differ from those
            in force. If they are the same, the next results come after the plan inputs have changed.

        When the generator ends, its last request stays in force for the rest of the training.
        """

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        """Returns the request that `_run` yielded last; adapted to plan inputs, if schedules depend on them.

        It is called often, so it must be fast and return the same list of schedules while nothing has changed.
        """
        return yielded

    def request(self) -> ScheduleRequest:
        """Returns what the policy asks for now, with the revision of the last call if nothing has to be published.

        That is so if schedules and purpose are the same, no new measuring window was asked for, and the plan inputs
        have the same remeasure epoch (a number that rises when the plan is to be measured again).

        Raises:
            PlanError: The generator ended before its first `yield`, or yielded something else than a request.
        """
        wanted = self._for_plan_inputs(self._yielded or self._first())
        if self._other_plan is not None:
            planned, published = self._other_plan
            if wanted.schedules == planned:
                wanted = replace(wanted, schedules=published)
        if self._staying is not None:
            wanted = replace(wanted, schedules=self._staying, purpose="run", converged=True)
        last = self._answer
        epoch = self._answered_for[1] if self._done else self.plan_inputs.remeasure_epoch
        asked_for = self._windows_wanted, epoch
        if last is None:
            self._answer = replace(wanted, revision=0)
        else:
            same = wanted.schedules is last.schedules or wanted.schedules == last.schedules
            if same and wanted.purpose == last.purpose and asked_for == self._answered_for:
                # The request keeps the turns with which it was published.
                self._answer = replace(last, message=wanted.message, converged=wanted.converged)
            else:
                self._answer = replace(wanted, revision=last.revision + 1)
        self._answered_for = asked_for
        return self._answer

    def was_published(self, schedules: list[FrequencySchedule], stays: bool = False) -> None:
        """In a replay: what was published for the present request differs from what this scheduler has planned.

        The published schedules ran, so the next results are theirs. They stay in force until what the policy wants
        changes. A policy that books results under plans of its own overrides this.

        Args:
            stays: Whether the earlier scheduler had measured them and kept them: then they stay in force, whatever the
                policy wants, until plan inputs change or results come.
        """
        self._staying = schedules if stays else None
        planned = self._for_plan_inputs(self._yielded or self._first()).schedules
        self._other_plan = list(planned), schedules
        if isinstance(planned, list):
            planned[:] = schedules  # policies keep this list, and take results to be of the schedules in it

    def continue_from(self, revision: int) -> None:
        """After a replay: gives the present request this revision; later ones have higher numbers."""
        self._answer = replace(self.request(), revision=revision)

    @property
    def done(self) -> bool:
        """Whether the generator has ended: the request in force is the last one, and no results are needed."""
        return self._done

    def next_schedule(self) -> list[FrequencySchedule]:
        """Returns the schedules of the request in force: the same list until the request changes."""
        return self.request().schedules

    @classmethod  # noqa: B027  most schedulers have nothing to check
    def check_args(cls, **args: Any) -> None:
        """Raises `PlanError` if an argument of the scheduler's own is invalid, if that can be seen without a job."""

    def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
        """Gives the policy what the ranks measured under the request in force, unless the scheduler is done.

        Results come from files that other users can write to: those that cannot be true are left out. Results come in
        any order, and not always from all ranks.

        Raises:
            PlanError: `request` was never called, or the generator yielded something else than a request.
        """
        if self._generator is None:
            raise PlanError(
                f"{type(self).__name__}: observe() before request(): there is no schedule yet that these "
                f"{len(profiling_results)} results could belong to"
            )
        if self._done:
            return
        self._staying = None
        results = plausible_results(profiling_results, {info.rank for info in self.rank_infos})
        try:
            yielded = self._generator.send(results)
        except StopIteration:
            self._done = True
            return
        self._take_request(yielded)

    def react(self, plan_inputs: PlanInputs) -> None:
        """Uses other plan inputs from now on; what `request` returns may change.

        Called before `request` or `observe`, and in a replay: plan inputs are recorded with each schedule.
        """
        if plan_inputs != self.plan_inputs:
            self._staying = None
        self.plan_inputs = plan_inputs

    def close(self) -> None:  # noqa: B027  most schedulers hold nothing
        """Frees what the scheduler holds."""

    def export_profile(self) -> str:
        """Returns what has been measured, as a profile CSV; empty if nothing was."""
        return ""

    def model(self) -> dict[str, float]:
        """Returns the figures that the policy plans with, for `pfo-fs report`; empty while there are none."""
        return {}

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Returns the plan inputs that follow from the iterations of all pipelines since the last call, in order.

        These calls are not replayed: a new daemon begins without them. They must not change the schedules.
        """
        return self.plan_inputs

    def _first(self) -> ScheduleRequest:
        """Starts the generator and returns its first request."""
        self._generator = self._run()
        try:
            yielded = next(self._generator)
        except StopIteration:
            self._generator, self._done = None, True
            raise PlanError(
                f"{type(self).__name__}._run ended before its first `yield`, so there is no schedule; "
                "a scheduler that leaves the clocks alone yields an empty list"
            ) from None
        return self._take_request(yielded)

    def _take_request(self, yielded: Any) -> ScheduleRequest:
        """Checks what the generator yielded and keeps it as the request in force."""
        schedules = yielded.schedules if isinstance(yielded, ScheduleRequest) else yielded
        is_list = isinstance(schedules, (list, tuple))
        for item in schedules if is_list else [schedules]:
            if not is_list or not isinstance(item, FrequencySchedule):
                what = f"a list with {type(item).__name__} in it" if is_list else type(item).__name__
                raise PlanError(
                    f"{type(self).__name__}._run yielded {what}; it must yield a list of FrequencySchedule, or a "
                    "ScheduleRequest with one"
                )
        self._windows_wanted += not isinstance(yielded, ScheduleRequest) or yielded.purpose == "measure"
        self._yielded = yielded if isinstance(yielded, ScheduleRequest) else ScheduleRequest(list(schedules))
        return self._yielded
