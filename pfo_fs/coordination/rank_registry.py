"""The ranks of a job, as they register, and the instructions that each of them runs."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pfo_fs.errors import PlanError, RecordError
from pfo_fs.models import MAX_JOB_INSTRUCTIONS, FrequencySchedule, InstructionOrder, JobInfo, RankInfo
from pfo_fs.schedule_yaml.problems import name_ranks
from pfo_fs.store import JobFolder, bodies

_MOST_CLOCKS = 256
"""Of more clocks of all GPUs of a job, a policy gets this many at even distances, and the ends of each list."""
_MOST_CLOCK_LISTS = 64
"""At most this many different lists of clocks in a job: one for each kind of GPU, and for each limit of its clocks."""
_PAUSE_PER_READING = 2
"""After a reading that took t seconds there is a pause of 2 t: each listing also has the known ranks."""
_ORDERS_AGAIN_S, _ORDERS_SHARE = 10.0, 0.01
"""Known orders are read again every 10 s, and for 1 % of the time at most."""
NAMED = 16
"""At most this many ranks are listed by number."""


@dataclass
class RankRegistry:
    """The ranks of one job; `rank_infos` are all of them, if they are not read from the folder.

    Attributes:
        by_rank: The ranks that are known, by number.
        longest_poll_s: The longest interval at which a host polls, in s.
    """

    folder: JobFolder
    rank_infos: Sequence[RankInfo] | None = None
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.by_rank: dict[int, RankInfo] = {info.rank: info for info in self.rank_infos or ()}
        self.longest_poll_s = 0.0
        self._orders: dict[int, InstructionOrder] = {}
        self._orders_before: dict[int, InstructionOrder] = {}
        self._clocks: dict[tuple[int, ...], list[int]] = {}
        self._not_before = self._orders_not_before = -math.inf
        self._checked = False

    @property
    def infos(self) -> list[RankInfo]:
        """All known ranks, by number."""
        return [self.by_rank[rank] for rank in sorted(self.by_rank)]

    @property
    def planned_infos(self) -> list[RankInfo]:
        """All known ranks, with the clocks that a policy may use: if they are very many, some at even distances."""
        infos = self.infos
        offered = sorted({mhz for info in infos for mhz in info.available_frequencies})
        if len(offered) <= _MOST_CLOCKS:
            return infos
        last = len(offered) - 1
        kept = {offered[round(place * last / (_MOST_CLOCKS - 1))] for place in range(_MOST_CLOCKS)}
        few: dict[int, list[int]] = {}
        for info in infos:
            clocks = info.available_frequencies
            if clocks and id(clocks) not in few:
                ends = {min(clocks), max(clocks)}
                few[id(clocks)] = [mhz for mhz in clocks if mhz in kept or mhz in ends]
        return [
            info.model_copy(update={"available_frequencies": few.get(id(info.available_frequencies), [])})
            for info in infos
        ]

    def poll(self, job: JobInfo) -> bool:
        """Reads the ranks that have registered since the last call; returns whether there are any.

        Raises:
            PlanError: The places of all ranks contradict each other, or there are too many lists of clocks.
        """
        came = False
        began = self.monotonic()
        if len(self.by_rank) < job.world_size and began >= self._not_before:
            for body in self.folder.each_rank(known=self.by_rank):
                if body.rank_info.rank >= job.world_size:
                    raise RecordError(f"ranks/{body.rank_info.rank}.json: the job has {job.world_size} ranks")
                self._add(body)
                came = True
            now = self.monotonic()
            self._not_before = now + _PAUSE_PER_READING * (now - began)
        if not self._checked and len(self.by_rank) >= job.world_size:
            _check_places(self.infos, job)
            self._checked = True
        return came

    def _add(self, body: bodies.RankBody) -> None:
        clocks = body.rank_info.available_frequencies
        # Most ranks offer the same clocks: they share one list, which saves most of the memory.
        clocks = self._clocks.setdefault(tuple(clocks), clocks)
        if len(self._clocks) > _MOST_CLOCK_LISTS:
            raise PlanError(f"the ranks' GPUs have more than {_MOST_CLOCK_LISTS} different lists of clocks")
        rank = body.rank_info.rank
        known = {"available_frequencies": clocks, "host": body.rank_info.host or body.host}
        self.by_rank[rank] = body.rank_info.model_copy(update=known)
        self.longest_poll_s = max(self.longest_poll_s, body.poll_s)

    def missing(self, job: JobInfo) -> str:
        """Names the ranks that have not registered; empty if all have."""
        if len(self.by_rank) >= job.world_size:
            return ""
        return name_ranks([rank for rank in range(job.world_size) if rank not in self.by_rank], NAMED)

    def order_changed(self) -> bool:
        """Returns whether ranks run another order than `orders` has returned so far; then `orders` returns the new one.

        A new order counts once it was read twice: then all stages have written their orders, and these fit together.
        """
        began = self.monotonic()
        if began < self._orders_not_before or not self._orders:
            return False
        first = [info.rank for info in self.infos if not info.dp_rank and not info.tp_rank]
        found: dict[int, InstructionOrder] = {}
        with suppress(RecordError):
            found = {
                rank: body.instructions
                for rank in first
                if (body := self.folder.read(bodies.OrderBody, rank=rank)) is not None
            }
        took_s = self.monotonic() - began
        self._orders_not_before = began + max(_ORDERS_AGAIN_S, took_s / _ORDERS_SHARE)
        settled, self._orders_before = found == self._orders_before, found
        known = {rank: self._orders.get(rank) for rank in first}
        is_new = found.keys() == known.keys() and None not in known.values() and found != known
        if settled and is_new and sum(map(len, found.values())) <= MAX_JOB_INSTRUCTIONS:
            self._orders = found
            return True
        return False

    def orders(self, planned: Sequence[FrequencySchedule] = ()) -> dict[int, InstructionOrder | None]:
        """Returns the instruction order of each rank; None if nothing is known yet.

        A rank that has not written its order is assumed to run the order of another rank of its stage. If no rank of
        the stage has written one, it is assumed to run the order of its schedule in `planned`.

        Raises:
            PlanError: The job has more different orders than it may have.
        """
        seen, infos = self._orders, self.infos
        new = [rank for rank in self.folder.numbers(bodies.OrderBody) if rank not in seen]
        # Most ranks have the same order as another rank: they share one list, which saves most of the memory.
        known = {tuple(order): order for order in {id(order): order for order in seen.values()}.values()} if new else {}
        for rank in new:
            body = self.folder.read(bodies.OrderBody, rank=rank)
            if body is not None:
                seen[rank] = known.setdefault(tuple(body.instructions), body.instructions)
                if sum(map(len, known)) > MAX_JOB_INSTRUCTIONS:
                    raise PlanError(f"different orders of ranks have more than {MAX_JOB_INSTRUCTIONS:,} instructions")
        by_stage = {info.pp_rank: seen[info.rank] for info in infos if info.rank in seen}
        # Ranks of a stage share lists, so they get one order: otherwise checks and memory would grow with the ranks.
        shared = {_lists_of(schedule): schedule for schedule in planned}
        orders = {lists: _order_of(schedule) for lists, schedule in shared.items()}
        by_plan = {schedule.rank: orders[_lists_of(schedule)] for schedule in planned}
        return {
            info.rank: seen.get(info.rank) or by_stage.get(info.pp_rank) or by_plan.get(info.rank) for info in infos
        }


def _lists_of(schedule: FrequencySchedule) -> tuple[int, int]:
    return id(schedule.frequencies), id(schedule.stages)


def _order_of(schedule: FrequencySchedule) -> InstructionOrder:
    stages: Sequence[int | None] = schedule.stages or [None] * len(schedule.frequencies)
    return [(name, stage) for (name, _), stage in zip(schedule.frequencies, stages, strict=True)]


def _check_places(infos: Sequence[RankInfo], job: JobInfo) -> None:
    """Checks that every place (dp, pp, tp) is used once and is within the degrees."""
    taken: dict[tuple[int, int, int], int] = {}
    for rank in infos:
        place = (rank.dp_rank, rank.pp_rank, rank.tp_rank)
        degrees = (job.dp_degree, job.pp_degree, job.tp_degree)
        if any(at >= degree for at, degree in zip(place, degrees, strict=True)):
            raise PlanError(f"rank {rank.rank} registered as (dp, pp, tp) rank {place}, but the degrees are {degrees}")
        if place in taken:
            raise PlanError(f"ranks {taken[place]} and {rank.rank} both registered as (dp, pp, tp) rank {place}")
        taken[place] = rank.rank
