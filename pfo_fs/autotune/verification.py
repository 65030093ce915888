"""Measures what a plan in force saves and costs, against its target and the highest clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median_low
from typing import NamedTuple

from pfo_fs.autotune.believed_trials import LEAST_ERROR, BelievedTrials
from pfo_fs.autotune.corrections import MOST_CORRECTIONS, Corrections
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.plan_choice import PlanChoice
from pfo_fs.autotune.plan_selection import LEAST_TIME_GAIN, PlanSelection
from pfo_fs.autotune.status_text import Compared, compared
from pfo_fs.autotune.trials import Trial
from pfo_fs.autotune.window_results import (
    first_stage_results,
    iteration_spans,
    job_energy_error,
    job_energy_j,
    pooled,
    span_of,
)
from pfo_fs.models import ProfilingResult, Target, UsualTime

_STANDARD_ERRORS = 2.0
"""A plan is off its target if it misses it by more than this many standard errors."""
_FAR_ERRORS = 3.0
"""A window at the highest clocks that differs from those before by more standard errors is not one of them."""
_POWER_LEFT = 0.01
"""Relative: a corrected plan may stay below a cap on power by this much: few plans lie between."""
_MOST_MISSED = 3
"""After so many windows in a row in which the first stage was not measured, the plan stays as it is."""


@dataclass(frozen=True)
class Verdict:
    """The result of measuring a plan.

    Attributes:
        converged: Whether the plan stays.
        again: Whether the plan is to be measured again.
        compared: What the plan saves and costs, as measured; None: not known.
        power_w: Its mean power, in W, if its target is a power.
        note: What is wrong with the plan, as text for the status.
    """

    converged: bool = False
    again: bool = False
    compared: Compared | None = None
    power_w: float | None = None
    note: str = ""


class _Tried(NamedTuple):
    """What a window has told about the plan in force.

    Attributes:
        trial: The plan's trial, this window included.
        compared: What the plan saves and costs in this window; None: not known.
        power_w: Its mean power in this window, in W.
    """

    trial: Trial
    compared: Compared | None
    power_w: float


class PlanVerification:
    """Measures plans, tries others where the measurements suggest it, and keeps the best.

    Each window under a plan is added to the model, so that the next plan is made with what the last one has shown:
    the plan in force is the experiment that tells most about the clocks that it uses.

    Args:
        layout: The job.
        selection: The plans.
        rebuild_model: Makes the selection use a model from everything measured so far.
    """

    def __init__(self, layout: JobLayout, selection: PlanSelection, rebuild_model: Callable[[], None]) -> None:
        self._layout = layout
        self._selection = selection
        self._measured_s = 0.0
        self._missed = 0  # windows in a row without a result of the first stage
        self._target: Target | None = None  # that all of this is about
        self._trials = BelievedTrials(selection)
        self._choice = PlanChoice(selection, self._trials, rebuild_model)

    def measured_s(self) -> float:
        """Returns the time of an iteration when a plan for the present target was measured, in s; 0.0 before that.

        It is the time on ranks of the first stage, whose iteration times are watched.
        """
        return self._measured_s if self._target == self._selection.goal.target else 0.0

    def is_late(self, usual: UsualTime) -> bool:
        """Returns whether the plan in force turns out to miss its target, by the iterations since it was measured."""
        return self._trials.is_late(self._selection.plan_of(0), usual)

    def found_late(self, usual: UsualTime) -> None:
        """Takes these iterations into account, so that another plan is made."""
        if self._selection.has_model and self._selection.goal.target.power is None:
            self._trials.found_late(self._selection.plan_of(0), usual)

    def aim(self) -> None:
        """Sets the time margin so that the next plan will be in time, after the model was made anew."""
        self._choice.aim()

    def forget(self) -> None:
        """Drops what was tried: the job has changed."""
        self._trials.forget()
        self._choice.forget()
        self._selection.kept = None
        self._selection.corrections = Corrections()

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
        if selection.goal.slowdowns:
            return None
        if not spans:
            self._missed += 1
            if self._missed > _MOST_MISSED:
                return None
            return Verdict(again=True, note="nothing was measured on the first stage, so the plan is measured again")
        tried = self._tried(results, noise, power_drift_factor)
        if tried is None:
            return None
        if selection.goal.target.power is None:
            return replace(self._chosen_after(tried.trial, in_force=True), compared=tried.compared)
        window = self._trials.window_iterations * tried.trial.windows
        error = max(LEAST_ERROR, _STANDARD_ERRORS * noise / window**0.5)
        before = selection.schedules()
        note = self._correct_power(tried.trial.off, error)
        return Verdict(selection.schedules() is before, compared=tried.compared, power_w=tried.power_w, note=note)

    def count_early(self, results: Sequence[ProfilingResult], noise: float, power_drift_factor: float) -> None:
        """Counts a window as a trial of the plan in force, though profiling goes on and another plan follows.

        If that plan and those after it turn out to be worse, this one comes back. The arguments are those of `verify`.
        """
        if not self._selection.goal.slowdowns and iteration_spans(results, self._layout):
            tried = self._tried(results, noise, power_drift_factor)
            if tried is not None and tried.trial.windows == 1:
                tried.trial.early = True

    def _tried(self, results: Sequence[ProfilingResult], noise: float, power_drift_factor: float) -> _Tried | None:
        """Adds a window with results of the first stage to the trials; None if it tells nothing about the plan."""
        selection = self._selection
        self._missed = 0
        if self._target != selection.goal.target:
            self._target = selection.goal.target
            self._trials.forget()
        spans = iteration_spans(results, self._layout)
        means_s = [fmean(values) for values in spans.values()]
        measured_s = median_low(means_s)
        first = first_stage_results(results, self._layout).values()
        self._measured_s = median_low(span_of(result) for result in first)
        if selection.corrections.full_speed_only:
            return None
        measured_j = job_energy_j(results, self._layout.job_info.world_size)
        iterations = len(means_s) * len(next(iter(spans.values())))
        self._trials.noise, self._trials.window_iterations = noise, iterations
        if selection.runs_at_full_speed:
            self._refine_reference(measured_s)
        off = self._off(results, measured_s, measured_j)
        if off is None:
            return None
        found = compared(selection.full_speed, measured_s, measured_j, power_drift_factor, off)
        if found is not None and selection.runs_at_full_speed:
            found = replace(found, energy_saved=0.0)  # any difference is an error of the energy counters
        saved = found.energy_saved if found is not None and measured_j else 0.0
        saved_error = (1 - saved) * job_energy_error(results) if saved else 0.0
        trial = self._trial(off, saved, saved_error, measured_s / self._measured_s)
        return _Tried(trial, found, measured_j / (measured_s + selection.full_speed.tail_s))

    @property
    def wants_reference(self) -> bool:
        """Whether the highest clocks are to be measured, for `use_reference`, before a plan follows."""
        return self._choice.wants_reference

    def use_reference(self, results: Sequence[ProfilingResult]) -> Verdict:
        """Compares plans with one more window at the highest clocks, and chooses the plan that follows.

        Args:
            results: The results of the window, as `measured_results` returns them.
        """
        latest, goal = self._trials.latest, self._selection.goal
        if latest is None or goal.slowdowns or goal.target != self._target:  # the plan inputs have changed meanwhile
            self._choice.wants_reference = False
            return Verdict()
        spans = iteration_spans(results, self._layout)
        if spans:
            self._refine_reference(median_low(fmean(values) for values in spans.values()))
        return self._chosen_after(latest, in_force=False)

    def _chosen_after(self, trial: Trial, *, in_force: bool) -> Verdict:
        """Chooses the plan that follows one that was measured."""
        before = self._selection.schedules()
        note = self._choice.next_after(trial, in_force=in_force)
        return Verdict(self._selection.schedules() is before and not self.wants_reference, note=note)

    def _refine_reference(self, measured_s: float) -> None:
        """Takes a window at the highest clocks as one more of those that plans are compared with."""
        selection = self._selection
        before = selection.full_speed
        error = _FAR_ERRORS * self._trials.noise * math.sqrt((1 + 1 / before.windows) / self._trials.window_iterations)
        selection.full_speed = pooled(before, measured_s, error)
        if selection.goal.target.deadline is None and selection.goal.target.power is None:
            for trial in self._trials.all:
                trial.off = (1 + trial.off) * before.span_s / selection.full_speed.span_s - 1

    def _trial(self, off: float, saved: float, saved_error: float, whole: float) -> Trial:
        """Adds a window to the trial of the plan in force."""
        plan = self._selection.plan_of(0)
        trial = self._trials.of(plan)
        if trial is None:
            simple = math.isinf(self._selection.corrections.change_price)
            trial = Trial(plan, exploring=self._choice.explores, simple=simple)
            self._trials.all.append(trial)
        trial.early = False
        trial.add(off, saved, saved_error, whole)
        self._trials.latest = trial
        return trial

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

    def _correct_power(self, off: float, error: float) -> str:
        """Changes the power that the planner is asked for; returns a note for the status if that does not help."""
        corrections = self._selection.corrections
        least = LEAST_TIME_GAIN if corrections.count == 0 else _POWER_LEFT
        if -max(error, least) <= off <= error:
            return ""
        if corrections.count >= MOST_CORRECTIONS:
            return f"the plan does not deliver: {off:+.2%} beyond the target" if off > 0 else ""
        corrections.count += 1
        corrections.power_scale /= 1 + off
        return ""
