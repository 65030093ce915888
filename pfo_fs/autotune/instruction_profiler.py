"""Profiles every instruction at the clocks worth knowing, during the training itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import fmean, median

from pfo_fs.autotune.samples import Entry, Kind, Point, Samples
from pfo_fs.autotune.sweep import coarse_clocks, fine_clocks, grid_of, share_out
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.planner import Profile
from pfo_fs.scheduler.base import FrequencyScheduler, ScheduleGenerator
from pfo_fs.scheduler.parallel3d import stage_infos
from pfo_fs.settings import PFOSettings

_LEAST_S = 0.5
"""A clock that shares iterations with others gets at least so much time in a window."""
_ROOM = 3.0
"""How many times the time that an instruction's power takes to be known a clock gets: others run and wait in it."""
_COARSE, _COARSER = 21, 9
"""Clocks of the first grid, where several share an iteration, and where each takes a window of its own."""
_ODD = 0.03
"""A rank whose instructions take this much longer or shorter than its stage's median is left out: it is ill."""
_FULL_SPEED_TRIES = 5
_FINE_WINDOWS = 6
"""No more windows than this after the first grid: what is left is noise that more of it does not cure."""
_WITH_TOP = 3
"""Where so many clocks share an iteration, one of them is the highest."""
_WARM_UP_WINDOWS, _ORDER_WITHIN_WINDOWS = 1, 10

Profiling = Generator[list[FrequencySchedule], list[ProfilingResult], bool]
Windows = Generator[list[FrequencySchedule], list[ProfilingResult], None]
Window = Generator[list[FrequencySchedule], list[ProfilingResult], list[ProfilingResult]]


class InstructionProfiler(FrequencyScheduler):
    """Measures time and power of every instruction from the highest clock down, then leaves the clocks alone.

    The first window runs at default clocks, to warm up and to learn the order of instructions; the second at the
    highest. Then windows follow in which each stage runs through several clocks per iteration, coarse steps first,
    until its curves are known within `tolerance`.

    Args:
        job_info: The job.
        rank_infos: All its ranks, in any order.
        pfo_settings: Settings of the scheduling side.
        tolerance: Relative error of time and power that is good enough.
        max_windows: Never more windows than this.

    Attributes:
        samples: What has been measured.
        windows: How many windows that took.
        power_drift_factor: Power now, as a multiple of that of the first measurements at the same clocks: warm GPUs
            leak more. Every window with room for it also runs the highest clock, to measure this.
    """

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        tolerance: float = 0.003,
        max_windows: int = 64,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self.tolerance = tolerance
        self.max_windows = max_windows
        self.samples = Samples()
        self.windows = 0
        self.power_drift_factor = 1.0
        self._fine_windows = _FINE_WINDOWS
        self._place = {info.rank: info for info in self.rank_infos}
        self._clocks = [info.available_frequencies for info in stage_infos(job_info, self.rank_infos)]

    @classmethod
    def check_args(cls, **args: object) -> None:
        """Raises PlanError for arguments that cannot be right."""
        tolerance, windows = args.get("tolerance", 0.003), args.get("max_windows", 64)
        if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
            raise PlanError(f"tolerance is {tolerance!r}; give a relative error such as 0.003")
        if not isinstance(windows, int) or windows < 1:
            raise PlanError(f"max_windows is {windows!r}; give a number of measuring windows, such as 64")

    def _run(self) -> ScheduleGenerator:
        if (yield from self._profile()):
            self.status_text = f"profiled in {self.windows} windows; clocks are left alone"
        self.measuring = False
        yield []

    # ---- what it works with

    @property
    def kinds(self) -> list[Kind]:
        """(stage, instruction) of everything that the job runs; empty until all orders are known."""
        return sorted({(stage, name) for rank in self._one_pipeline() for name, stage in self._order(rank)})

    @property
    def clocks_mhz(self) -> dict[int, list[int]]:
        """For each stage, the clocks that all its GPUs offer, highest first."""
        found: dict[int, list[int]] = {}
        for rank in self._one_pipeline():
            for _, stage in self._order(rank):
                found[stage] = sorted(self._clocks[self._place[rank].pp_rank], reverse=True)
        return found

    def profile(self) -> Profile:
        """What is known now, as the planner takes it.

        Raises:
            PlanError: Nothing is known yet.
        """
        return self.samples.profile(
            self.kinds, self.clocks_mhz, self.tolerance, f"profile of {self.job_info.job_id or 'the job'}"
        )

    def _one_pipeline(self) -> list[int]:
        """A rank of each stage, if the order of all of them is known."""
        by_stage = {info.pp_rank: info.rank for info in reversed(self.rank_infos)}
        ranks = [by_stage[stage] for stage in sorted(by_stage)]
        return ranks if all(self.orders.get(rank) for rank in ranks) else []

    def _order(self, rank: int) -> list[tuple[str, int]]:
        """(instruction, stage) of a rank's iteration."""
        own = self._place[rank].pp_rank
        return [(name, own if stage is None else stage) for name, stage in self.orders.get(rank) or ()]

    # ---- windows

    def _profile(self) -> Profiling:
        """Yields windows until every stage is known well enough; returns False where nothing can be measured or set."""
        self.measuring = True
        self.status_text = "warming up at default clocks"
        while self.windows < _WARM_UP_WINDOWS or (not self._one_pipeline() and self.windows < _ORDER_WITHIN_WINDOWS):
            yield from self._window([])
        if not self._one_pipeline():
            self.status_text = "the order of instructions has not become known, so there is nothing to schedule"
            return False
        if not all(self._clocks):
            self.status_text = "there are GPUs whose clocks cannot be set, so there is nothing to schedule"
            return False
        self.status_text = "measuring at the highest clocks"
        results = yield from self._full_speed()
        if not results:
            self.status_text = (
                "no pipeline has measured an iteration at the highest clocks, so there is nothing to plan by"
            )
            return False
        if not all(self.samples.curve(kind) for kind in self.kinds):
            self.status_text = "there are GPUs whose energy cannot be read, so there is nothing to plan by"
            return False
        yield from self._sweep(results)
        return True

    def _sweep(self, results: Sequence[ProfilingResult]) -> Windows:
        """Yields windows of lower clocks; `results` are those of a window at the highest."""
        measured_s = sum(median(times) for result in results[:1] if (times := result.iter_time) for _ in times)
        most = max(1, int(measured_s / max(_LEAST_S, _ROOM * self._seconds_needed(results))))
        most = min(self._capacity(rank, most) for rank in self._one_pipeline())
        grids = [grid_of(clocks, _COARSE if most >= _WITH_TOP else _COARSER) for clocks in self._sorted_clocks()]
        fine = 0
        while self.windows < self.max_windows:
            coarse = [
                coarse_clocks(clocks, grids[n], self._curves(n)) for n, clocks in enumerate(self._sorted_clocks())
            ]
            wanted = coarse
            if not any(coarse):
                wanted = [
                    fine_clocks(clocks, grids[n], self._curves(n), self.tolerance)
                    for n, clocks in enumerate(self._sorted_clocks())
                ]
                fine += 1
                # A clock here and there is not worth another window for everybody.
                if fine > self._fine_windows or sum(map(len, wanted)) <= len(wanted) / 2:
                    break
            self.status_text = f"profiling: {sum(map(len, wanted))} clocks to go" + ("" if any(coarse) else ", at most")
            yield from self._measure(wanted, most)

    def _full_speed(self) -> Window:
        """Windows with everything at the highest clocks, until one will do; returns its results, or none."""
        for _ in range(_FULL_SPEED_TRIES):
            results = yield from self._measure([clocks[:1] for clocks in self._sorted_clocks()], 1)
            if self._note_full_speed(results):
                return results
        return []

    def _note_full_speed(self, results: Sequence[ProfilingResult]) -> bool:
        """Told of a window at the highest clocks; whether it will do."""
        return bool(results)

    def _capacity(self, rank: int, most: int) -> int:
        """How many clocks can share an iteration of a rank."""
        return len(set(share_out([(stage, name) for name, stage in self._order(rank)], range(most), most)))

    def _seconds_needed(self, results: Sequence[ProfilingResult]) -> float:
        """How long an instruction has to run for its power to be known well enough, by the noise seen so far."""
        needed = [
            power.seconds * (power.error / power.power / (2 * self.tolerance)) ** 2
            for result in results
            for power in result.powers
            if power.instruction and power.power > 0
        ]
        return median(needed) if needed else _LEAST_S

    def _measure(self, wanted: Sequence[Sequence[int]], most: int) -> Window:
        """A window in which each stage runs through the first of the clocks it wants; one that wants none runs fast."""
        clocks = self._sorted_clocks()
        schedules = []
        for info in self.rank_infos:
            stage, entries = info.pp_rank, self._order(info.rank)
            top, wished = clocks[stage][:1], [mhz for mhz in wanted[stage] if mhz != clocks[stage][0]]
            run = [*top, *wished] if most >= _WITH_TOP else (wished or top)
            share = share_out([(at, name) for name, at in entries], run, most)
            frequencies = [(name, mhz) for (name, _), mhz in zip(entries, share, strict=True)]
            stages = [at for _, at in entries]
            several = any(at is not None for _, at in self.orders.get(info.rank) or ())
            schedules.append(
                FrequencySchedule(rank=info.rank, frequencies=frequencies, stages=stages if several else None)
            )
        return (yield from self._window(schedules))

    def _window(self, schedules: list[FrequencySchedule]) -> Window:
        """Yields schedules, and takes in what was measured under them."""
        results = yield schedules
        self.windows += 1
        self._take(results, schedules)
        return results

    def _take(self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]) -> None:
        """Takes results into the samples, without ranks that are far off the others of their stage."""
        planned = {schedule.rank: schedule for schedule in schedules}
        results = [result for result in results if result.iter_time and self._counts(result.rank)]
        self._note_power_drift(results)
        for group in self._by_stage(results).values():
            middle = median(_busy_s(result) for result in group)
            for result in group:
                if len(group) < 3 or abs(_busy_s(result) - middle) <= _ODD * middle:
                    self.samples.add(
                        result, self._entries(result.rank, planned.get(result.rank)), self.power_drift_factor
                    )

    def _counts(self, rank: int) -> bool:
        """Whether what a rank measures is what it was asked to run: its clocks can be set, and it does not straggle."""
        return bool(self._place[rank].available_frequencies)

    def _note_power_drift(self, results: Sequence[ProfilingResult]) -> None:
        """Compares powers at the highest clocks with the first ones measured there."""
        ratios, clocks = [], self._sorted_clocks()
        for result in results:
            place = self._place[result.rank].pp_rank
            stages = dict(self._order(result.rank))
            for power in result.powers:
                if power.instruction in stages and power.frequency in clocks[place][:1]:
                    first = self.samples.curve((stages[power.instruction], power.instruction)).get(power.frequency)
                    if first is not None and power.error < 0.02 * power.power:
                        ratios.append(power.power / first.power_w)
        if ratios:
            self.power_drift_factor = median(ratios)

    def _by_stage(self, results: Sequence[ProfilingResult]) -> dict[int, list[ProfilingResult]]:
        groups: dict[int, list[ProfilingResult]] = {}
        for result in results:
            groups.setdefault(self._place[result.rank].pp_rank, []).append(result)
        return groups

    def _entries(self, rank: int, schedule: FrequencySchedule | None) -> list[Entry]:
        """What a rank ran: the order as it is, and the clocks of its schedule."""
        order = self._order(rank)
        if schedule is None:
            return [(name, stage, 0) for name, stage in order]
        return [(name, stage, mhz) for (name, stage), (_, mhz) in zip(order, schedule.frequencies, strict=True)]

    def _sorted_clocks(self) -> list[list[int]]:
        return [sorted(clocks, reverse=True) for clocks in self._clocks]

    def _curves(self, pp_rank: int) -> dict[Kind, dict[int, Point]]:
        rank = next(info.rank for info in self.rank_infos if info.pp_rank == pp_rank)
        return {(stage, name): self.samples.curve((stage, name)) for name, stage in self._order(rank)}


def _busy_s(result: ProfilingResult) -> float:
    """Mean time of all instructions of an iteration."""
    totals = [
        sum(sum(rows[number]) for rows in result.time_breakdown.values() if number < len(rows))
        for number in range(len(result.iter_time))
    ]
    return fmean(totals) if totals else 0.0
