"""What has changed since a plan began: two measuring windows under the same schedules, instruction by instruction.

Measured times are compared with measured times only. Where the model was wrong about a plan, the plan's first window
shows that; this is not a change, and the window is an ordinary measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, median_low, stdev

from pfo_fs.autotune.instruction_runs import Kind, RunInstruction, iterations_of
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.autotune.window_results import iteration_spans
from pfo_fs.models import FrequencySchedule, ProfilingResult

LEAST_CHANGE = 0.007
"""Relative: iterations or instructions that differ by less have not changed."""
_STANDARD_ERRORS = 3.0
"""They have changed if they differ by more than this many standard errors."""
_CLOCK_SETTLES_WITHIN_S = 0.03
"""Instructions that begin within this time after a change of the clock may have run at the old clock."""
_MOST_PLANS = 4
_SAME_SHIFT = 0.02
"""Relative: an instruction whose times at two clocks have changed by factors that differ by less has one shift."""

Times = Mapping[Kind, Mapping[int, Sequence[float]]]
"""For each kind of instruction and each rank that ran it, its mean time in s in each iteration."""


@dataclass(frozen=True)
class PlanWindow:
    """What one window measured under the schedules of a plan.

    Attributes:
        spans_s: For each pipeline, the time of each iteration until its last instruction had ended, in s.
        times_s: The instructions of the ranks whose results are used.
        latencies_s: For each rank, how late each clock that it changed to in an iteration acts, in s: one entry for
            each change, in their order; None where its clock process did not know.
    """

    spans_s: Mapping[int, Sequence[float]]
    times_s: Times
    latencies_s: Mapping[int, Sequence[float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A confirmed change.

    Attributes:
        iterations: Time of an iteration now, as a multiple of that when the plan began.
        shifts: The same for each kind of instruction that has changed.
        is_of_clocks: Whether the reason may be that clocks act at other moments than when the plan began: clock
            processes have learned how late they act, or only ranks have changed whose clock processes do not know it.
    """

    iterations: float
    shifts: Mapping[Kind, float]
    is_of_clocks: bool = False

    def __str__(self) -> str:
        what = ", ".join(f"{name} of stage {stage} {ratio - 1:+.1%}" for (stage, name), ratio in self.shifts.items())
        return f"iterations take {self.iterations - 1:+.1%} time under the same plan ({what or 'not its instructions'})"


class PlanBaselines:
    """Keeps the first window of each of the latest plans.

    Args:
        measurements: Says whose results are used, and what ranks run.
    """

    def __init__(self, measurements: JobMeasurements) -> None:
        self._measurements = measurements
        self._windows: list[tuple[Sequence[FrequencySchedule], PlanWindow]] = []

    def change(
        self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule], noise: float
    ) -> Change | None:
        """Compares a window with the first one under the same schedules.

        The first one is kept, until a later one differs because clocks act at other moments.

        Args:
            results: The results of the window, as `measured_results` returns them.
            schedules: The schedules in force.
            noise: Relative standard deviation of an iteration's time.

        Returns:
            What has changed; None if nothing has, or if this is the first window.
        """
        now = self._window(results, schedules)
        before = next((window for known, window in self._windows if known == schedules), None)
        change = change_between(before, now, noise) if before is not None else None
        if now.spans_s and (before is None or (change is not None and change.is_of_clocks)):
            others = [each for each in self._windows if each[0] != schedules]
            self._windows = [*others[1 - _MOST_PLANS :], (schedules, now)]
        return change

    def knows(self, schedules: Sequence[FrequencySchedule]) -> bool:
        """Returns whether a window under these schedules is kept."""
        return any(known == schedules for known, _ in self._windows)

    def forget(self) -> None:
        """Drops all windows: they were measured before the change."""
        self._windows.clear()

    def _window(self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]) -> PlanWindow:
        taken = [result for result in results if self._measurements.is_taken(result.rank)]
        in_force = {schedule.rank: schedule for schedule in schedules}
        layout = self._measurements.layout
        times: dict[Kind, dict[int, list[float]]] = {}
        latencies_s: dict[int, list[float | None]] = {}
        for result in taken:
            run = layout.run_by(result.rank, in_force.get(result.rank))
            changed_to = [mhz for (_, _, before_mhz), (_, _, mhz) in pairwise(run) if mhz != before_mhz]
            if result.switching is not None and result.switching.mode != "launch":  # its clock process learns latencies
                latencies_s[result.rank] = [result.switching.latencies_s.get(mhz) for mhz in changed_to]
            for iteration in iterations_of(result, run):
                for kind, mean_s in _settled_means([one.time_s for one in iteration], run).items():
                    times.setdefault(kind, {}).setdefault(result.rank, []).append(mean_s)
        return PlanWindow(iteration_spans(taken, layout), times, latencies_s)


def _settled_means(times_s: Sequence[float], run: Sequence[RunInstruction]) -> dict[Kind, float]:
    """Returns the mean time of each kind in an iteration, of runs at clocks that have settled where there are any."""
    everything: dict[Kind, list[float]] = {}
    settled: dict[Kind, list[float]] = {}
    since_s, before_mhz = 0.0, -1
    for (name, stage, mhz), time_s in zip(run, times_s, strict=True):
        if mhz != before_mhz:
            since_s, before_mhz = 0.0, mhz
        everything.setdefault((stage, name), []).append(time_s)
        if since_s >= _CLOCK_SETTLES_WITHIN_S:
            settled.setdefault((stage, name), []).append(time_s)
        since_s += time_s
    return {kind: fmean(settled.get(kind, values)) for kind, values in everything.items()}


def change_between(before: PlanWindow, now: PlanWindow, noise: float) -> Change | None:
    """Returns what has changed from one window to the other; None if iterations take the same time.

    Args:
        before: The first window of the plan.
        now: A later one.
        noise: Relative standard deviation of an iteration's time.
    """
    both = sorted(before.spans_s.keys() & now.spans_s.keys())
    iterations = _common([(before.spans_s[pipeline], now.spans_s[pipeline]) for pipeline in both], noise)
    if iterations is None:
        return None
    shifts = {}
    shifted: set[int] = set()
    for kind in sorted(before.times_s.keys() & now.times_s.keys()):
        old, new = before.times_s[kind], now.times_s[kind]
        ranks = sorted(old.keys() & new.keys())
        shift = _common([(old[rank], new[rank]) for rank in ranks], 0.0)
        if shift is not None:
            shifts[kind] = shift
            shifted.update(ranks)
    changed_s = abs(iterations - 1) * median_low(fmean(before.spans_s[pipeline]) for pipeline in both)
    unsure = bool(shifted) and all(None in now.latencies_s.get(rank, ()) for rank in shifted)
    return Change(iterations, shifts, unsure or _moved_s(before, now) >= changed_s)


def _moved_s(before: PlanWindow, now: PlanWindow) -> float:
    """Returns by how much the changes of a rank together may act at other moments, in s, on the rank with most."""
    return max(
        (
            sum(
                abs((new or 0.0) - (old or 0.0))
                for old, new in zip(before.latencies_s[rank], now.latencies_s[rank], strict=True)
            )
            for rank in before.latencies_s.keys() & now.latencies_s.keys()
        ),
        default=0.0,
    )


def _common(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], noise: float) -> float | None:
    """Returns the ratio that pairs of times before and now have in common; None if it may be 1."""
    pairs = [(old, new) for old, new in pairs if min(old, default=0.0) > 0 and min(new, default=0.0) > 0]
    if not pairs:
        return None
    ratio = median_low(median(new) / median(old) for old, new in pairs)
    scatter = median(_scatter(times) for pair in pairs for times in pair)
    fewest = min(len(times) for pair in pairs for times in pair)
    # The standard error of the ratio of two medians: each has 1.25 times that of a mean.
    error = 1.25 * max(noise, scatter) * (2 / fewest) ** 0.5
    return ratio if abs(ratio - 1) > max(LEAST_CHANGE, _STANDARD_ERRORS * error) else None


def _scatter(times: Sequence[float]) -> float:
    return stdev(times) / fmean(times) if len(times) > 1 else 0.0


def shift_samples(samples: Samples, shifts: Mapping[Kind, float]) -> dict[Kind, tuple[int, Point]]:
    """Scales the times of kinds that have changed, and removes their highest clock, which is to be measured again.

    Args:
        samples: What was measured before the change.
        shifts: The factors.

    Returns:
        The clock (MHz) and the scaled point that were removed from each kind.
    """
    removed = {}
    for kind, times in shifts.items():
        points = samples.points.get(kind, {})
        for point in points.values():
            point.scale(times, 1.0)
        if points:
            removed[kind] = max(points), points.pop(max(points))
    return removed


def odd_kinds(samples: Samples, removed: Mapping[Kind, tuple[int, Point]]) -> list[Kind]:
    """Returns the kinds whose times at the highest clock have changed by another factor than under the plan.

    A kind that was not measured at its highest clock since gets the scaled point back.

    Args:
        samples: What was measured before the change, scaled, and since.
        removed: What `shift_samples` returned.
    """
    found = []
    for kind, (mhz, scaled) in removed.items():
        measured = samples.points.get(kind, {}).get(mhz)
        if measured is None:
            samples.points.setdefault(kind, {})[mhz] = scaled
        elif abs(measured.time_s / scaled.time_s - 1) > _SAME_SHIFT:
            found.append(kind)
    return found


def keep_highest_only(samples: Samples, kinds: Sequence[Kind]) -> dict[Kind, dict[int, Point]]:
    """Removes what is known of kinds below the highest clock, to have it measured again; returns what was removed."""
    removed = {}
    for kind in kinds:
        points = samples.points.get(kind, {})
        removed[kind] = {mhz: points.pop(mhz) for mhz in sorted(points)[:-1]}
    return removed


def restore_missing(samples: Samples, removed: Mapping[Kind, Mapping[int, Point]]) -> None:
    """Puts back the points of kinds that were not measured below their highest clock since."""
    for kind, points in removed.items():
        if len(samples.curve(kind)) < 2:
            samples.points.setdefault(kind, {}).update(points)
