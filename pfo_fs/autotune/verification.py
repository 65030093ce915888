"""Checks what a plan in force saves and costs, tries others where measurements suggest it, and keeps the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from pfo_fs.autotune.corrections import MOST_CORRECTIONS, MOST_TIME_MARGIN, Corrections
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.plan_selection import LEAST_TIME_GAIN, PlanSelection
from pfo_fs.autotune.status_text import measured_text
from pfo_fs.autotune.window_results import first_stage_results, iteration_spans, job_energy_j, span_of
from pfo_fs.models import ProfilingResult, Target
from pfo_fs.planner import Plan

_STANDARD_ERRORS = 2.0
"""A plan is off its target if it misses it by more than this many standard errors."""
_LEAST_ERROR = 0.001
"""Relative: a smaller difference from the target counts as noise."""
_MOST_OFF = 0.002
"""Relative: of plans that all miss the target, one that misses it by less than this may stay."""
_AIM = 0.0005
"""Relative: plans are made to be late by this on average; to be on time exactly costs far more energy."""
_MOST_STEPS, _SURE = 2, 0.0003
"""The time margin is changed at most this many times, until the plan is within this of the aim, relative."""
_MARGIN_PER_LATENESS = 3.0
"""So much time margin makes iterations faster by one; measured on plans of two GPUs with a scatter of 0.5 %."""
_LEAST_GAIN = 0.003
"""Relative: another plan is tried if it takes less energy than the plan in force by more than this, and if the plan in
force was such an improvement too."""
_DISAPPOINTS = 0.25
"""If a plan saves less than it promised by more than this share, one with few clock changes is tried beside it."""
_FEW_CHANGES = 8.0
"""For such a plan, clock changes cost this many times as much."""


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


@dataclass
class Trial:
    """A plan that was in force, and what was measured under it.

    Attributes:
        plan: The plan.
        off: How far it is from the target, relative; the mean over its windows.
        saved: Energy that it saves, relative; 0 if energy is not known.
        windows: Number of windows.
    """

    plan: Plan
    off: float = 0.0
    saved: float = 0.0
    windows: int = 0

    def add(self, off: float, saved: float) -> None:
        """Adds a window."""
        self.windows += 1
        self.off += (off - self.off) / self.windows
        self.saved += (saved - self.saved) / self.windows


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
        self._rebuild_model = rebuild_model
        self._measured_s = 0.0
        self._target: Target | None = None  # that all of this is about
        self._trials: list[Trial] = []

    def measured_s(self) -> float:
        """Returns the time of an iteration when a plan for the present target was measured, in s; 0.0 before that.

        It is the time on ranks of the first stage, whose iteration times are watched.
        """
        return self._measured_s if self._target == self._selection.goal.target else 0.0

    def forget(self) -> None:
        """Drops what was tried: the job has changed."""
        self._trials.clear()
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
        if selection.goal.slowdowns or not spans:
            return None
        if self._target != selection.goal.target:
            self._target = selection.goal.target
            self._trials.clear()
        means_s = [fmean(values) for values in spans.values()]
        measured_s = median_low(means_s)
        first = first_stage_results(results, self._layout).values()
        self._measured_s = median_low(span_of(result) for result in first)
        if selection.corrections.full_speed_only:
            return None
        measured_j = job_energy_j(results, self._layout.job_info.world_size)
        off = self._off(results, measured_s, measured_j)
        if off is None:
            return None
        text = measured_text(selection.goal, selection.full_speed, measured_s, measured_j, power_drift_factor)
        iterations = len(means_s) * len(next(iter(spans.values())))
        full_j = selection.full_speed.energy_j * power_drift_factor
        trial = self._trial(off, 1 - measured_j / full_j if measured_j and full_j else 0.0)
        error = max(_LEAST_ERROR, _STANDARD_ERRORS * noise / (iterations * trial.windows) ** 0.5)
        before = selection.schedules()
        if selection.goal.target.power is not None:
            note = self._correct_power(trial.off, error)
        else:
            note = self._choose_next(trial, error)
        return Verdict(selection.schedules() is before, text, note)

    def _trial(self, off: float, saved: float) -> Trial:
        """Adds a window to the trial of the plan in force."""
        plan = self._selection.plan_of(0)
        for trial in self._trials:
            if trial.plan.frequencies_mhz == plan.frequencies_mhz:
                break
        else:
            trial = Trial(plan)
            self._trials.append(trial)
        trial.add(off, saved)
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
        if -max(error, LEAST_TIME_GAIN) <= off <= error:
            return ""
        if corrections.count >= MOST_CORRECTIONS:
            return f"the plan does not deliver: {off:+.2%} beyond the target" if off > 0 else ""
        corrections.count += 1
        corrections.power_scale /= 1 + off
        return ""

    def _choose_next(self, trial: Trial, error: float) -> str:
        """Chooses the plan that follows; returns a note for the status."""
        selection, corrections = self._selection, self._selection.corrections
        late = trial.off > error
        if corrections.count >= MOST_CORRECTIONS:
            return self._keep_best(error)
        corrections.count += 1
        in_force = selection.plan_of(0)
        promised = 1 - in_force.energy_j / selection.model.full_speed.energy_j
        selection.kept = None
        self._rebuild_model()
        if late:
            return self._make_faster(trial.off)
        others = [other.saved for other in self._trials if other is not trial and other.off <= error]
        improves = trial.saved > max(others, default=-1.0) + _LEAST_GAIN
        if improves and self._gain(in_force) > _LEAST_GAIN:
            return "another plan takes less energy by what was measured under this one"
        if trial.saved < (1 - _DISAPPOINTS) * promised and corrections.change_price == 1.0:
            corrections.change_price = _FEW_CHANGES
            if not self._tried(selection.planned_for(0)):
                return f"it saves less than the {promised:.1%} that were planned, so one with fewer changes is tried"
        return self._keep_best(error)

    def aim(self) -> None:
        """Sets the time margin so that the next plan will be in time, by the model and by what it did not explain.

        Called with each new model.
        """
        selection, corrections = self._selection, self._selection.corrections
        if selection.goal.target.power is not None:
            return
        unexplained, windows = 0.0, 0
        for trial in self._trials:
            plan = selection.model.as_it_is(trial.plan)
            if plan is not None:
                unexplained += trial.windows * (trial.off - selection.predicted_off(plan))
                windows += trial.windows
        unexplained = unexplained / windows if windows else 0.0
        # A deadline is made longer only because measured iterations were shorter than the target, not because the
        # planner was careful about clocks that are not known well.
        least = 0.0 if unexplained > -LEAST_TIME_GAIN else -MOST_TIME_MARGIN
        for _ in range(_MOST_STEPS):
            late = selection.predicted_off(selection.planned_for(0)) + unexplained - _AIM
            # Only slowed instructions get the margin, so it gives less than its own share of the iteration back.
            step = late if corrections.time_margin <= 0 and late < 0 else _MARGIN_PER_LATENESS * late
            margin = max(least, min(corrections.time_margin + step, MOST_TIME_MARGIN))
            if abs(late) <= _SURE or margin == corrections.time_margin:
                break
            corrections.time_margin = round(margin, 5)

    def _gain(self, in_force: Plan) -> float:
        """Returns by how much less energy the plan that the planner makes now takes, relative."""
        selection = self._selection
        same = selection.model.as_it_is(in_force)
        planned = selection.planned_for(0)
        return 1 - planned.energy_j / same.energy_j if same is not None else 1.0

    def _tried(self, plan: Plan) -> bool:
        return any(plan.frequencies_mhz == trial.plan.frequencies_mhz for trial in self._trials)

    def _make_faster(self, off: float) -> str:
        """Changes the time margin until the plan is one that was not tried; if there is none, the best one stays."""
        selection, corrections = self._selection, self._selection.corrections
        step = off
        for _ in range(MOST_CORRECTIONS):
            if not self._tried(selection.planned_for(0)):
                return f"{off:+.2%} off the target, so another plan is made"
            # A plan of few instructions stays the same under small margins.
            corrections.time_margin, step = round(max(0.0, corrections.time_margin) + step, 5), 2 * step
            if corrections.time_margin > MOST_TIME_MARGIN:
                break
        return self._keep_best(_LEAST_ERROR)

    def _keep_best(self, error: float) -> str:
        """Keeps the plan that saves most of those that keep to the target; if none does, all run at full speed."""
        selection = self._selection
        usable = [trial for trial in self._trials if selection.model.as_it_is(trial.plan) is not None]
        on_time = [trial for trial in usable if trial.off <= error]
        on_time = on_time or [trial for trial in usable if trial.off <= max(error, _MOST_OFF)]
        if not on_time:
            selection.corrections.full_speed_only = True  # something else than the plan makes iterations longer
            off = min(trial.off for trial in self._trials)
            return (
                f"the plan does not deliver: {off:+.2%} beyond the target, and none is faster than the highest clocks"
            )
        best = max(on_time, key=lambda trial: trial.saved)
        selection.kept = selection.model.as_it_is(best.plan)
        return ""
