"""Schedulers that do not measure anything: a fixed plan, or default clocks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.schedule_yaml import OrderUnknown, ScheduleDocument, ScheduleProblems, parse_schedule_yaml
from pfo_fs.schedule_yaml.nodes import MAX_YAML_BYTES
from pfo_fs.scheduler.base import FrequencyScheduler, ScheduleGenerator
from pfo_fs.scheduler.parallel3d import make_3d_parallel
from pfo_fs.scheduler.plan_file import StagePlan, read_plan
from pfo_fs.settings import PFOSettings
from pfo_fs.user_files import read_user_file


class FixedSchedules(FrequencyScheduler):
    """Runs the same schedules from the first step to the last; another process has read them from a plan."""

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        schedules: list[FrequencySchedule],
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self.schedules = schedules

    def _run(self) -> ScheduleGenerator:
        yield self.schedules


class Manual(FrequencyScheduler):
    """Leaves all clocks alone; a user can set them with a `schedule.yaml` in the job's folder."""

    def _run(self) -> ScheduleGenerator:
        yield []


class PointSolution(FixedSchedules):
    """Runs one fixed plan from the first step to the last.

    Args:
        solution_path: lowtime's `freqs_pipeline_*.py`, with one list per rank; or a plan in the form of
            `schedule.yaml`, whose entries are lists of instructions. The file is read once, here.
    """

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        solution_path: str | Path,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings, [])
        self.solution_path = Path(solution_path)
        plan = _read(self.solution_path)
        self.schedules = self._from_yaml(plan) if isinstance(plan, ScheduleDocument) else self._from_lowtime(plan)

    @classmethod
    def check_args(cls, **args: Any) -> None:
        """Reads the plan, so that a missing or malformed plan is found before the first job."""
        _read(Path(args["solution_path"]))

    def _from_lowtime(self, plan: Sequence[StagePlan]) -> list[FrequencySchedule]:
        if len(plan) != self.world_size:
            stages = self.job_info.pp_degree
            hint = ""
            if len(plan) == stages:
                hint = "; it has one per stage, which is what PointSolution3D runs on all ranks of a stage"
            raise PlanError(
                f"{self.solution_path}: the plan is for {len(plan)} ranks, but the job has {self.world_size} ranks "
                f"in {stages} stages{hint}"
            )
        return [FrequencySchedule(rank=rank, frequencies=steps) for rank, steps in enumerate(plan)]

    def _from_yaml(self, document: ScheduleDocument) -> list[FrequencySchedule]:
        try:
            return document.resolve(self.job_info, self.rank_infos, {})
        except ScheduleProblems as error:
            raise PlanError(f"{self.solution_path}: {error}", line=error.line) from error
        except OrderUnknown as error:
            raise PlanError(
                f"{self.solution_path}: a plan file must list the instructions one by one, because it is read before "
                f"it is known what the ranks run; line {error.line} gives a single clock, or one per name",
                line=error.line,
            ) from error


def _read(path: Path) -> ScheduleDocument | list[StagePlan]:
    if path.suffix.lower() == ".py":
        return read_plan(path)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise PlanError(f"{path}: a plan file ends in .py (lowtime) or .yaml")
    try:
        plan = parse_schedule_yaml(read_user_file(path, MAX_YAML_BYTES, "a plan"))
    except ScheduleProblems as error:
        raise PlanError(f"{path}: {error}", line=error.line) from error
    if keys := [key for key in ("turns", "until", "target", "straggler") if getattr(plan, key) not in (None, ())]:
        raise PlanError(f"{path}: a plan runs from the first step to the last; leave {' and '.join(keys)} out")
    return plan


PointSolution3D = make_3d_parallel(PointSolution)
