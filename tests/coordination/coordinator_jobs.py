"""A job of two pipelines under a scheduler that reacts to targets and iteration times, and what tests do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from clock import Clock
from jobs import current_of, index_of, make_job, plan_text, rank_infos, register, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.models import FrequencySchedule, PlanInputs, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, SharedDirectory, bodies

ORDER: list[tuple[str, int | None]] = [("forward", None), ("backward", None)]


class ReactingScheduler(FrequencyScheduler):
    """Runs at 1410 MHz, less 15 for each result, less 150 with a target, less 300 for a slow pipeline."""

    watches_iteration_times = True
    purpose: Literal["run", "measure"] = "run"
    calls: list[object] = []  # noqa: RUF012  what the newest instance was called with, for the tests

    def _run(self) -> ScheduleGenerator:
        ReactingScheduler.calls = []
        self._results = 0
        self._kept: dict[object, list[FrequencySchedule]] = {}
        while True:
            results = yield ScheduleRequest([], self.purpose)
            self._results += min(1, round(results[0].iter_time[0]))  # results of 0 s change nothing
            ReactingScheduler.calls.append([result.iter_time[0] for result in results])

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        plan_inputs = self.plan_inputs
        mhz = (
            1410 - 15 * self._results - 150 * (plan_inputs.target is not None) - 300 * bool(plan_inputs.slow_pipelines)
        )
        if mhz not in self._kept:
            self._kept[mhz] = [
                FrequencySchedule(rank=info.rank, frequencies=[(name, mhz) for name, _ in ORDER])
                for info in self.rank_infos
            ]
        return replace(yielded, schedules=self._kept[mhz])

    def react(self, plan_inputs: PlanInputs) -> None:
        ReactingScheduler.calls.append(plan_inputs)
        super().react(plan_inputs)

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        ReactingScheduler.calls.append(list(iteration_times))
        slow = {one.pipeline: one.span_s for one in iteration_times if one.span_s > 1}
        return self.plan_inputs.model_copy(update={"slow_pipelines": slow})

    def export_profile(self) -> str:
        return f"stage,instruction,frequency,time,energy\n0,forward,{1410 - self._results},1,1\n"


def use(scheduler: type[FrequencyScheduler]) -> dict[str, object]:
    """Settings under which jobs are scheduled by this class."""
    return {"scheduler": f"{scheduler.__module__}:{scheduler.__name__}"}


def coordinate_by(folder: JobFolder, clock: Clock, **settings: object) -> Coordinator:
    """A fresh coordinator on a fresh view of the folder, as after a restart."""
    fresh = SharedDirectory(folder.files, "coordinator").job(folder.job_id)
    return Coordinator(fresh, PFOSettings(**settings), kind="daemon", generation=1, monotonic=clock)  # type: ignore[arg-type]


def coordinate(folder: JobFolder, clock: Clock, scheduler: type[FrequencyScheduler] = ReactingScheduler) -> Coordinator:
    return coordinate_by(folder, clock, **use(scheduler))


def poll(coordinator: Coordinator, clock: Clock, seconds: float = 10.0) -> None:
    """Polls for some seconds of the coordinator's clock."""
    end = clock.now + seconds
    while clock.now < end:
        coordinator.poll()
        clock.now += 0.5


def clock_mhz(folder: JobFolder) -> int:
    current = current_of(folder)
    index = index_of(folder, current.number)
    schedule = folder.read_schedule(index, rank_infos(1, 2)[0])
    assert schedule is not None
    return schedule.frequencies[0][1]


def straggle(folder: JobFolder) -> None:
    """Both pipelines take longer under schedule 0."""
    for rank in (0, 1):
        folder.write(bodies.IterationTimesBody(rank=rank, steps=[(7, 0, 1.5)]))
    write_step(folder, 7, number=0)


def registered(root: Path, pp: int, dp: int = 1) -> tuple[JobFolder, list[RankInfo]]:
    """A job all of whose ranks have registered."""
    folder, infos = make_job(root, pp, dp), rank_infos(pp, dp)
    register(folder, infos)
    return folder, infos


def by_plan(
    root: Path, stages: int, microbatches: int, mhz: int, scheduler: str = "PointSolution"
) -> dict[str, object]:
    """Settings under which a job follows a plan of this shape, which is written beside it."""
    plan = root / "plan.py"
    plan.write_text(plan_text(stages, microbatches, mhz))
    return {"scheduler": scheduler, "scheduler_args": {"solution_path": str(plan)}}


def say_yaml(folder: JobFolder, text: str) -> None:
    folder.files.publish(f"{folder.path}/schedule.yaml", text.encode())
