"""The interface of a scheduling policy, written as a generator: schedules out, results in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionOrder, JobInfo, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.settings import PFOSettings

ScheduleGenerator: TypeAlias = Generator[list[FrequencySchedule], list[ProfilingResult], None]


@dataclass(frozen=True)
class ScheduleRequest:
    """What a policy asks for.

    Attributes:
        revision: Another number means another request: the coordinator publishes a new schedule. 0 is the first one.
        schedules: At most one per rank; a rank that is left out keeps its default clocks.
        purpose: `run`: in force until the next request. `measure`: for a measuring window only; if no other request
            follows in time, the ranks go back to default clocks.
        message: What the policy is doing, in one line for people.
        converged: Whether the policy has measured this schedule under load and keeps it.
    """

    revision: int
    schedules: list[FrequencySchedule]
    purpose: Literal["run", "measure"] = "run"
    message: str = ""
    converged: bool = False


class IterationTime(NamedTuple):
    """One iteration of one pipeline, as its first stage saw it.

    Attributes:
        pipeline: Data-parallel rank.
        step: The iteration.
        number: The schedule that was in force.
        span_s: From its begin to the end of the last instruction, in s: without waiting for other pipelines.
        throttled: What holds the clocks of one of its GPUs back, in words; empty if nothing does.
    """

    pipeline: int
    step: int
    number: int
    span_s: float
    throttled: str = ""


class FrequencyScheduler(ABC):
    """A policy: says what clocks the ranks run at, and learns from what they measured.

    **Deterministic by contract.** The only state that survives a daemon is what is in the shared directory: after a
    restart, or on another host, a scheduler is made anew from the same arguments and `observe` is replayed over the
    recorded results. Given the same results it must yield the same schedules: no clock, no unseeded randomness, no
    files that change, no iteration over unordered sets.

    Args:
        job_info: The job.
        rank_infos: All its ranks, in any order.
        pfo_settings: Settings of the scheduling side.

    Attributes:
        job_info: As given.
        rank_infos: Sorted by rank.
        world_size: Number of ranks.
        pfo_settings: As given.
        orders: Instructions of each rank in the order of an iteration, as soon as they are known; whoever runs the
            scheduler sets it before `observe`.
        plan_inputs: What schedules are made for, besides results.
        status_text: A line for people: what the scheduler is doing.
        measuring: Whether what it has yielded last is for measuring only: if no more comes, clocks go back to their
            default.
        plans: Whether its methods may take seconds; whoever runs it does something else meanwhile.
        converged: Whether it has measured what is in force, and leaves it.
        watches_iteration_times: Whether `assess` wants to know how long iterations take.
    """

    plans: bool = False
    measuring: bool = False
    watches_iteration_times: bool = False
    status_text: str = ""
    converged: bool = False

    def __init__(self, job_info: JobInfo, rank_infos: Sequence[RankInfo], pfo_settings: PFOSettings) -> None:
        self.job_info = job_info
        self.rank_infos = sorted(rank_infos, key=lambda info: info.rank)
        self.world_size = job_info.world_size
        self.pfo_settings = pfo_settings
        self.orders: Mapping[int, InstructionOrder | None] = {}
        self.plan_inputs = PlanInputs()
        self._generator: ScheduleGenerator | None = None
        self._schedules: list[FrequencySchedule] | None = None
        self._done = False
        self._revision = 0
        self._requested: tuple[list[FrequencySchedule], int, int] | None = None  # schedules, yields, remeasure epoch
        self._yields = 0

    @abstractmethod
    def _run(self) -> ScheduleGenerator:
        """Yields schedules, and gets from each `yield` the results that were measured under it, sorted by rank.

            while not converged:
                results = yield schedules

        A rank that a yielded list leaves out keeps its default clocks. A generator that ends leaves the last list it
        yielded in force for the rest of the training.
        """

    def request(self) -> ScheduleRequest:
        """Returns what the policy asks for now, with another revision if that differs from the last call's answer.

        Raises:
            PlanError: As `next_schedule`.
        """
        schedules = self.next_schedule()
        epoch = self.plan_inputs.remeasure_epoch
        if self._requested is not None:
            before, yields, before_epoch = self._requested
            same = schedules is before or schedules == before
            if not same or (yields, before_epoch) != (self._yields, epoch):
                self._revision += 1
        self._requested = schedules, self._yields, epoch
        return ScheduleRequest(
            revision=self._revision,
            schedules=schedules,
            purpose="measure" if self.measuring else "run",
            message=self.status_text,
            converged=self.converged,
        )

    def continue_from(self, revision: int) -> None:
        """After a replay: the request as it is now has this revision, and later ones have higher numbers."""
        self.request()
        self._revision = revision

    @property
    def done(self) -> bool:
        """Whether the generator has ended: the schedule in force is the last one, and no results are needed."""
        return self._done

    def next_schedule(self) -> list[FrequencySchedule]:
        """Returns the schedules for the iterations to come; the same ones until `observe` is called.

        Raises:
            PlanError: The generator ended before its first `yield`, or yielded something else than schedules.
        """
        if self._schedules is None:
            self._generator = self._run()
            try:
                self._schedules = self._checked(next(self._generator))
            except StopIteration:
                self._done = True
                raise PlanError(
                    f"{type(self).__name__}._run ended before its first `yield`, so there is no schedule; "
                    "a scheduler that leaves the clocks alone yields an empty list"
                ) from None
        return self._schedules

    @classmethod  # noqa: B027  most schedulers have nothing to check
    def check_args(cls, **args: Any) -> None:
        """Checks the scheduler's own arguments as far as that goes without a job; called when a daemon starts.

        Raises:
            PlanError: Something is wrong with them.
        """

    def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
        """Hands over what the ranks measured under the schedules that `next_schedule` returned last.

        Does nothing once the scheduler is done.

        Args:
            profiling_results: One per rank, in any order. A rank whose measurement is unusable may be missing.

        Raises:
            PlanError: `next_schedule` was never called, so that there is nothing these results could belong to; or
                the generator yielded something else than schedules.
        """
        if self._schedules is None or self._generator is None:
            raise PlanError(
                f"{type(self).__name__}: observe() before next_schedule(): there is no schedule yet that these "
                f"{len(profiling_results)} results could belong to"
            )
        if self._done:
            return
        before = self.next_schedule()
        try:
            yielded = self._generator.send(sorted(profiling_results, key=lambda result: result.rank))
        except StopIteration:
            self._done = True
            return
        self._schedules = self._checked(yielded)
        if self.next_schedule() is not before:
            self._yields += 1

    def react(self, plan_inputs: PlanInputs) -> None:
        """Takes note of another plan inputs; what `next_schedule` returns may change.

        Called before `next_schedule` or `observe`, also in a replay: a schedule's plan inputs is recorded with it.
        """
        self.plan_inputs = plan_inputs

    def load_profile(self, csv: str, source: str) -> None:  # noqa: B027  most schedulers measure nothing
        """Takes what earlier jobs of the same kind had measured; once, as soon as all orders are known.

        Args:
            csv: As `findings` gives it; from a file that others can write to.
            source: Where it comes from.
        """

    def findings(self) -> str:
        """What has been measured, as a profile CSV for later jobs of the same kind; empty for nothing."""
        return ""

    def model(self) -> dict[str, float]:
        """The figures that it plans with, as `pfo-fs report` shows them; empty while there are none."""
        return {}

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Looks at iterations that have ended since the last call, and says which plan inputs that is.

        Not replayed: what it learns is lost with the daemon, and learned again. Changes nothing in the schedules.

        Args:
            iteration_times: Of all pipelines, in the order of their steps.
        """
        return self.plan_inputs

    def _checked(self, yielded: Any) -> list[FrequencySchedule]:
        if not isinstance(yielded, (list, tuple)):
            raise PlanError(
                f"{type(self).__name__}._run yielded {type(yielded).__name__}; "
                "it must yield a list of FrequencySchedule"
            )
        for item in yielded:
            if not isinstance(item, FrequencySchedule):
                raise PlanError(
                    f"{type(self).__name__}._run yielded a list with {type(item).__name__} in it; "
                    "it must yield a list of FrequencySchedule"
                )
        return list(yielded)
