"""A job of two pipelines under a scheduler that reacts to targets and iteration times, and what tests do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml
from clock import Clock
from jobs import current_of, index_of, plan_text, rank_infos, write_results, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.models import FrequencySchedule, PlanInputs, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, SharedDirectory, bodies

ORDER: list[tuple[str, int | None]] = [("forward", None), ("backward", None)]
INFOS = rank_infos(1, 2)


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
        given = self.plan_inputs
        mhz = 1410 - 15 * self._results - 150 * (given.target is not None) - 300 * bool(given.slow_pipelines)
        if mhz not in self._kept:
            self._kept[mhz] = schedules_at(self.rank_infos, mhz)
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


def schedules_at(infos: Sequence[RankInfo], mhz: int) -> list[FrequencySchedule]:
    return [FrequencySchedule(rank=info.rank, frequencies=[(name, mhz) for name, _ in ORDER]) for info in infos]


class Job:
    """A job's folder with its newest coordinator; each call but `restart` polls for some seconds of the clock."""

    def __init__(self, folder: JobFolder, clock: Clock, **settings: Any) -> None:
        self.folder, self.clock = folder, clock
        self.restart(**settings)

    def restart(
        self,
        scheduler: type[FrequencyScheduler] | str = ReactingScheduler,
        around: Mapping[str, Any] = {},
        **settings: Any,
    ) -> None:
        """Another coordinator on a fresh view of the folder; `around`: how it differs from that of a daemon."""
        name = scheduler if isinstance(scheduler, str) else f"{scheduler.__module__}:{scheduler.__name__}"
        fresh = SharedDirectory(self.folder.files, "coordinator").job(self.folder.job_id)
        given = {"kind": "daemon", "generation": 1, "monotonic": self.clock, **around}
        self.coordinator = Coordinator(fresh, PFOSettings(scheduler=name, **settings), **given)

    def poll(self, seconds: float = 2.0) -> Job:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.coordinator.poll()
            self.clock.now += 0.5
        return self

    def yaml(self, text: str | None, seconds: float = 4.0) -> None:
        """A person saves schedule.yaml, or removes it."""
        path = self.folder.location / "schedule.yaml"
        path.unlink() if text is None else path.write_text(text)
        self.poll(seconds)

    def train(self, step: int, number: int = -1, seconds: float = 2.0) -> None:
        write_step(self.folder, step, number=number)
        self.poll(seconds)

    def steps(self, seconds: int) -> bodies.CurrentBody:
        """Training makes a step a second; returns what `current.json` says after the last one."""
        for _ in range(seconds):
            write_step(self.folder, int(self.clock.now), 1.0)
            self.poll(1.0)
        return self.current

    def measure(self, number: int, time_s: float = 1.0, infos: Sequence[RankInfo] = INFOS, seconds: float = 2) -> None:
        write_results(self.folder, number, list(infos), time_s)
        self.poll(seconds)

    def iterate(self, step: int, number: int, *spans_s: float, seconds: float = 12.0) -> None:
        """The first rank of each pipeline tells how long a step took."""
        for rank, span_s in enumerate(spans_s):
            self.folder.write(bodies.IterationTimesBody(rank=rank, steps=[(step, number, span_s)]))
        self.train(step, number, seconds)

    def tell_orders(self, times: int = 1) -> None:
        for rank in (0, 1):
            self.folder.write(bodies.OrderBody(rank=rank, instructions=ORDER * times))

    @property
    def numbers(self) -> list[int]:
        return self.folder.schedule_numbers()

    @property
    def current(self) -> bodies.CurrentBody:
        return current_of(self.folder)

    def index(self, number: int) -> bodies.IndexBody:
        return index_of(self.folder, number)

    @property
    def clocks(self) -> list[tuple[str, int]]:
        """What rank 0 runs under the announced schedule; empty: its clocks are left alone."""
        schedule = self.folder.read_schedule(self.index(self.current.number), INFOS[0])
        return [] if schedule is None else list(schedule.frequencies)

    @property
    def mhz(self) -> int:
        return self.clocks[0][1]

    @property
    def yaml_status(self) -> dict[str, Any]:
        return dict(yaml.safe_load((self.folder.location / "schedule.status.yaml").read_text()))


def by_plan(root: Path, stages: int, microbatches: int, mhz: int) -> dict[str, Any]:
    """Settings under which a job follows a plan of this shape, which is written beside it."""
    plan = root / "plan.py"
    plan.write_text(plan_text(stages, microbatches, mhz))
    return {"scheduler": "PointSolution", "scheduler_args": {"solution_path": str(plan)}}
