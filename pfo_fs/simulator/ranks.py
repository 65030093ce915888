"""The ranks of a simulated job: they register, apply the schedules that the helper sends, and report their progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pfo_fs.ipc import messages
from pfo_fs.ipc.messages import NewSchedule, RankPlan
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator.cluster import Cluster, Played
from pfo_fs.simulator.host import SimulatedHost
from pfo_fs.store import bodies
from pfo_fs.training.schedule_switcher import ScheduleSwitcher

RankSchedules = list[dict[int, Sequence[tuple[str, int]]]]
"""For each pipeline, the (instruction, MHz) of each of its ranks that has a schedule."""


class SimulatedRanks:
    """All training processes of a job, on one host with one helper.

    Args:
        cluster: The cluster that the job runs on.
        root: The shared directory.
        settings: Settings of the daemon that schedules the job.
        metadata: The job's metadata.
        may_set_clocks: Returns whether a rank's clocks can be set.

    Attributes:
        infos: The place and clocks of each rank, as registered.
        host: The host's helper.
        schedule: The schedule in force; its number is -1 if there is none.
    """

    def __init__(
        self,
        cluster: Cluster,
        root: str,
        settings: PFOSettings,
        metadata: str,
        may_set_clocks: Callable[[int], bool],
    ) -> None:
        self._cluster = cluster
        self._stages = stages = len(cluster.pipeline.orders)
        clocks_mhz = list(cluster.truth.clocks_mhz)
        self._gpus = gpus = cluster.gpus_per_rank
        places = [(dp, pp, tp) for dp in range(cluster.pipelines) for pp in range(stages) for tp in range(gpus)]
        self.infos = [
            RankInfo(
                rank=rank,
                dp_rank=dp,
                pp_rank=pp,
                tp_rank=tp,
                available_frequencies=clocks_mhz if may_set_clocks(rank) else [],
            )
            for rank, (dp, pp, tp) in enumerate(places)
        ]
        self.host = SimulatedHost(root, settings.scheduler, cluster.seed)
        self.schedule = NewSchedule(number=-1)
        self._switcher = ScheduleSwitcher(self._set_schedule, lambda text: None)
        self._clocks: Any = None
        self._join(settings, metadata)

    def _join(self, settings: PFOSettings, metadata: str) -> None:
        """Creates the job and registers all ranks."""
        stages, pipelines = self._stages, self._cluster.pipelines
        info = JobInfo(
            pp_degree=stages,
            dp_degree=pipelines,
            tp_degree=self._gpus,
            world_size=stages * pipelines * self._gpus,
            job_metadata=metadata,
        )
        body = bodies.JobBody(
            job_info=info, coordination="daemon", profile_steps=settings.profile_steps, host="simulated"
        )
        attempt = f"seed{self._cluster.seed}"
        model = getattr(self._cluster.truth, "model", None)
        self.host.create_job(body.model_dump(), attempt)
        self.host.join(self.infos, attempt, f"simulated {model.name}" if model else "simulated")

    @property
    def number(self) -> int:
        """The number of the schedule in force."""
        return self._switcher.number

    @property
    def measured_number(self) -> int:
        """The number of the schedule that a measurement of this step counts for."""
        return self._switcher.measured_number

    def receive(self, now_s: float) -> list[int]:
        """Keeps the schedules that the helper has sent; returns the numbers of the new ones."""
        new_numbers = []
        for new in self.host.poll(now_s):
            if new.number > self._switcher.newest:
                self._switcher.expect(new)
                new_numbers.append(new.number)
        return new_numbers

    def begin_step(self, step: int, now_s: float) -> Any:
        """Applies the schedule that is due at `step`; returns the clocks, for `Cluster.run`."""
        applied = self._switcher.step_begin(step)
        if applied is not None:
            late = 0 < applied.start_step < step
            message = messages.ScheduleApplied(number=applied.number, step=step, late=late)
            for info in self.infos:
                self.host.send_from_training(info.rank, message, now_s)
        if self._clocks is None:
            plans = {info.rank: self.schedule.plan_of(info.rank) for info in self.infos}
            self._clocks = self._cluster.clocks_of(self.by_pipeline(plans))
        return self._clocks

    def _set_schedule(self, schedule: NewSchedule | None) -> None:
        self.schedule, self._clocks = schedule or NewSchedule(number=-1), None

    def by_pipeline(self, schedules: Mapping[int, FrequencySchedule | RankPlan | None]) -> RankSchedules:
        """Sorts schedules of ranks by pipeline; a rank whose clocks cannot be set has none."""
        found: RankSchedules = [{} for _ in range(self._cluster.pipelines)]
        for info in self.infos:
            schedule = schedules.get(info.rank)
            if schedule is not None and info.available_frequencies:
                found[info.dp_rank][info.pp_rank] = schedule.frequencies
        return found

    def report(self, step: int, played: Played, now_s: float) -> None:
        """Reports progress and pace of the iteration that ended at `now_s`; after step 0, also the order."""
        if step == 0:
            for stage, order in enumerate(self._cluster.pipeline.orders):
                several = len({instruction.stage for instruction in order}) > 1
                seen = [(i.name, i.stage if several else None) for i in order]
                self.host.send_from_training(stage * self._gpus, messages.OrderSeen(instructions=seen), now_s)
        number = self.measured_number
        last = self._cluster.pipeline.first_nodes[1] - 1  # a pipeline's first rank reports its own last instruction
        for pipeline, span_s in enumerate(played.ends_s[last]):
            report = messages.ProgressReport(
                step=step,
                number=number,
                iter_time=played.time_s,
                iteration_times=[(step, number, float(span_s))],
                switching=self._cluster.switching(pipeline, 0),
            )
            self.host.send_from_clocks(pipeline * self._stages * self._gpus, report, now_s)

    def end(self, now_s: float) -> None:
        """Writes the job's end."""
        self.host.send_from_training(0, messages.Goodbye(reason="finished", message="simulated"), now_s)
