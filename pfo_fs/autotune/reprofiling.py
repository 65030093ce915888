"""Follows a change of the job: measures and scales what has changed, and only that."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from copy import deepcopy

from pfo_fs.autotune.drift import Change, PlanBaselines, keep_highest_only, odd_kinds, restore_missing, shift_samples
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.iteration_watch import IterationWatch
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.profile_sweep import ProfileSweep, Windows
from pfo_fs.autotune.samples import Point
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.scheduler.base import ScheduleRequest

IfChanged = Generator[ScheduleRequest, list[ProfilingResult], bool]


class Reprofiling:
    """Changes the measurements of a job after a change.

    The time without slowdown is always measured at the highest clocks, never computed from other measurements.

    Args:
        measurements: The job's measurements.
        sweep: Asks for windows.
        watch: Follows iteration times.

    Attributes:
        odd_kinds: (stage, instruction) of what has changed by one factor under the plan and by another at the highest
            clock, so that its curve is to be measured again.
    """

    def __init__(self, measurements: JobMeasurements, sweep: ProfileSweep, watch: IterationWatch) -> None:
        self.odd_kinds: list[Kind] = []
        self._measurements = measurements
        self._sweep = sweep
        self._watch = watch
        self._baselines = PlanBaselines(measurements)
        self._profiled: dict[Kind, dict[int, Point]] = {}
        self._at_highest: Sequence[FrequencySchedule] = ()
        self._change_at_highest: Change | None = None

    def change(
        self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule], noise: float
    ) -> Change | None:
        """Returns what has changed since the first window of a plan; None if nothing has, or if this is the first.

        If it may only be that clocks act at other moments, as clock processes have learned, this window becomes the
        first one: a plan is then measured once more, and the job is the same.

        Args:
            results: The results of the window.
            schedules: The schedules in force.
            noise: Relative standard deviation of an iteration's time.
        """
        change = self._baselines.change(results, schedules, noise)
        if change is not None and change.is_of_clocks:
            self._watch.compare_anew(schedules)
            return None
        return change

    def is_new_reference(
        self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule], noise: float
    ) -> bool:
        """Returns whether a window at the highest clocks is the first one, or differs from the first one.

        Args:
            results, schedules, noise: As for `change`.
        """
        compared = self._baselines.knows(schedules)
        self._at_highest = schedules
        self._change_at_highest = self._baselines.change(results, schedules, noise)
        return not compared or self._change_at_highest is not None

    def keep_profile(self) -> None:
        """Keeps the present samples as those of the profile, before plans add to them."""
        self._profiled = deepcopy(self._measurements.samples.points)

    def follow(
        self, change: Change, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]
    ) -> Windows:
        """Scales the times of what has changed, and asks for a window at the highest clocks.

        Args:
            change: What has changed.
            results: The results of the window that showed it.
            schedules: The schedules in force.
        """
        removed = self._scale(change)
        self._measurements.take(results, schedules)
        yield from self._sweep.full_speed(f"{change}; measuring at the highest clocks")
        self.odd_kinds = odd_kinds(self._measurements.samples, removed)

    def check_reference(self) -> IfChanged:
        """Asks for a window at the highest clocks, and scales what has changed there since the job was profiled.

        For a change after the highest clocks were measured and before the plan began: what plans have measured since
        belongs to the changed job, so the samples of the profile are scaled.

        Returns:
            Whether something has changed.
        """
        self._change_at_highest = None
        results = yield from self._sweep.full_speed("the plan does not deliver; measuring at the highest clocks")
        change = self._change_at_highest
        if change is None:
            return False
        self._measurements.samples.points = deepcopy(self._profiled)
        removed = self._scale(change)
        self._measurements.take(results, self._at_highest)
        odd_kinds(self._measurements.samples, removed)
        return True

    def profile_lower_clocks(
        self, kinds: Sequence[Kind], results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]
    ) -> Windows:
        """Measures kinds of instructions at lower clocks again, and drops what else was known of them there.

        Args:
            kinds: (stage, instruction) of each.
            results: The results of the latest window.
            schedules: The schedules in force.
        """
        samples = self._measurements.samples
        removed = keep_highest_only(samples, kinds)
        self._measurements.take(results, schedules)
        self.odd_kinds = []
        self._sweep.windows = 0
        yield from self._sweep.lower_clocks(results, kinds)
        restore_missing(samples, removed)

    def _scale(self, change: Change) -> dict[Kind, tuple[int, Point]]:
        removed = shift_samples(self._measurements.samples, change.shifts)
        self._measurements.world_changed(delays_too=not change.shifts)
        self._baselines.forget()
        self._watch.world_changed()
        return removed
