"""Plays a whole job in virtual time: the real store, coordinator, scheduler, planner and meter on a simulated cluster.

Only training, the processes around it and the passing of time are played. What is written to the directory is what a
real job writes, so `pfo-fs status`, `report` and `trace` work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pfo_fs.coordination import Coordinator
from pfo_fs.device import page
from pfo_fs.device.meter import StepMeter
from pfo_fs.errors import RecordError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator.cluster import Cluster, Played
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies
from pfo_fs.training.schedule_switcher import PendingSchedule, ScheduleSwitcher

_LOOKS_S = (0.3, 1.3, -0.3)
"""When the daemon looks, after the begin of an iteration or before its end: as often as matters."""
_LEAD_S = 1.5
_TICK_JITTER_S = 0.001
"""How well the time of a tick of the energy counter is known."""


_Schedules: TypeAlias = dict[int, FrequencySchedule | None]


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
        daemon_runs: Whether somebody schedules.

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
        shared = SharedDirectory(Files(self.root, create=True), "simulator")
        info = JobInfo(
            pp_degree=stages,
            dp_degree=pipelines,
            tp_degree=1,
            world_size=stages * pipelines,
            job_metadata=self.metadata,
        )
        info.set_job_id(self.settings.scheduler.rpartition(":")[2])
        body = bodies.JobBody(
            job_info=info, coordination="daemon", profile_steps=self.settings.profile_steps, host="simulated"
        )
        self.folder = shared.create_job(body, attempt=f"seed{self.cluster.seed}")
        for rank in self._infos:
            self.folder.register_rank(
                bodies.RankBody(rank_info=rank, nonce=f"n{rank.rank}", gpu_name=self._gpu_name(), gpu_uuid="")
            )
        self._virtual_s = 0.0
        self.coordinator = self._new_coordinator()
        self._switcher: ScheduleSwitcher[_Schedules] = ScheduleSwitcher(self._set_schedules, lambda text, why: None)
        self._schedules: _Schedules = {}
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
        self.folder.write_end(bodies.EndBody(reason="finished", message="simulated"))

    def _status_text(self) -> str:
        scheduler = self.coordinator.scheduler
        return self.coordinator.message or (scheduler.status_text if scheduler else "")

    # ---- schedules

    def _look(self) -> None:
        """The daemon looks, and the ranks look what it has written."""
        if self.daemon_runs:
            self.coordinator.poll()
        current = self.folder.read_current()
        if current is None or current.number <= self._switcher.newest:
            return
        index = self.folder.read_index(current.number)
        if index is not None:
            schedules = {info.rank: self.folder.read_schedule(index, info) for info in self._infos}
            self._switcher.expect(PendingSchedule(index.number, index.start_step, index.steps, schedules))
            scheduler = self.coordinator.scheduler
            if self.first_plan is None and scheduler is not None and scheduler.model():
                self.first_plan = index.number

    def _take_what_is_due(self) -> None:
        self._switcher.step_begin(self._step)
        if self._clocks is None:
            self._clocks = self.cluster.clocks_of(self._by_pipeline(self._schedules))

    def _set_schedules(self, schedules: _Schedules | None) -> None:
        self._schedules, self._clocks = schedules or {}, None

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
        self, schedules: Mapping[int, FrequencySchedule | None]
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
        progress = bodies.RankProgress(
            rank=0, step=self._step, number=self._switcher.measured_number, iter_time=played.time_s, step_age_s=0.0
        )
        self.folder.write_progress(bodies.ProgressBody(ranks=[progress]), 0)
        stages = len(self.cluster.pipeline.orders)
        for pipeline, span_s in enumerate(spans):
            body = bodies.IterationTimesBody(
                rank=pipeline * stages, steps=[(self._step, self._switcher.measured_number, span_s)]
            )
            self.folder.write_iteration_times(body)
        if self._step == 0:
            for rank, order in enumerate(self.cluster.pipeline.orders):
                several = len({instruction.stage for instruction in order}) > 1
                body_ = bodies.OrderBody(
                    rank=rank, instructions=[(i.name, i.stage if several else None) for i in order]
                )
                self.folder.write_order(body_)
        self._virtual_s = now_s

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
                        result = ProfilingResult.model_validate(measured.result(info.rank))
                        self.folder.write_result(
                            measured.number, bodies.ResultBody(result=result, first_step=measured.first_step)
                        )
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
        schedule = self._schedules.get(info.rank)
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
