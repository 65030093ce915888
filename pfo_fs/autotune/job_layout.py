"""Which rank of a job runs which instructions at which clocks: its layout, plans as schedules, its runs in a result."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from pfo_fs.models import FrequencySchedule, InstructionOrders, JobInfo, ProfilingResult, RankInfo
from pfo_fs.planner import Pipeline, pipeline_from_orders
from pfo_fs.scheduler.parallel3d import stage_infos

Kind = tuple[int, str]
"""(stage, instruction)."""
RunInstruction = tuple[str, int, int]
"""(instruction, stage, MHz) of one instruction of an iteration; 0 MHz: the driver's default."""
MOST_WINDOWS_WITHOUT_ORDER = 10
"""After this many windows in which an order of instructions was still unknown, there is nothing to schedule."""


@dataclass(frozen=True)
class ClockPlan:
    """A clock for each instruction of each pipeline.

    Attributes:
        clocks_mhz: For each group of pipelines, the clock of each node.
        group_of: (data-parallel rank, group) of pipelines, sorted; those that are not named belong to group 0.
    """

    clocks_mhz: tuple[tuple[int, ...], ...]
    group_of: tuple[tuple[int, int], ...] = ()

    def of(self, pipeline: int) -> tuple[int, ...]:
        """Returns the clocks of a pipeline's nodes."""
        return self.clocks_mhz[dict(self.group_of).get(pipeline, 0)]

    def changes(self, first_nodes: Sequence[int]) -> int:
        """Returns the clock changes within an iteration, all ranks together, of the pipeline with the most changes."""
        ranks = list(pairwise(first_nodes))
        return max(
            sum(mhz != following for first, last in ranks for mhz, following in pairwise(clocks[first:last]))
            for clocks in self.clocks_mhz
        )


class JobLayout:
    """The ranks of a job and what they run.

    Args:
        rank_infos: Its ranks, sorted.
        orders: Returns the order of instructions of each rank, as far as it is known.

    Attributes:
        place: Each rank's place in the job.
        clocks_of_stage: For each pipeline-parallel rank, the clocks (MHz) that all its GPUs offer, highest first.
    """

    def __init__(
        self, job_info: JobInfo, rank_infos: Sequence[RankInfo], orders: Callable[[], InstructionOrders]
    ) -> None:
        self.job_info, self.rank_infos = job_info, rank_infos
        self.place = {info.rank: info for info in rank_infos}
        infos = stage_infos(job_info, rank_infos)
        self.clocks_of_stage = [sorted(info.available_frequencies, reverse=True) for info in infos]
        self._orders = orders

    def one_pipeline(self) -> list[int]:
        """Returns a rank of each stage, or nothing while the order of one of them is not known."""
        by_stage = {info.pp_rank: info.rank for info in reversed(self.rank_infos)}
        ranks = [by_stage[stage] for stage in sorted(by_stage)]
        return ranks if all(self._orders().get(rank) for rank in ranks) else []

    def order(self, rank: int) -> list[tuple[str, int]]:
        """Returns (instruction, stage) of a rank's iteration; empty while it is not known."""
        own = self.place[rank].pp_rank
        return [(name, own if stage is None else stage) for name, stage in self._orders().get(rank) or ()]

    def problem(self) -> str:
        """Returns why no clocks can be set in this job, for the status; empty if they can."""
        if not self.one_pipeline():
            return "the order of instructions is still unknown, so there is nothing to schedule"
        if not all(self.clocks_of_stage):
            return "there are GPUs whose clocks cannot be set, so there is nothing to schedule"
        return ""

    def schedule(self, rank: int, clocks_mhz: Sequence[int]) -> FrequencySchedule:
        """Returns the schedule of a rank, from the clock of each instruction of its iteration."""
        order = self.order(rank)
        names_stages = any(stage is not None for _, stage in self._orders().get(rank) or ())  # if the rank has several
        return FrequencySchedule(
            rank=rank,
            frequencies=[(name, mhz) for (name, _), mhz in zip(order, clocks_mhz, strict=True)],
            stages=[stage for _, stage in order] if names_stages else None,
        )

    def _nodes(self) -> dict[int, slice]:
        """The nodes of each pipeline-parallel rank, as in `Pipeline.instructions`."""
        firsts = accumulate((len(self.order(rank)) for rank in self.one_pipeline()), initial=0)
        return {pp_rank: slice(*ends) for pp_rank, ends in enumerate(pairwise(firsts))}

    def schedules_of(self, plan: ClockPlan) -> list[FrequencySchedule]:
        """Returns the schedule of each rank whose clocks can be set."""
        nodes, infos = self._nodes(), [info for info in self.rank_infos if info.available_frequencies]
        return [self.schedule(info.rank, plan.of(info.dp_rank)[nodes[info.pp_rank]]) for info in infos]

    def plan_of(self, schedules: Sequence[FrequencySchedule], max_clocks: ClockPlan) -> ClockPlan:
        """Returns the plan that schedules run; ranks without one, or with another order, run at max clocks."""
        nodes, highest_mhz = self._nodes(), max_clocks.clocks_mhz[0]
        rows: dict[int, list[int]] = {}
        for schedule in schedules:
            info = self.place[schedule.rank]
            own, row = nodes[info.pp_rank], rows.setdefault(info.dp_rank, list(highest_mhz))
            clocks = [mhz or top for (_, mhz), top in zip(schedule.frequencies, highest_mhz[own], strict=False)]
            if len(schedule.frequencies) == own.stop - own.start:
                row[own] = clocks
        group_of = dict(max_clocks.group_of)
        of_groups = {group_of.get(pipeline, 0): tuple(rows[pipeline]) for pipeline in sorted(rows, reverse=True)}
        clocks_mhz = (of_groups.get(group, highest_mhz) for group in range(len(max_clocks.clocks_mhz)))
        return ClockPlan(tuple(clocks_mhz), max_clocks.group_of)

    def run_by(self, rank: int, schedule: FrequencySchedule | None) -> list[RunInstruction]:
        """Returns what a rank ran: its order, at the clocks of its schedule."""
        order = self.order(rank)
        clocks = [0] * len(order) if schedule is None else [mhz for _, mhz in schedule.frequencies]
        # A rank did not run a schedule of another length than its order: `numbered_iterations` finds no such run.
        return [(*kind, mhz) for kind, mhz in zip(order, clocks, strict=True)] if len(clocks) == len(order) else []

    @property
    def kinds(self) -> list[Kind]:
        """(stage, instruction) of everything that the job runs; empty until all orders are known."""
        return sorted({(stage, name) for rank in self.one_pipeline() for name, stage in self.order(rank)})

    def kinds_of(self, pp_rank: int) -> list[Kind]:
        """Returns (stage, instruction) of everything that a pipeline-parallel rank runs, in order and with repeats."""
        rank = next(info.rank for info in self.rank_infos if info.pp_rank == pp_rank)
        return [(stage, name) for name, stage in self.order(rank)]

    @property
    def clocks_mhz(self) -> dict[int, list[int]]:
        """For each stage, the clocks that all its GPUs offer, highest first."""
        return {
            stage: self.clocks_of_stage[self.place[rank].pp_rank]
            for rank in self.one_pipeline()
            for _, stage in self.order(rank)
        }


class RunSample(NamedTuple):
    """A run of an instruction; `energy_j` is 0 where unknown, `clock_mhz` where it is unknown when clocks act."""

    time_s: float
    energy_j: float
    clock_mhz: float


def steps_of(result: ProfilingResult) -> Sequence[int]:
    """Returns the step of each iteration, or its place in the window where steps are not known."""
    count = len(result.iter_time)
    return result.iter_step if len(result.iter_step) == count else range(count)


def numbered_iterations(
    result: ProfilingResult, ran: Sequence[RunInstruction]
) -> Iterator[tuple[int, list[RunSample]]]:
    """Yields the place in the window, and the runs, of each iteration that ran `ran`."""
    counts = Counter(name for name, _, _ in ran)
    unknown = {name: [0] * count for name, count in counts.items()}
    for number in range(len(result.iter_time)):
        times_s, *others = (
            {name: rows[number] for name, rows in table.items() if number < len(rows) and rows[number]}
            for table in (result.time_breakdown, result.energy_breakdown, result.clock_breakdown)
        )
        if {name: len(values) for name, values in times_s.items()} == counts:
            energies_j, clocks_mhz = (
                other if all(len(other.get(name, ())) == count for name, count in counts.items()) else unknown
                for other in others
            )
            of_names = {name: zip(times_s[name], energies_j[name], clocks_mhz[name], strict=True) for name in counts}
            yield number, [RunSample(*next(of_names[name])) for name, _, _ in ran]


_COUNTED_AS = {
    "backward": ("gradient",),
    "backward_input": ("gradient",),
    "forward_backward": ("gradient", "recomputation"),
}
"""Instructions of a stage that are counted together, since each micro-batch has only one of them."""


def pipeline_of(orders: Sequence[Sequence[tuple[str, int]]]) -> Pipeline:
    """Returns the DAG of what the ranks run: the n-th forward of a stage is that of micro-batch n.

    The same holds for the n-th gradient: a `backward`, a `backward_input`, or a `forward_backward`, which computes its
    forward again. The n-th `backward_weight` belongs to the n-th `backward_input`.

    Args:
        orders: For each rank of a pipeline, its (instruction, stage) in order.

    Raises:
        PlanError: The instructions cannot run in these orders.
    """
    numbered = []
    for order in orders:
        seen: Counter[tuple[str, int]] = Counter()
        split: dict[int, list[int]] = defaultdict(list)
        row = []
        for name, stage in order:
            counted = _COUNTED_AS.get(name, (name,))
            microbatch = seen[counted[0], stage]
            if name == "backward_input":
                split[stage].append(microbatch)
            elif name == "backward_weight" and microbatch < len(split[stage]):
                microbatch = split[stage][microbatch]
            row.append((stage, name, microbatch))
            seen.update((each, stage) for each in counted)
        numbered.append(row)
    return pipeline_from_orders(numbered, name="as it runs")


def stretches_of(
    first_nodes: Sequence[int], times_s: Sequence[float], long_enough_s: float, clock_unknown_s: float
) -> list[int]:
    """Returns for each node the number of its stretch of the iteration; the numbers of rank r are r, r + 1, ...

    A stretch is one instruction, or several short ones that together last until a new clock acts; its last instruction
    begins when the clock is known to act.

    Args:
        first_nodes: The first node of each rank of a pipeline, and at the end the number of nodes.
        times_s: Mean duration of each node, in s.
        long_enough_s: Least duration of a stretch, in s.
        clock_unknown_s: For how long after a change, in s, it is unknown which clock an instruction has run at.
    """
    numbers: list[int] = []
    for rank, (first, last) in enumerate(pairwise(first_nodes)):
        number, lasted_s, last_began_s, left_s = rank, 0.0, 0.0, sum(times_s[first:last])
        for time_s in times_s[first:last]:
            if lasted_s >= long_enough_s <= left_s and last_began_s >= clock_unknown_s:
                number, lasted_s = number + 1, 0.0
            numbers.append(number)
            last_began_s = lasted_s
            lasted_s, left_s = lasted_s + time_s, left_s - time_s
    return numbers
