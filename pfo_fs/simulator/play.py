"""Plays a whole job in virtual time: the real store, coordinator, scheduler, planner and meter on a simulated cluster.

Only training, the processes around it and the passing of time are played. What is written to the directory is what a
real job writes, so `pfo-fs status`, `report` and `trace` work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pfo_fs.coordination import Coordinator
from pfo_fs.device import page
from pfo_fs.device.meter import StepMeter
from pfo_fs.errors import RecordError
from pfo_fs.ipc import messages
from pfo_fs.ipc.messages import NewSchedule, RankPlan
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator.cluster import Cluster, Played
from pfo_fs.simulator.host import SimulatedHost
from pfo_fs.store import JobFolder, SharedDirectory, bodies
from pfo_fs.training.schedule_switcher import PendingSchedule, ScheduleSwitcher

_LOOKS_S = (0.3, 1.3, -0.3)
"""When the daemon looks, after the begin of an iteration or before its end: as often as matters."""
_LEAD_S = 1.5
_TICK_JITTER_S = 0.001
"""How well the time of a tick of the energy counter is known."""


class Iteration(NamedTuple):
    """One iteration, for people and programs.

    Attributes:
        step: Its number.
        number: The schedule in force.
        time_s: What it took.
        energy_j: Of all GPUs.
        spans_s: What each pipeline took.
        status_text: What the scheduler says.
    """

    step: int
    number: int
    time_s: float
    energy_j: float
    spans_s: list[float]
    status_text: str


@dataclass
class Play:
    """One job.

    Args:
        cluster: What it runs on.
        root: The shared directory.
        settings: What the daemon schedules with.
        metadata: Of the job.
        mute_ranks: Ranks whose results never reach the directory.
        without_rights: Ranks whose clocks cannot be set.
        offers_clocks: Whether any rank's can.
        daemon_runs: Whether a daemon schedules the job.

    Attributes:
        folder: The job's folder.
        first_plan: Number of the first schedule that is a plan, and no measuring window; None while there is none.
    """

    cluster: Cluster
    root: Path
    settings: PFOSettings
    metadata: str = "simulated"
    folder: JobFolder = field(init=False)
    first_plan: int | None = field(init=False, default=None)
    mute_ranks: set[int] = field(default_factory=set)
    without_rights: set[int] = field(default_factory=set)
    offers_clocks: bool = True
    daemon_runs: bool = True

    def __post_init__(self) -> None:
        stages, pipelines = len(self.cluster.pipeline.orders), self.cluster.pipelines
        self._infos = [
            RankInfo(
                rank=dp * stages + pp,
                dp_rank=dp,
                pp_rank=pp,
                tp_rank=0,
                available_frequencies=list(self.cluster.truth.clocks_mhz) if self._may_set(dp * stages + pp) else [],
            )
            for dp in range(pipelines)
            for pp in range(stages)
        ]
        info = JobInfo(
            pp_degree=stages,
            dp_degree=pipelines,
            tp_degree=1,
            world_size=stages * pipelines,
            job_metadata=self.metadata,
        )
        body = bodies.JobBody(
            job_info=info, coordination="daemon", profile_steps=self.settings.profile_steps, host="simulated"
        )
        attempt = f"seed{self.cluster.seed}"
        self._host = SimulatedHost(str(self.root), self.settings.scheduler, self.cluster.seed)
        self._host.create_job(body.model_dump(), attempt)
        self._host.join(self._infos, attempt, self._gpu_name())
        self.folder = self._host.folder
        self._virtual_s = 0.0
        self.coordinator = self._new_coordinator()
        self._switcher: ScheduleSwitcher[NewSchedule] = ScheduleSwitcher(self._set_schedule, lambda text, why: None)
        self._schedule = NewSchedule(number=-1)
        self._clocks: Any = None
        self._names = _Names()
        self._meters = {info.rank: StepMeter(self.settings.profile_steps, self._names) for info in self._infos}
        self._energies_j = dict.fromkeys(self._meters, 0.0)
        self._measured_number = page.NO_NUMBER
        self._step = -1
        self._last: _Marked | None = None

    def _may_set(self, rank: int) -> bool:
        return self.offers_clocks and rank not in self.without_rights

    def _gpu_name(self) -> str:
        model = getattr(self.cluster.truth, "model", None)
        return f"simulated {model.name}" if model else "simulated"

    def _new_coordinator(self) -> Coordinator:
        fresh = SharedDirectory(self.folder.files, "simulator").job(self.folder.job_id)
        return Coordinator(
            fresh, self.settings, kind="daemon", generation=1, lead_s=_LEAD_S, monotonic=lambda: self._virtual_s
        )

    def restart_daemon(self) -> None:
        """The daemon dies, and another one takes over with nothing but what stands in the directory."""
        self.coordinator = self._new_coordinator()

    def run(self, iterations: int, until: Callable[[Iteration], bool] = lambda _: False) -> Iterator[Iteration]:
        """Plays iterations, until there were enough or `until` says so."""
        for _ in range(iterations):
            iteration = self.step()
            yield iteration
            if until(iteration):
                return

    def step(self) -> Iteration:
        """Plays one iteration."""
        if self._step < 0:
            self._look()
        self._step += 1
        self._take_what_is_due()
        begin_s = self.cluster.now_s
        played = self.cluster.run(self._clocks)
        spans = [float(span) for span in played.spans_s]
        self._measure(begin_s, played)
        for look_s in _LOOKS_S:
            after_s = look_s if look_s > 0 else played.time_s + look_s
            self._virtual_s = max(self._virtual_s, begin_s + min(max(after_s, 0.0), 0.9 * played.time_s))
            self._look()
        self._say(begin_s, played, spans)
        return Iteration(self._step, self._switcher.number, played.time_s, played.energy_j, spans, self._status_text())

    def end(self) -> None:
        """Writes the job's end."""
        self._host.training_says(0, messages.Goodbye(reason="finished", message="simulated"), self._virtual_s)

    def _status_text(self) -> str:
        scheduler = self.coordinator.scheduler
        return self.coordinator.message or (scheduler.request().message if scheduler else "")

    # ---- schedules

    def _look(self) -> None:
        """The daemon looks, and the ranks look what it has written."""
        if self.daemon_runs:
            self.coordinator.poll()
        for new in self._host.look(self._virtual_s):
            if new.number > self._switcher.newest:
                self._switcher.expect(PendingSchedule(new.number, new.start_step, new.steps, new))
                scheduler = self.coordinator.scheduler
                if self.first_plan is None and scheduler is not None and scheduler.model():
                    self.first_plan = new.number

    def _take_what_is_due(self) -> None:
        applied = self._switcher.step_begin(self._step)
        if applied is not None:
            late = 0 < applied.start_step < self._step
            said = messages.ScheduleApplied(number=applied.number, step=self._step, late=late)
            for info in self._infos:
                self._host.training_says(info.rank, said, self._virtual_s)
        if self._clocks is None:
            plans = {info.rank: self._schedule.plan_of(info.rank) for info in self._infos}
            self._clocks = self.cluster.clocks_of(self._by_pipeline(plans))

    def _set_schedule(self, schedule: NewSchedule | None) -> None:
        self._schedule, self._clocks = schedule or NewSchedule(number=-1), None

    def schedules_of(self, number: int) -> list[dict[int, Sequence[tuple[str, int]]]]:
        """For each pipeline, the (instruction, MHz) of each of its ranks under schedule `number`.

        Raises:
            RecordError: There is no such schedule.
        """
        index = self.folder.read_index(number)
        if index is None:
            raise RecordError(f"{self.folder.path}/sched/{number}: was never committed")
        return self._by_pipeline({info.rank: self.folder.read_schedule(index, info) for info in self._infos})

    def _by_pipeline(
        self, schedules: Mapping[int, FrequencySchedule | RankPlan | None]
    ) -> list[dict[int, Sequence[tuple[str, int]]]]:
        stages = len(self.cluster.pipeline.orders)
        found: list[dict[int, Sequence[tuple[str, int]]]] = [{} for _ in range(self.cluster.pipelines)]
        for rank, schedule in schedules.items():
            if schedule is not None and self._may_set(rank):
                found[rank // stages][rank % stages] = schedule.frequencies
        return found

    # ---- what ranks say

    def _say(self, begin_s: float, played: Played, spans: Sequence[float]) -> None:
        """Progress and pace of the iteration that has ended."""
        now_s = begin_s + played.time_s
        self._virtual_s = now_s
        stages, number = len(self.cluster.pipeline.orders), self._switcher.measured_number
        if self._step == 0:
            for rank, order in enumerate(self.cluster.pipeline.orders):
                several = len({instruction.stage for instruction in order}) > 1
                seen = [(i.name, i.stage if several else None) for i in order]
                self._host.training_says(rank, messages.OrderSeen(instructions=seen), now_s)
        for pipeline, span_s in enumerate(spans):
            report = messages.ProgressReport(
                step=self._step,
                number=number,
                iter_time_s=played.time_s,
                iteration_times=[(self._step, number, span_s)],
            )
            self._host.clocks_say(pipeline * stages, report, now_s)

    # ---- measuring

    def _measure(self, begin_s: float, played: Played) -> None:
        """Lets the counters tick over this iteration, and the meters take the marks of the one before."""
        last, self._last = self._last, None
        number = self._switcher.measured_number
        wanted = number >= 0 and number != self._measured_number
        if wanted:
            self._last = _Marked(self._step, self._switcher.number, begin_s, played)
        if last is None and not wanted:
            return
        firsts = self.cluster.pipeline.first_nodes
        for info in self._infos:
            rows = slice(firsts[info.pp_rank], firsts[info.pp_rank + 1])
            meter = self._meters[info.rank]
            self._tick(info, meter, rows, begin_s, played, wanted)
            if last is not None:
                for measured in meter.take(self._marks(info, rows, last)):
                    if measured is not None:
                        self._measured_number = measured.number
                        if info.rank in self.mute_ranks:
                            continue
                        report = messages.MeasurementReport(
                            number=measured.number, first_step=measured.first_step, result=measured.result(info.rank)
                        )
                        self._host.clocks_say(info.rank, report, self._virtual_s)
        if self._measured_number == self._switcher.number:
            self._last = None

    def _tick(
        self, info: RankInfo, meter: StepMeter, rows: slice, begin_s: float, played: Played, wanted: bool
    ) -> None:
        """Adds the counter's ticks of an iteration to a rank's energy curve, and what its clock did."""
        import numpy as np

        pipeline, tick_s = info.dp_rank, self.cluster.nuisances.tick_s
        starts, ends = played.starts_s[rows, pipeline], played.ends_s[rows, pipeline]
        corners = np.empty(2 * len(starts) + 2)
        corners[0], corners[-1] = 0.0, played.time_s
        corners[1:-1:2], corners[2:-1:2] = starts, ends
        watts = np.full(len(corners) - 1, self.cluster.truth.blocking_power_w)
        watts[1::2] = played.powers_w[rows, pipeline]
        energies = self._energies_j[info.rank] + np.concatenate([[0.0], np.cumsum(np.diff(corners) * watts)])
        self._energies_j[info.rank] = float(energies[-1])
        first, last = np.ceil(begin_s / tick_s), np.floor((begin_s + played.time_s) / tick_s)
        ticks = np.arange(first, last + 1) * tick_s
        readings = np.interp(ticks - begin_s, corners, energies)
        seen = ticks + self.cluster.noise(len(ticks), _TICK_JITTER_S)
        for at_s, energy_j in zip(seen.tolist(), readings.tolist(), strict=True):
            meter.curve.add(round(at_s * 1e9), energy_j)
        schedule = self._schedule.plan_of(info.rank)
        if schedule is not None and wanted and self._may_set(info.rank):
            before, in_force = 0, 0
            for start_s, (_, mhz) in zip(starts.tolist(), schedule.frequencies, strict=True):
                in_force = mhz or in_force
                if in_force != before:
                    meter.clock_set(round((begin_s + start_s) * 1e9), in_force)
                    before = in_force
            meter.clock_set(round((begin_s + float(played.spans_s.max())) * 1e9), 0)

    def _marks(self, info: RankInfo, rows: slice, marked: _Marked) -> list[tuple[int, int]]:
        """The marks that training wrote in an iteration."""
        begin_s, played = marked.begin_s, marked.played
        order = self.cluster.pipeline.orders[info.pp_rank]
        starts = played.starts_s[rows, info.dp_rank].tolist()
        ends = played.ends_s[rows, info.dp_rank].tolist()
        marks = [(round(begin_s * 1e9), page.STEP_BEGIN | marked.step << 8), (marked.number, page.NUMBER)]
        for instruction, start_s, end_s in zip(order, starts, ends, strict=True):
            place = self._names.place(instruction.name) << 8
            marks.append((round((begin_s + start_s) * 1e9), page.BEGIN | place))
            marks.append((round((begin_s + end_s) * 1e9), page.END | place))
        marks.append((round((begin_s + ends[-1]) * 1e9), page.LAST_END))
        marks.append((round((begin_s + float(played.spans_s.max())) * 1e9), page.STEP_END))
        return marks


class _Marked(NamedTuple):
    """An iteration whose marks are still to be taken."""

    step: int
    number: int
    begin_s: float
    played: Played


class _Names:
    """The name table of the page."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def place(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def name(self, index: int) -> str:
        return self._names[index]
