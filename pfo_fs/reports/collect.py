"""Reads the records of one job in the shared directory into plain data: its state, or all records.

The state is what `pfo-fs status` and the metrics file read again and again; the page reads everything.
"""

import math
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean, median, stdev
from typing import TypeVar

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.store import JobFolder, bodies
from pfo_fs.turns import follows, half_of

T = TypeVar("T")

StagedOrder = list[tuple[str, int]]
"""(instruction, stage) of one rank's iteration, in order."""


@dataclass(frozen=True)
class Measured:
    """What was measured under one schedule.

    Attributes:
        iterations: The smallest number of iterations that a rank measured.
        first_step: The step of the first measured iteration.
        span_s: Mean time in s until the last instruction had ended: the median of all pipelines (data-parallel ranks).
        time_s: Mean duration of an iteration, in s, its end (gradient reduction, optimizer) included.
        energy_j: Mean energy of an iteration over all GPUs, in J; None while results of a rank are missing, or if
            GPUs do not measure it.
        time_spread, energy_spread: Relative standard deviation of time and energy over the iterations; None for one.
    """

    ranks: int
    iterations: int
    first_step: int
    span_s: float
    time_s: float
    energy_j: float | None
    time_spread: float | None = None
    energy_spread: float | None = None

    @property
    def power_w(self) -> float | None:
        """Mean power of all GPUs together, in W."""
        return None if self.energy_j is None else self.energy_j / self.time_s


@dataclass(frozen=True)
class Window:
    """One schedule: its first step, its clocks, and what was measured under it.

    Attributes:
        end_step: The first step of the next schedule; None for the last schedule.
        schedules: The clocks of each rank that has any; the other ranks leave their clocks alone.
        measured: What was measured, by the ranks that followed it; None while there are no results.
        without: The same of the ranks that had no turn; None if all ranks followed the schedule.
    """

    index: bodies.IndexBody
    end_step: int | None
    schedules: dict[int, FrequencySchedule]
    measured: Measured | None
    without: Measured | None = None

    @property
    def number(self) -> int:
        """The number of the schedule."""
        return self.index.number

    @property
    def clocks_mhz(self) -> list[int]:
        """The clocks of all instructions of all ranks that have any."""
        return [mhz for schedule in self.schedules.values() for _, mhz in schedule.frequencies]

    @property
    def by_hand(self) -> bool:
        """Whether a person has written the schedule."""
        return self.index.source.kind == "yaml"

    @property
    def follows_straggler(self) -> bool:
        """Whether the schedule was made for the pace of a straggler, found or announced."""
        inputs = self.index.source.plan_inputs
        return bool(inputs.slow_pipelines) or inputs.straggler is not None


@dataclass
class JobState:
    """The state of a job: what processes say of themselves now.

    Attributes:
        job: The job's description, written by rank 0.
        unreadable: What could not be read, and why.
    """

    folder: JobFolder
    job: bodies.JobBody
    current: bodies.CurrentBody | None = None
    end: bodies.EndBody | None = None
    claim: bodies.ClaimBody | None = None
    model: bodies.ModelBody | None = None
    progress: list[bodies.RankProgress] = field(default_factory=list)
    store_errors: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """The state: `waiting`, `running`, `broken` or `ended`."""
        said = self.current.state if self.current is not None else "waiting"
        return "ended" if self.end is not None else "running" if self.job.coordination == "none" else said

    @property
    def text(self) -> str:
        """The state in a word or two: how the job ended, or what its coordinator says."""
        return self.end.reason if self.end is not None else "archived" if self.folder.is_archived else self.word

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or was given up."""
        return self.end is not None or self.folder.is_archived

    @property
    def compared(self) -> bodies.ModelBody | None:
        """The model of the plan that stays; if the job is over, the newest model that knows what the plan saves."""
        return self.model.last or self.model if self.model is not None and self.is_over else self.model

    @property
    def energy_j(self) -> float | None:
        """Energy of all GPUs in all steps so far, in J; None while that of a rank is not known."""
        known = [rank.energy_j for rank in self.progress if rank.energy_j is not None]
        return sum(known) if known and len(known) == self.job.job_info.world_size else None

    @property
    def loads(self) -> LoadsKnown | None:
        """What is known of clocks from loads; None in a job without them."""
        return next((rank.loads for rank in self.progress if rank.loads is not None), None)


@dataclass
class JobData(JobState):
    """A job, as its folder describes it.

    Attributes:
        orders: The instructions that each rank runs in an iteration, as far as they are known.
        paces: The times of the latest iterations, as ranks report them.
    """

    ranks: list[bodies.RankBody] = field(default_factory=list)
    orders: dict[int, StagedOrder] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    paces: list[bodies.IterationTimesBody] = field(default_factory=list)

    @property
    def infos(self) -> list[RankInfo]:
        """Place and clocks of each registered rank."""
        return [rank.rank_info for rank in self.ranks]

    @property
    def last_step(self) -> int:
        """The last step that was reported; -1 before the first."""
        seen = [rank.step for rank in self.progress]
        seen += [step for iteration_times in self.paces for step, _, _ in iteration_times.steps]
        seen += [w.measured.first_step + w.measured.iterations - 1 for w in self.windows if w.measured]
        return max(seen, default=-1)

    @property
    def in_force(self) -> Window | None:
        """The schedule in force, or the one in force when the job ended."""
        number = self.current.number if self.current is not None else -1
        return next((window for window in self.windows if window.number == number), None)

    @property
    def judged(self) -> Window | None:
        """The schedule that `compared` is about: while another one is tried, the one that stays."""
        window, by_number = self.in_force, {window.number: window for window in self.windows}
        if self.compared is not self.model and self.compared is not None and not (window and window.by_hand):
            window = by_number.get(self.compared.number, window)
        stays = window is None or window.index.stays or window.by_hand
        return window if stays or window is None else by_number.get(window.index.after, window)

    @property
    def place(self) -> str:
        """The word in texts for a rank's place in its pipeline: "stage", unless ranks hold several stages."""
        several = any(len({stage for _, stage in order}) > 1 for order in self.orders.values())
        return "pipeline rank" if several else "stage"

    def pipeline_ranks(self, pipeline: int) -> list[RankInfo]:
        """The first ranks of a pipeline's stages; empty if one of them is missing."""
        by_stage = {i.pp_rank: i for i in self.infos if i.dp_rank == pipeline and not i.tp_rank}
        degree = self.job.job_info.pp_degree
        return [by_stage[stage] for stage in range(degree)] if set(range(degree)) <= set(by_stage) else []

    def pipeline_orders(self, pipeline: int) -> list[StagedOrder]:
        """The instructions that the ranks of one pipeline run; empty if those of a rank are not known."""
        orders = [self.orders.get(info.rank) for info in self.pipeline_ranks(pipeline)]
        return [order for order in orders if order] if all(orders) else []

    def at_max_clocks(self, window: Window, *, or_default: bool = False) -> bool:
        """Whether a schedule runs all at the highest clocks of the GPUs, or (`or_default`) leaves clocks alone."""
        tops = {info.rank: max(info.available_frequencies, default=0) for info in self.infos}
        return (or_default or len(window.schedules) == len(tops)) and all(
            mhz == tops[rank] or (or_default and not mhz)
            for rank, schedule in window.schedules.items()
            for _, mhz in schedule.frequencies
        )

    def entries(self, info: RankInfo, window: Window, step: int) -> list[tuple[str, int, int]]:
        """(instruction, stage, MHz) of what a rank ran in a step under a schedule; 0 MHz: its clock was left alone."""
        order, schedule = self.orders.get(info.rank, []), window.schedules.get(info.rank)
        if not follows(window.index.turns, step, half_of(info.pp_rank, info.dp_rank)):
            schedule = None
        if schedule is None or len(schedule.frequencies) != len(order):
            return [(name, stage, 0) for name, stage in order]
        return [(name, stage, mhz) for (name, stage), (_, mhz) in zip(order, schedule.frequencies, strict=True)]


class Quietly:
    """Reads records; notes the error of a record that cannot be read, instead of raising it."""

    def __init__(self, unreadable: MutableSequence[str]) -> None:
        self._unreadable = unreadable

    def __call__(self, read: Callable[..., T | None], *arguments: object, **place: int) -> T | None:
        try:
            return read(*arguments, **place)
        except (RecordError, StoreError) as error:
            self._unreadable.append(str(error.args[-1]))
            return None


def read_state(folder: JobFolder, most_hosts: int | None = None) -> JobState:
    """Reads the state of a job, live, ended or archived; what cannot be read is noted and left out.

    Args:
        most_hosts: Progress is read from at most this many hosts; None: from all.

    Raises:
        RecordError: `job.json` is missing or malformed, so nothing is known about this job.
        StoreError: The directory cannot be read.
    """
    job = folder.read_job()
    if job is None:
        raise RecordError(f"{folder.location}: job.json is missing; is this a job's folder?")
    state = JobState(folder, job)
    quietly = Quietly(state.unreadable)
    state.current, state.end = quietly(folder.read, bodies.CurrentBody), quietly(folder.read, bodies.EndBody)
    state.claim, state.model = quietly(folder.read, bodies.ClaimBody), quietly(folder.read, bodies.ModelBody)
    for name in folder.numbers(bodies.ProgressBody)[:most_hosts]:
        progress = quietly(folder.read, bodies.ProgressBody, name=name)
        if progress is not None:
            state.progress += progress.ranks
            state.store_errors += [progress.store_error] if progress.store_error else []
    return state


def collect_job(folder: JobFolder, newest: int | None = None) -> JobData:
    """Reads a job, its results and its schedules (or the first and `newest` ones); raises what `read_state` raises."""
    data = JobData(**vars(read_state(folder)))
    quietly = Quietly(data.unreadable)
    registered = folder.each_rank(read=lambda name: quietly(folder.read_ranks, name))
    data.ranks = [rank for rank in registered if _has_a_place(rank.rank_info, data.job.job_info)]
    for rank in folder.numbers(bodies.IterationTimesBody):
        times = quietly(folder.read, bodies.IterationTimesBody, rank=rank)
        data.paces += [times] if times is not None else []
    numbers = folder.schedule_numbers()
    numbers = numbers if newest is None else sorted({*numbers[:1], *numbers[-newest:]})
    indices = [quietly(folder.read, bodies.IndexBody, number=number) for number in numbers]
    committed = [index for index in indices if index is not None]
    for index, following in zip_longest(committed, committed[1:]):
        assert index is not None
        schedules = {}
        for info in sorted(data.infos, key=lambda info: info.pp_rank):  # neighbours share a plan: it is read once
            schedule = quietly(folder.read_schedule, index, info)
            if schedule is not None:
                schedules[info.rank] = schedule
        results = results_of(data, index.number, data.infos, data.unreadable)
        end_step = following.start_step if following else None
        measured, without = (_measured(data, results, index.turns, follow=follow) for follow in (True, False))
        data.windows.append(Window(index, end_step, schedules, measured, without))
    data.orders = _orders(data, quietly)
    return data


def results_of(
    data: JobData, number: int, infos: Sequence[RankInfo], unreadable: list[str] | None = None
) -> dict[int, bodies.ResultBody]:
    """The results of these ranks under a schedule; what cannot be read is left out, and noted in `unreadable`."""
    quietly = Quietly([] if unreadable is None else unreadable)
    wanted = {info.rank for info in infos}
    results: dict[int, bodies.ResultBody] = {}
    for name in data.folder.numbers(bodies.ResultsBody, number=number):
        for body in quietly(data.folder.read_results, number, name) or ():
            if body.result.rank in wanted and _has_figures(body.result):
                results.setdefault(body.result.rank, body)
    return results


def _has_a_place(info: RankInfo, job: JobInfo) -> bool:
    """Whether a rank's place exists in this job; loops over stages and pipelines rely on it."""
    return info.pp_rank < job.pp_degree and info.dp_rank < job.dp_degree and info.tp_rank < job.tp_degree


def _has_figures(result: ProfilingResult) -> bool:
    times, count = [*result.iter_time, *result.iter_span], len(result.iter_time)
    return (
        bool(times)
        and len(result.iter_energy) == count
        and {len(result.iter_span), len(result.iter_step)} <= {0, count}
        and all(0 < time_s < math.inf for time_s in times)
        and all(map(math.isfinite, result.iter_energy))
    )


def _measured(
    data: JobData, results: dict[int, bodies.ResultBody], turns: Sequence[int], *, follow: bool
) -> Measured | None:
    """What ranks measured while they followed a schedule, or did not: own energies; times while all did the same."""
    if not results:
        return None
    place = {info.rank: info for info in data.infos}
    halves = {rank: half_of(place[rank].pp_rank, place[rank].dp_rank) for rank in results}
    own = {rank: _of_turns(body.result, turns, {halves[rank]}, follow) for rank, body in results.items()}
    if not follow and any(own[rank] is body.result for rank, body in results.items()):
        return None  # a rank has followed it in all steps
    together = {rank: _of_turns(body.result, turns, {0, 1}, follow) for rank, body in results.items()}
    firsts = {rank: result for rank, result in together.items() if place[rank].pp_rank == 0} or together
    spans: dict[int, list[float]] = {}
    for rank, result in firsts.items():
        spans.setdefault(place[rank].dp_rank, []).append(fmean(result.iter_span or result.iter_time))
    total_j = sum(fmean(result.iter_energy) for result in own.values())
    complete = len(results) == data.job.job_info.world_size and total_j > 0  # 0 J: these GPUs have no energy counter
    return Measured(
        ranks=len(results),
        iterations=min(len(result.iter_time) for result in together.values()),
        first_step=min(body.first_step for body in results.values()),
        span_s=median(max(values) for values in spans.values()),
        time_s=median(fmean(result.iter_time) for result in firsts.values()),
        energy_j=total_j if complete else None,
        time_spread=_spread([result.iter_span or result.iter_time for result in firsts.values()], max),
        energy_spread=_spread([result.iter_energy for result in own.values()], sum) if complete else None,
    )


def _of_turns(result: ProfilingResult, turns: Sequence[int], halves: set[int], follow: bool) -> ProfilingResult:
    """The steps in which all ranks of these halves followed a schedule, or none did; all steps if that is never so."""
    steps = enumerate(result.iter_step or range(len(result.iter_time)))
    kept = [n for n, step in steps if all(follows(turns, step, half) == follow for half in halves)]
    lists = {name: getattr(result, name) for name in ("iter_time", "iter_span", "iter_energy")}
    update = {name: [values[n] for n in kept if values] for name, values in lists.items()}
    return result.model_copy(update=update) if kept else result


def _spread(by_rank: Sequence[Sequence[float]], of_step: Callable[[Iterable[float]], float]) -> float | None:
    """The relative standard deviation of a job's iterations, from those of its ranks; None for one iteration."""
    steps = [of_step(values) for values in zip(*by_rank, strict=False)]
    return stdev(steps) / fmean(steps) if len(steps) > 1 and fmean(steps) > 0 else None


def _orders(data: JobData, quietly: Quietly) -> dict[int, StagedOrder]:
    """The order that each rank reported, else that of another rank of its stage, else that of its last schedule."""
    seen: dict[int, list[tuple[str, int | None]]] = {}
    for rank in data.folder.numbers(bodies.OrderBody):
        body = quietly(data.folder.read, bodies.OrderBody, rank=rank)
        if body is not None:
            seen[rank] = body.instructions
    by_stage = {info.pp_rank: seen[info.rank] for info in data.infos if info.rank in seen}
    orders = {}
    for info in data.infos:
        order = seen.get(info.rank) or by_stage.get(info.pp_rank)
        if not order:
            last = next((w.schedules[info.rank] for w in reversed(data.windows) if info.rank in w.schedules), None)
            if last is None:
                continue
            stages: Sequence[int | None] = last.stages or [None] * len(last.frequencies)
            order = [(name, stage) for (name, _), stage in zip(last.frequencies, stages, strict=True)]
        orders[info.rank] = [(name, info.pp_rank if stage is None else stage) for name, stage in order]
    return orders
