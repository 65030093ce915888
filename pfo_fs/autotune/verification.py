"""Checks whether a plan in force meets its target, and corrects it if it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from pfo_fs.autotune.corrections import MOST_CORRECTIONS, MOST_TIME_MARGIN
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.plan_selection import LEAST_TIME_GAIN, PlanSelection
from pfo_fs.autotune.status_text import measured_text
from pfo_fs.autotune.window_results import first_stage_results, iteration_spans, job_energy_j, span_of
from pfo_fs.models import FrequencySchedule, ProfilingResult, Target

_STANDARD_ERRORS = 2.0
"""A plan is off its target if it misses it by more than this many standard errors."""
_LEAST_ERROR = 0.002
"""Relative: a smaller difference from the target counts as noise."""


@dataclass(frozen=True)
class Verdict:
    """The result of measuring a plan.

    Attributes:
        converged: Whether the plan stays.
        measured: What the plan saves and costs, as text for the status.
        note: What is wrong with the plan, as text for the status.
    """

    converged: bool = False
    measured: str = ""
    note: str = ""


class PlanVerification:
    """Compares the plan in force with what was measured under it, and corrects what the planner is asked for.

    Args:
        layout: The job.
        selection: The plans.
        rebuild_model: Makes the selection use a model from everything measured so far.
    """

    def __init__(self, layout: JobLayout, selection: PlanSelection, rebuild_model: Callable[[], None]) -> None:
        self._layout = layout
        self._selection = selection
        self._rebuild_model = rebuild_model
        self._measured_s = 0.0
        self._measured_for: Target | None = None

    def measured_s(self) -> float:
        """Returns the time of an iteration when a plan for the present target was measured, in s; 0.0 before that.

        It is the time on ranks of the first stage, whose iteration times are watched.
        """
        return self._measured_s if self._measured_for == self._selection.goal.target else 0.0

    def verify(self, results: Sequence[ProfilingResult], noise: float, power_drift_factor: float) -> Verdict | None:
        """Compares results with the plan in force; what `PlanSelection.schedules` returns may change.

        Args:
            results: The results of a window under the plan, as `measured_results` returns them.
            noise: Relative standard deviation of an iteration's time.
            power_drift_factor: Present power, as a multiple of that of the first measurements.

        Returns:
            The verdict; None if the plan stays and nothing new is known about it.
        """
        selection = self._selection
        spans = iteration_spans(results, self._layout)
        if selection.goal.slowdowns or not spans:
            return None
        means_s = [fmean(values) for values in spans.values()]
        measured_s = median_low(means_s)
        iterations = len(means_s) * len(next(iter(spans.values())))
        error = max(_LEAST_ERROR, _STANDARD_ERRORS * noise / iterations**0.5)
        first = first_stage_results(results, self._layout).values()
        self._measured_s, self._measured_for = median_low(span_of(result) for result in first), selection.goal.target
        if selection.corrections.full_speed_only:
            return None
        measured_j = job_energy_j(results, self._layout.job_info.world_size)
        off = self._off(results, measured_s, measured_j)
        if off is None:
            return None

        def text() -> str:
            return measured_text(selection.goal, selection.full_speed, measured_s, measured_j, power_drift_factor)

        is_off = off > error or off < -max(error, LEAST_TIME_GAIN)
        if not is_off or selection.corrections.count >= MOST_CORRECTIONS:
            note = f"the plan does not deliver: {off:+.2%} beyond the target" if off > error else ""
            return Verdict(True, text(), note)
        before = selection.schedules()
        note = self._correct(off, before)
        converged = selection.schedules() is before
        if not (converged or note or selection.goal.target.power):
            note = f"{off:+.2%} off the target, so another plan is made"
        return Verdict(converged, text(), note)

    def _off(self, results: Sequence[ProfilingResult], measured_s: float, measured_j: float) -> float | None:
        """Returns how far the plan is from its target, relative; None if the target is a power but energy unknown."""
        target = self._selection.goal.target
        if target.power is None:
            return measured_s / self._selection.target_s() - 1
        if measured_j <= 0:
            return None
        first = first_stage_results(results, self._layout).values()
        power_w = measured_j / fmean(time_s for result in first for time_s in result.iter_time)
        return power_w / target.power - 1

    def _correct(self, off: float, before: list[FrequencySchedule]) -> str:
        """Changes what the planner is asked for; returns a note for the status if no plan keeps to the target."""
        corrections = self._selection.corrections
        corrections.count += 1
        if self._selection.goal.target.power is not None:
            corrections.power_scale /= 1 + off
            return ""
        if corrections.count == 1:
            # Recalibrates with this window: a plan in which ranks wait less than at full speed shows better how long a
            # result takes to reach the next stage.
            self._rebuild_model()
        if corrections.count > 1 or self._selection.schedules() is before:
            return self._change_time_margin(off, before)
        return ""

    def _change_time_margin(self, off: float, before: list[FrequencySchedule]) -> str:
        """Changes the time margin until the plan is another one; if that does not help, all run at full speed."""
        corrections, model = self._selection.corrections, self._selection.model
        time_margin = corrections.next_time_margin(model.time_margin, off)
        for _ in range(MOST_CORRECTIONS):
            model.time_margin = time_margin
            if self._selection.schedules() is not before or off < 0:
                return ""
            time_margin = round(time_margin + off, 5)
            if time_margin > MOST_TIME_MARGIN:
                break
        corrections.full_speed_only = True  # something else than the plan makes iterations longer
        return f"the plan does not deliver: {off:+.2%} beyond the target, and none is faster than the highest clocks"
