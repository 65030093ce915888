"""Which rank of a job runs which instructions, and at which clocks it can run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pfo_fs.autotune.instruction_runs import Kind, RunInstruction
from pfo_fs.models import FrequencySchedule, InstructionOrders, JobInfo, RankInfo
from pfo_fs.scheduler.parallel3d import stage_infos

MOST_WINDOWS_WITHOUT_ORDER = 10
"""After this many windows in which an order of instructions was still unknown, there is nothing to schedule."""


class JobLayout:
    """The ranks of a job and what they run.

    Args:
        job_info: The job.
        rank_infos: Its ranks, sorted.
        orders: Returns the order of instructions of each rank, as far as it is known.

    Attributes:
        job_info: As given.
        rank_infos: As given.
        place: Each rank's place in the job.
        clocks_of_stage: For each pipeline-parallel rank, the clocks (MHz) that all its GPUs offer, highest first.
    """

    def __init__(
        self, job_info: JobInfo, rank_infos: Sequence[RankInfo], orders: Callable[[], InstructionOrders]
    ) -> None:
        self.job_info = job_info
        self.rank_infos = rank_infos
        self.place = {info.rank: info for info in rank_infos}
        self.clocks_of_stage = [
            sorted(info.available_frequencies, reverse=True) for info in stage_infos(job_info, rank_infos)
        ]
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
        names_stages = any(stage is not None for _, stage in self._orders().get(rank) or ())  # it holds several
        return FrequencySchedule(
            rank=rank,
            frequencies=[(name, mhz) for (name, _), mhz in zip(order, clocks_mhz, strict=True)],
            stages=[stage for _, stage in order] if names_stages else None,
        )

    def run_by(self, rank: int, schedule: FrequencySchedule | None) -> list[RunInstruction]:
        """Returns what a rank ran: its order, at the clocks of its schedule."""
        order = self.order(rank)
        if schedule is None:
            return [(name, stage, 0) for name, stage in order]
        # If the schedule has another length, the rank did not run it: `numbered_iterations` then finds none of it.
        return [(name, stage, mhz) for (name, stage), (_, mhz) in zip(order, schedule.frequencies, strict=False)]

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
