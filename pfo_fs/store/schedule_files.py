"""A job's schedules: plan files, the index that commits them, and one file per rank for users.

Ranks read `index.json` and the plan that it names for them, often one plan for all ranks of a host. After the commit,
in jobs of up to 1,024 ranks, every rank's plan is also there as `<rank>.json`. Up to 32 ranks with the same plan share
one file by hard links, each of which costs the file server one call; without hard links every rank gets a copy.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from pfo_fs.errors import RecordError
from pfo_fs.models import MAX_JOB_INSTRUCTIONS, FrequencySchedule, RankInfo
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.records import RecordFolder
from pfo_fs.turns import FOR_EVER, Term

_RANK_FILES_AT_ONCE = 64
_MOST_RANKS_WITH_FILES = 1024
"""A job with more ranks gets no files of single ranks: folders with many names burden file servers."""


@dataclass
class ScheduleFiles(RecordFolder):
    """The schedules in a job's folder."""

    _last_plan: tuple[str, FrequencySchedule] | None = None
    _named: int = -1  # the schedule of which every rank has its file

    def write_schedule(
        self,
        number: int,
        generation: int,
        start_step: int,
        source: b.Source,
        schedules: Sequence[FrequencySchedule],
        rank_infos: Sequence[RankInfo],
        term: Term = FOR_EVER,
    ) -> bool:
        """Writes schedule `number` and commits it with its index; False if another process committed that number.

        Plan files are named after their content, so a restarted or a second coordinator never mixes two plans.
        """
        self.files.make_folder(f"{self.path}/{layout.schedule(number)}")
        until, after, turns = term[:3]
        held = b.OfSchedule(number=number, start_step=start_step, until=until, after=after, turns=list(turns)).__dict__
        files: dict[str, str] = {}
        for group, ranks, schedule in _groups(schedules, rank_infos):
            frequencies, stages = schedule.frequencies, schedule.stages
            plan = b.PlanBody(ranks=ranks, frequencies=frequencies, stages=stages, **held)
            digest = hashlib.sha256(plan.model_dump_json(exclude={"ranks"}).encode()).hexdigest()[:12]
            files[group] = f"{group.replace(':', '-')}.{digest}.json"
            self.write(plan, name=files[group])
        index = b.IndexBody(generation=generation, source=source, files=files, **held)
        return self.write(index)

    def write_rank_files(self, number: int, rank_infos: Sequence[RankInfo]) -> bool:
        """Makes files `<rank>.json` of a committed schedule, 64 in a call; returns True once no more can be made.

        After that, a call costs nothing.
        """
        if number == self._named or len(rank_infos) > _MOST_RANKS_WITH_FILES:
            return True
        folder = f"{self.path}/{layout.schedule(number)}"
        try:
            index = self.read(b.IndexBody, number=number)
        except RecordError:
            index = None
        there, is_whole = set(self.files.names(folder)), index is not None
        plans = [(index and index.plan_file(info), f"{info.rank}.json") for info in rank_infos]
        missing = sorted((plan, name) for plan, name in plans if plan and name not in there)
        for plan, pairs in groupby(missing[:_RANK_FILES_AT_ONCE], key=itemgetter(0)):
            names = [name for _, name in pairs]
            data = self.files.read(f"{folder}/{plan}", layout.PLAN_LIMIT)
            is_whole = is_whole and data is not None
            for at in range(0, len(names), b.MOST_NAMES_PER_FILE):
                if data is not None:
                    self.files.claim_each(folder, names[at : at + b.MOST_NAMES_PER_FILE], data)
        if is_whole and len(missing) <= _RANK_FILES_AT_ONCE:
            self._named = number
        return number == self._named

    def schedule_numbers(self) -> list[int]:
        """Numbers that have a folder, committed or not, ascending; those after a large gap are planted and left out."""
        return layout.without_jumps(layout.numbers(self.files.names(f"{self.path}/{layout.SCHEDULES}")))

    def read_schedule(self, index: b.IndexBody, rank_info: RankInfo) -> FrequencySchedule | None:
        """Reads the schedule of one rank; None if the index has no plan for it: its clock is left alone."""
        name = index.plan_file(rank_info)
        if name is None:
            return None
        path = self.path_of(b.PlanBody, number=index.number, name=name)
        if self._last_plan is None or self._last_plan[0] != path:  # the ranks of a host often share a stage
            plan = self.read(b.PlanBody, number=index.number, name=name)
            if plan is None:
                raise RecordError(f"{self.files.root / path} is missing")
            try:
                self._last_plan = (path, plan.schedule(rank_info.rank))
            except ValueError as error:
                raise RecordError(f"{self.files.root / path}: {error}") from None
        return self._last_plan[1].model_copy(update={"rank": rank_info.rank})

    def read_schedules(self, index: b.IndexBody, rank_infos: Sequence[RankInfo]) -> list[FrequencySchedule]:
        """Reads the schedules of all ranks that have one, each plan file once; an error if they are too long."""
        found: dict[str | None, FrequencySchedule | None] = {}
        instructions = 0
        for info in rank_infos:
            name = index.plan_file(info)
            if name not in found:
                found[name] = plan = self.read_schedule(index, info)
                instructions += len(plan.frequencies) if plan is not None else 0
            if instructions > MAX_JOB_INSTRUCTIONS:
                where = self.files.root / self.path_of(b.IndexBody, number=index.number)
                raise RecordError(f"{where}: its plans have more than {MAX_JOB_INSTRUCTIONS:,} instructions")
        plans = ((info.rank, found[index.plan_file(info)]) for info in rank_infos)
        return [plan.model_copy(update={"rank": rank}) for rank, plan in plans if plan is not None]


def _groups(
    schedules: Sequence[FrequencySchedule], rank_infos: Sequence[RankInfo]
) -> list[tuple[str, list[int], FrequencySchedule]]:
    """Groups ranks that do the same: `stage:S` where all ranks of stage S agree, else `rank:R` one by one."""
    by_rank = {schedule.rank: schedule for schedule in schedules}
    groups: list[tuple[str, list[int], FrequencySchedule]] = []
    by_stage = sorted(rank_infos, key=lambda info: (info.pp_rank, info.rank))
    for stage, infos in groupby(by_stage, key=lambda info: info.pp_rank):
        ranks = [info.rank for info in infos]
        own = [by_rank[rank] for rank in ranks if rank in by_rank]
        if len(own) == len(ranks) and all(
            (one.frequencies, one.stages) == (own[0].frequencies, own[0].stages) for one in own
        ):
            groups.append((f"stage:{stage}", ranks, own[0]))
        else:
            groups += [(f"rank:{one.rank}", [one.rank], one) for one in own]
    return groups
