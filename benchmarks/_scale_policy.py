"""The policy of `scale.py`: one plan for all stages is measured once by all ranks, and then stays in force."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, ScheduleRequest
from pfo_fs.scheduler.base import ScheduleGenerator
from pfo_fs.scheduler.plan_file import read_plan
from pfo_fs.settings import PFOSettings


class MeasureOnce(FrequencyScheduler):
    """Runs a plan; publishes it again once the results of all ranks have been read."""

    def __init__(
        self, job_info: JobInfo, rank_infos: Sequence[RankInfo], pfo_settings: PFOSettings, solution_path: str
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        stages = [FrequencySchedule(rank=0, frequencies=steps) for steps in read_plan(Path(solution_path))]
        self._schedules = [stages[info.pp_rank].model_copy(update={"rank": info.rank}) for info in self.rank_infos]

    def _run(self) -> ScheduleGenerator:
        results = yield ScheduleRequest(self._schedules)
        assert len(results) == self.world_size, f"{len(results)} results of {self.world_size} ranks"
        yield ScheduleRequest(list(reversed(self._schedules)), message="the results of all ranks have been read")
