"""A well-formed `schedule.yaml`, and its schedules for a job, from the ranks' instructions and offered clocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionOrder, InstructionOrders, JobInfo, RankInfo, Straggler, Target
from pfo_fs.schedule_yaml.clock_entries import ClockByName, ClockEntry, InstructionList, SameClock, SelectedEntry
from pfo_fs.schedule_yaml.problems import (
    OrderUnknown,
    Problem,
    ScheduleProblems,
    clock_problem,
    closest,
    describe,
    name_ranks,
    one_problem,
    order_problem,
)

_MOST_UNUSED, _MOST_COMPARED = 20, 1000
"""At most 20 unused names of an entry are reported, none after 20 problems; each is compared with 1,000 (10 ms)."""
_MOST_RESOLVED = 1_000_000
"""The most instructions that are resolved (some 3 s); ranks with the same entry, stage, order and clocks count once."""
_WHO = "\0"  # placeholder in a message until all its ranks are known


@dataclass(frozen=True)
class ScheduleDocument:
    """A well-formed `schedule.yaml`.

    Attributes:
        for_all: The entry below `all`: for instructions without a clock from the rank's or its stage's entry.
        stages: The entries below `stages`; no stage is in two of them.
        ranks: The entries below `ranks`; no rank is in two of them.
        target: The target that the scheduler is to plan for.
        turns: Which ranks follow the clocks in which step, as in `Term`; empty: all of them in all steps.
        until, until_line: The first step that no longer follows the clocks, None: all steps follow them; and its line.
    """

    for_all: ClockEntry | None = None
    stages: tuple[SelectedEntry, ...] = ()
    ranks: tuple[SelectedEntry, ...] = ()
    turns: tuple[int, ...] = ()
    until: int | None = None
    until_line: int = 0
    target: Target | None = None
    straggler: Straggler | None = None

    @property
    def has_clocks(self) -> bool:
        """Whether the document sets clocks in place of the scheduler; otherwise it only has requests to it."""
        return self.for_all is not None or bool(self.stages or self.ranks)

    def check_straggler(self, pipelines: int) -> None:
        """Raises `PlanError` if the job lacks the pipeline that is announced as straggler."""
        at = self.straggler.pipeline if self.straggler else None
        if at is not None and at >= pipelines:
            have = "one pipeline, 0" if pipelines == 1 else f"pipelines 0 to {pipelines - 1}"
            raise PlanError(f"straggler: there is no pipeline {at}; the job has {have}")

    def check_until(self, first_step: int) -> None:
        """Raises `ScheduleProblems` if the document ends before `first_step`, the first step that can follow it."""
        if self.until is not None and self.until <= first_step:
            reason = f"until: ranks can follow this file from step {first_step} on only; name a step after that"
            raise one_problem(self.until_line, reason)

    def resolve(
        self, job_info: JobInfo, rank_infos: Sequence[RankInfo], orders: InstructionOrders
    ) -> list[FrequencySchedule]:
        """Returns the schedules that the document describes for a job, sorted by rank.

        A rank whose entry is 0, or without one, gets no schedule. Lists are used as written; if the order of a rank is
        known, they are compared with it. If a rank holds several stages, an entry below `stages` is for the
        instructions of that stage on any rank, and `all` gives the clocks that the entry lacks.

        Args:
            rank_infos: The job's ranks; if a rank offers no clocks, any clock is accepted.
            orders: The instructions of each rank, in order, as (name, stage or None); None while not known. Ranks with
                the same order share one list.

        Raises:
            ScheduleProblems: Something does not fit the job; the exception holds all problems, with their lines.
            OrderUnknown: A number or a mapping is given for ranks whose order is not known yet.
        """
        return _Resolver(self, job_info, rank_infos, orders).run()


_Outcome = tuple[FrequencySchedule | None, tuple[tuple[int, str], ...], int]
"""The result for one rank: its schedule; problems as (line, reason); the line that needs its order, 0: none does."""


class _Resolver:
    """Resolves one document for one job; used once."""

    def __init__(
        self, document: ScheduleDocument, job_info: JobInfo, rank_infos: Sequence[RankInfo], orders: InstructionOrders
    ) -> None:
        self._document = document
        self._job = job_info
        self._infos = sorted(rank_infos, key=lambda info: info.rank)
        self._orders = orders
        self._problems: dict[tuple[int, str], list[int]] = {}
        self._used: set[tuple[int, tuple[str, int | None]]] = set()  # (id of a ClockByName, its key)
        self._consulted: dict[int, tuple[ClockByName, list[int]]] = {}
        self._new: list[tuple[int, str]] = []  # problems of the rank that is being resolved

    def run(self) -> list[FrequencySchedule]:
        stage_entries = self._by_number(self._document.stages, "stage", self._stages())
        rank_entries = self._by_number(self._document.ranks, "rank", range(self._job.world_size))
        schedules: list[FrequencySchedule] = []
        unknown: dict[int, int] = {}  # rank -> line
        outcomes: dict[object, _Outcome] = {}
        resolved = 0
        for info in self._infos:
            order = self._orders.get(info.rank)
            # Ranks of a stage usually share all of this, so 16,384 ranks take little longer than 8.
            key = (id(rank_entries.get(info.rank)), info.pp_rank, id(order), tuple(info.available_frequencies))
            if key not in outcomes:
                resolved += len(order or ())
                if resolved > _MOST_RESOLVED:
                    most = f"together they have more than {_MOST_RESOLVED:,} instructions"
                    raise PlanError(f"too many ranks have entries of their own: {most}; write ranges of ranks")
                outcomes[key] = self._look(info, order, rank_entries.get(info.rank), stage_entries)
            schedule, problems, unknown_line = outcomes[key]
            for line, reason in problems:
                self._problems.setdefault((line, reason), []).append(info.rank)
            if unknown_line:
                unknown[info.rank] = unknown_line
            if schedule is not None:
                schedules.append(schedule.model_copy(update={"rank": info.rank}))
        if not unknown:  # otherwise a rank whose order is not known yet may run such a name
            self._find_unused_names()
        if self._problems:
            raise ScheduleProblems(
                Problem(line, reason.replace(_WHO, name_ranks(ranks)))
                for (line, reason), ranks in self._problems.items()
            )
        if unknown:
            raise OrderUnknown(sorted(unknown), min(unknown.values()))
        return schedules

    def _stages(self) -> set[int]:
        orders = {id(order): order for order in self._orders.values()}.values()  # ranks share them
        named = {stage for order in orders for _, stage in order or () if stage is not None}
        return named.union(range(self._job.pp_degree))

    def _by_number(
        self, selection: Sequence[SelectedEntry], what: str, known: range | set[int]
    ) -> dict[int, ClockEntry]:
        highest = max(known)
        entries: dict[int, ClockEntry] = {}
        for selected in selection:
            if selected.last > highest:
                reason = f"{what} {selected.last}: this job has the {what}s 0 to {highest}"
                self._problems[selected.line, reason] = []
            for number in range(selected.first, min(selected.last, highest) + 1):
                entries[number] = selected.entry
        return entries

    def _look(
        self,
        info: RankInfo,
        order: InstructionOrder | None,
        rank_entry: ClockEntry | None,
        stage_entries: dict[int, ClockEntry],
    ) -> _Outcome:
        here = {info.pp_rank} if not order else {_stage(stage, info) for _, stage in order}
        top = rank_entry
        if top is None and len(here) == 1:
            top = stage_entries.get(min(here))
        if top is None and not any(stage in stage_entries for stage in here):
            top = self._document.for_all
            if top is None:
                return None, (), 0
        if isinstance(top, SameClock) and top.mhz == 0:
            return None, (), 0
        self._new = []
        if isinstance(top, InstructionList):
            instructions = top if order is None or self._fits(order, top) else None
        elif order is None:
            return None, (), top.line if top else 0
        else:
            layers = [(rank_entry, None), *((stage_entries.get(stage), stage) for stage in sorted(here))]
            instructions = self._in_order(info, order, [*layers, (self._document.for_all, None)])
        schedule = None if instructions is None else self._schedule(info, instructions)
        return schedule, tuple(dict.fromkeys(self._new)), 0

    def _fits(self, order: InstructionOrder, listing: InstructionList) -> bool:
        difference = order_problem([name for name, _ in listing.frequencies], listing.stages, order, _WHO)
        if difference is not None:
            lines = listing.lines or [listing.line]
            self._new.append((lines[min(difference[0], len(lines) - 1)], difference[1]))
        return difference is None

    def _in_order(
        self, info: RankInfo, order: InstructionOrder, layers: Sequence[tuple[ClockEntry | None, int | None]]
    ) -> InstructionList | None:
        """Gives each instruction the clock of the first entry that has one; an entry may be for one stage only."""
        clocks: list[tuple[int, int] | None] = [None] * len(order)  # MHz, line
        for entry, part in layers:
            places = [i for i, (_, stage) in enumerate(order) if part in (None, _stage(stage, info))]
            without = [i for i in places if clocks[i] is None]
            if entry is None or not without:
                continue
            if isinstance(entry, InstructionList):
                if not self._fits([order[i] for i in places], entry):
                    return None
                of_entry = zip((mhz for _, mhz in entry.frequencies), entry.lines, strict=True)
                listed = dict(zip(places, of_entry, strict=True))
                for i in without:
                    clocks[i] = listed[i]
            elif isinstance(entry, SameClock):
                for i in without:
                    clocks[i] = entry.mhz, entry.line
            else:
                for i in without:
                    clocks[i] = self._by_name(info, entry, order[i][0], _stage(order[i][1], info))
        if not any(clocks):
            return None
        given = [clock or (0, 0) for clock in clocks]
        stages = [stage for _, stage in order if stage is not None]
        return InstructionList(
            [(name, mhz) for (name, _), (mhz, _) in zip(order, given, strict=True)],
            stages if len(stages) == len(order) else None,
            [line for _, line in given],
        )

    def _by_name(self, info: RankInfo, entry: ClockByName, name: str, stage: int) -> tuple[int, int] | None:
        _, ranks = self._consulted.setdefault(id(entry), (entry, []))
        if ranks[-1:] != [info.rank]:
            ranks.append(info.rank)
        found = None
        for key in ((name, None), (name, stage)):
            if key in entry.clocks:
                self._used.add((id(entry), key))
                found = entry.clocks[key]
        return found

    def _find_unused_names(self) -> None:
        """Reports names that no rank of their entry runs: they are typing errors."""
        for entry, ranks in self._consulted.values():
            unused = [key for key in entry.clocks if (id(entry), key) not in self._used]
            if not unused or len(self._problems) >= _MOST_UNUSED:
                continue
            names = sorted({name for rank in ranks for name, _ in self._orders.get(rank) or ()})[:_MOST_COMPARED]
            for key in unused[:_MOST_UNUSED]:
                hint = closest(key[0], names, "there are")
                reason = f"{_WHO}: no instruction {describe(*key)!r} runs there; {hint}"
                self._problems[entry.clocks[key][1], reason] = ranks

    def _schedule(self, info: RankInfo, instructions: InstructionList) -> FrequencySchedule | None:
        available = frozenset(info.available_frequencies)
        before = len(self._new)
        for line, mhz in dict.fromkeys(
            zip(instructions.lines, (mhz for _, mhz in instructions.frequencies), strict=True)
        ):
            problem = clock_problem(mhz, available, _WHO)
            if problem:
                self._new.append((line, problem))
        if len(self._new) > before:
            return None
        return FrequencySchedule(rank=info.rank, frequencies=instructions.frequencies, stages=instructions.stages)


def _stage(stage: int | None, info: RankInfo) -> int:
    return info.pp_rank if stage is None else stage
