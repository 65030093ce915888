"""All measurements of a job: samples of instructions, and the windows that its model is calibrated with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from statistics import median

from pfo_fs.autotune.curve_profile import SURE, Offer, estimated_profile
from pfo_fs.autotune.instruction_runs import Kind, RunInstruction
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_model import measured_iterations
from pfo_fs.autotune.measured_switching import MeasuredSwitching, late_switching, measured_switching
from pfo_fs.autotune.power_drift import power_drift
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.autotune.window_results import busy_s
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.planner import MeasuredIteration, Pipeline, Profile

_OUTLIER_RANK = 0.03
"""Relative: a rank whose instructions take this much longer or shorter than its stage's median is left out, because its
GPU differs from the others."""
_LATEST_CALIBRATION_WINDOWS = 2
"""The model is calibrated with the first window and with this many of the latest ones."""


class JobMeasurements:
    """The measurements of a job's instructions.

    Args:
        layout: The job.

    Attributes:
        layout: As given.
        samples: Time and power of each instruction at each clock.
        power_drift_factor: Present power, as a multiple of that of the first measurements at the same clocks: warm
            GPUs leak more current.
        elsewhere: Points of another job on the same kind of GPUs, whose curves may be alike.
        slow_pipelines: Data-parallel ranks whose measurements are not used, because they do not run at their clocks.
    """

    def __init__(self, layout: JobLayout) -> None:
        self.layout = layout
        self.samples = Samples()
        self.power_drift_factor = 1.0
        self.elsewhere: dict[Kind, dict[int, Point]] = {}
        self.slow_pipelines: frozenset[int] = frozenset()
        self._switching: MeasuredSwitching | None = None
        self._windows: list[tuple[list[ProfilingResult], list[list[RunInstruction]]]] = []

    def take(self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]) -> None:
        """Adds what was measured under schedules, without ranks that differ much from the others of their stage.

        Args:
            results: The results of one window, as `measured_results` returns them.
            schedules: The schedules in force; a rank without one ran at its default clocks.
        """
        in_force = {schedule.rank: schedule for schedule in schedules}
        taken = [result for result in results if self.is_taken(result.rank)]
        self.power_drift_factor = power_drift(taken, in_force, self.layout, self.samples, self.power_drift_factor)
        self._switching = measured_switching(taken, self.layout.rank_infos) or self._switching
        by_stage: dict[int, list[ProfilingResult]] = {}
        for result in taken:
            by_stage.setdefault(self.layout.place[result.rank].pp_rank, []).append(result)
        for group in by_stage.values():
            middle_s = median(busy_s(result) for result in group)
            usual = [each for each in group if abs(busy_s(each) - middle_s) <= _OUTLIER_RANK * middle_s]
            self._add(self.samples, group if len(group) < 3 else usual, in_force)
        by_rank = {result.rank: result for result in results}
        ranks = self.healthy_pipeline(by_rank)
        if schedules and ranks:
            run_by_rank = [self.layout.run_by(rank, in_force.get(rank)) for rank in ranks]
            self._windows.append(([by_rank[rank] for rank in ranks], run_by_rank))
            del self._windows[1 : max(1, len(self._windows) - _LATEST_CALIBRATION_WINDOWS)]

    def switching(self) -> MeasuredSwitching:
        """Returns what a clock change costs."""
        return self._switching or late_switching(self.samples.late.latency_s(self.samples.points))

    def samples_of(self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]) -> Samples:
        """Returns what one window alone measured under schedules."""
        in_force = {schedule.rank: schedule for schedule in schedules}
        samples = Samples()
        self._add(samples, [result for result in results if self.is_taken(result.rank)], in_force)
        return samples

    def _add(
        self, samples: Samples, results: Sequence[ProfilingResult], in_force: Mapping[int, FrequencySchedule]
    ) -> None:
        """Adds results under schedules to samples."""
        groups = Counter(self._group_of(result) for result in results)
        for result in results:
            run = self.layout.run_by(result.rank, in_force.get(result.rank))
            samples.add(result, run, self.power_drift_factor, groups[self._group_of(result)])

    def _group_of(self, result: ProfilingResult) -> tuple[int, int]:
        """The pipeline and the stage of a rank: ranks that have both in common compute together."""
        info = self.layout.place[result.rank]
        return info.dp_rank, info.pp_rank

    def is_taken(self, rank: int) -> bool:
        """Returns whether results of a rank are used: its clocks can be set, and its pipeline is not slow."""
        info = self.layout.place[rank]
        return bool(info.available_frequencies) and info.dp_rank not in self.slow_pipelines

    def healthy_pipeline(self, measured: Container[int]) -> list[int]:
        """Returns the ranks, by stage, of a pipeline that was measured on all stages and whose results are used."""
        pipelines: dict[int, dict[int, int]] = {}
        for info in self.layout.rank_infos:
            if info.rank in measured and self.is_taken(info.rank):
                pipelines.setdefault(info.dp_rank, {}).setdefault(info.pp_rank, info.rank)
        stages = self.layout.job_info.pp_degree
        complete = [ranks for _, ranks in sorted(pipelines.items()) if len(ranks) == stages]
        return [complete[0][stage] for stage in range(stages)] if complete else []

    def iterations(self, pipeline: Pipeline) -> list[MeasuredIteration]:
        """Returns measured iterations to calibrate a model with."""
        return [each for results, run in self._windows for each in measured_iterations(pipeline, results, run)]

    def profile(self, offer: Offer = SURE) -> Profile:
        """Returns what is known of the instructions in the form that the planner uses, with errors.

        Args:
            offer: Which clocks are included that were not measured.

        Raises:
            PlanError: Nothing was measured yet.
        """
        layout = self.layout
        return estimated_profile(
            self.samples,
            layout.kinds,
            layout.clocks_mhz,
            f"profile of {layout.job_info.job_id or 'the job'}",
            self.elsewhere,
            offer,
        )

    def curves(self, pp_rank: int) -> dict[Kind, dict[int, Point]]:
        """Returns the measured points of all kinds of instructions that a pipeline-parallel rank runs."""
        return {kind: self.samples.curve(kind) for kind in self.layout.kinds_of(pp_rank)}

    def world_changed(self, delays_too: bool) -> None:
        """Takes present powers for the first ones: a change was confirmed.

        Args:
            delays_too: Whether to drop the windows that delays between stages were calibrated with.
        """
        if delays_too:
            self._windows.clear()
        for points in self.samples.points.values():
            for point in points.values():
                point.scale(1.0, self.power_drift_factor)
        self.power_drift_factor = 1.0
