"""Checks what a plan in force saves and costs, tries others where measurements suggest it, and keeps the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median_low

from pfo_fs.autotune.believed_trials import LEAST_ERROR, BelievedTrials
from pfo_fs.autotune.corrections import MOST_CORRECTIONS, MOST_TIME_MARGIN, Corrections
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.plan_aim import aim
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
from pfo_fs.planner import Plan

_STANDARD_ERRORS = 2.0
"""A plan is off its target if it misses it by more than this many standard errors."""
_FAR_ERRORS = 3.0
"""A window at the highest clocks that differs from those before by more standard errors is not one of them."""
_MOST_OFF = 0.002
"""Relative: of plans that all miss the target, one that misses it by less than this may stay."""
_LEAST_GAIN = 0.003
"""Relative: another plan is tried if it takes less energy than the plan in force by more than this, and if the plan in
force was such an improvement too."""
_MOST_EXPLORING, _LEAST_HOPE = 4, 0.005
"""At most this many plans are in force only to measure clocks, and only while such a plan may take less energy than the
best one that is known by more than this, relative."""
_TOO_LATE_TO_EXPLORE = 0.015
"""Relative: no plans try clocks after one was late by more than this, as on nodes whose clocks act very late."""
_DISAPPOINTS, _FEW_CHANGES = 0.25, 3.0
"""If a plan saves less than it promised by more than this share, one is tried beside it for which clock changes cost so
many times as much."""
_CORRECTIONS_OF_ONE_CLOCK, _CORRECTIONS_OF_DEAR_CHANGES = 2, 3
"""So many plans with one clock per stage may be tried at the end, and so many once changes are known to take time."""
_POWER_LEFT = 0.01
"""Relative: a corrected plan may stay below a cap on power by this much: few plans lie between."""
_MOST_MISSED = 3
"""After so many windows in a row in which the first stage was not measured, the plan stays as it is."""
_MOST_REPEATED = 2
"""At most so many plans that were late are put in force once more before all run at the highest clocks."""


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
        self._missed = 0  # windows in a row without a result of the first stage
        self._target: Target | None = None  # that all of this is about
        self._trials = BelievedTrials(selection)
        self._exploring: Plan | None = None  # the last plan that was in force only to measure clocks
        self._explored = 0  # plans so far that were only in force to measure clocks
        self._interrupted: Trial | None = None  # the trial that goes on after the highest clocks are measured

    def measured_s(self) -> float:
        """Returns the time of an iteration when a plan for the present target was measured, in s; 0.0 before that.

        It is the time on ranks of the first stage, whose iteration times are watched.
        """
        return self._measured_s if self._target == self._selection.goal.target else 0.0

    @property
    def explores(self) -> bool:
        """Whether the plan in force is there only to measure clocks."""
        return self._exploring is not None and self._exploring is self._selection.kept

    def is_late(self, usual: UsualTime) -> bool:
        """Returns whether the plan in force turns out to miss its target, by the iterations since it was measured."""
        return self._trials.is_late(self._selection.plan_of(0), usual)

    def found_late(self, usual: UsualTime) -> None:
        """Takes these iterations into account, so that another plan is made."""
        if self._selection.has_model and self._selection.goal.target.power is None:
            self._trials.found_late(self._selection.plan_of(0), usual)

    def forget(self) -> None:
        """Drops what was tried: the job has changed."""
        self._trials.forget()
        self._explored, self._interrupted = 0, None
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
        self._missed = 0
        if self._target != selection.goal.target:
            self._target = selection.goal.target
            self._trials.forget()
            self._interrupted = None
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
        interrupted, self._interrupted = self._interrupted, None
        off = self._off(results, measured_s, measured_j)
        if off is None:
            return None
        found = compared(selection.full_speed, measured_s, measured_j, power_drift_factor, off)
        if found is not None and selection.runs_at_full_speed:
            found = replace(found, energy_saved=0.0)  # any difference is an error of the energy counters
        saved = found.energy_saved if found is not None and measured_j else 0.0
        if interrupted is not None and selection.runs_at_full_speed:
            trial = interrupted
        else:
            saved_error = (1 - saved) * job_energy_error(results) if saved else 0.0
            trial = self._trial(off, saved, saved_error, measured_s / self._measured_s)
        error = max(LEAST_ERROR, _STANDARD_ERRORS * noise / (iterations * trial.windows) ** 0.5)
        before = selection.schedules()
        power_w = None
        if selection.goal.target.power is not None:
            note = self._correct_power(trial.off, error)
            power_w = measured_j / (measured_s + selection.full_speed.tail_s)
        else:
            note = self._choose_next(trial)
        return Verdict(selection.schedules() is before, compared=found, power_w=power_w, note=note)

    def _refine_reference(self, measured_s: float) -> None:
        """Takes a window of a plan at the highest clocks as one more of those that plans are compared with."""
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
            trial = Trial(plan, exploring=self.explores, simple=simple)
            self._trials.all.append(trial)
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

    def _choose_next(self, trial: Trial) -> str:
        """Chooses the plan that follows; returns a note for the status."""
        selection, corrections = self._selection, self._selection.corrections
        if corrections.count >= MOST_CORRECTIONS or self._trials.measured_again:
            return self._keep_best()
        if not trial.exploring and self._trials.asks_for_reference(trial):
            self._interrupted, selection.kept = trial, selection.model.full_speed
            return "the highest clocks are measured again, as what they take is not known well"
        corrections.count += 1
        in_force = trial.plan
        promised = 1 - in_force.energy_j / selection.model.full_speed.energy_j
        selection.kept = None
        self._rebuild_model()
        if self._explores():
            return "trying clocks that may take less energy"
        self.aim()
        off = self._trials.off(trial)
        if off > LEAST_ERROR:
            return self._make_faster(off)
        saved = self._trials.saved(self._trials.all)
        others = [saved[id(o)] for o in self._trials.all if o is not trial and self._trials.off(o) <= LEAST_ERROR]
        improves = saved[id(trial)] > max(others, default=-1.0) + _LEAST_GAIN
        if improves and self._gain(in_force) > _LEAST_GAIN:
            return "another plan takes less energy by what was measured under this one"
        if saved[id(trial)] < (1 - _DISAPPOINTS) * promised and corrections.change_price == 1.0:
            corrections.change_price = _FEW_CHANGES
            if not self._tried(selection.planned_for(0)):
                return f"it saves less than the {promised:.1%} that were planned, so one with fewer changes is tried"
        return self._keep_best()

    def _explores(self) -> bool:
        """Puts a plan in force that tries clocks which are hardly known; returns False if none promises enough."""
        selection = self._selection
        if self._explored >= _MOST_EXPLORING or self._trials.all[-1].off > _TOO_LATE_TO_EXPLORE:
            self._explored = _MOST_EXPLORING
            return False
        plan, hoped_j = selection.to_try()
        if 1 - hoped_j / selection.planned_for(0).energy_j < _LEAST_HOPE or self._tried(plan):
            self._explored = _MOST_EXPLORING
            return False
        self._explored += 1
        selection.kept = self._exploring = plan
        return True

    def aim(self) -> None:
        """Sets the time margin so that the next plan will be in time, by the model and by what it did not explain.

        Called with each new model, unless a plan was chosen otherwise.
        """
        selection, corrections = self._selection, self._selection.corrections
        if selection.goal.target.power is not None or selection.kept is not None:
            return
        aim(selection, self._trials.unexplained(math.isinf(corrections.change_price)))

    def _gain(self, in_force: Plan) -> float:
        """Returns by how much less energy the plan that the planner makes now takes, relative."""
        selection = self._selection
        same = selection.model.as_it_is(in_force)
        planned = selection.planned_for(0)
        return 1 - planned.energy_j / same.energy_j if same is not None else 1.0

    def _tried(self, plan: Plan) -> bool:
        return self._trials.of(plan) is not None

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
        return self._keep_best()

    def _keep_best(self) -> str:
        """Keeps the plan that saves most of those that keep to the target; if none does, all run at full speed."""
        selection = self._selection
        usable = [trial for trial in self._trials.all if selection.model.as_it_is(trial.plan) is not None]
        off_of = {id(trial): self._trials.off(trial) for trial in usable}
        on_time = [trial for trial in usable if off_of[id(trial)] <= LEAST_ERROR]
        on_time = on_time or [trial for trial in usable if off_of[id(trial)] <= _MOST_OFF]
        saved = self._trials.saved(usable)
        best = self._trials.best_of(on_time, saved)
        if not any(not trial.simple for trial in on_time) and self._makes_changes_dearer():
            return "all plans with clock changes were late, so one for which changes take time is tried"
        if self._tries_one_clock(0.0 if best is None else saved[id(best)]):
            return "plans with clock changes deliver less than one clock per stage promises, so that is tried"
        if best is None:
            if self._repeats(usable):
                return "no plan was on time while clocks were new to the clock processes, so one is measured again"
            selection.corrections.full_speed_only = True  # something else than the plan makes iterations longer
            off = min(trial.off for trial in self._trials.all)
            return (
                f"the plan does not deliver: {off:+.2%} beyond the target, and none is faster than the highest clocks"
            )
        perhaps_in_time = self._trials.perhaps_in_time(usable, saved[id(best)], saved, off_of)
        if perhaps_in_time is not None:
            self._trials.measured_again += 1
            if perhaps_in_time.windows >= selection.full_speed.windows:
                selection.kept = selection.model.full_speed
                return "plans may seem late by chance, so the highest clocks are measured again"
            selection.kept = selection.model.as_it_is(perhaps_in_time.plan)
            return "a plan that saves more may have been late by chance, so it is measured again"
        selection.kept = selection.model.as_it_is(best.plan)
        return ""

    def _repeats(self, trials: Sequence[Trial]) -> bool:
        """Puts the best plan in force once more that is on time by the model; returns False if there is none.

        A clock process learns when a clock acts while a plan uses it. So the first window under a plan can be late
        where clocks act late, and the same plan on time when it comes back.
        """
        selection = self._selection
        if not selection.model.has_slow_clocks or sum(trial.repeated for trial in self._trials.all) >= _MOST_REPEATED:
            return False
        plans = {id(trial): selection.model.as_it_is(trial.plan) for trial in trials}
        late = [
            (plan.energy_j, trial, plan)
            for trial in trials
            if not trial.repeated
            and not trial.exploring
            and (plan := plans[id(trial)]) is not None
            and selection.predicted_off(plan) <= _MOST_OFF
        ]
        if not late:
            return False
        _, trial, selection.kept = min(late, key=lambda each: each[0])
        trial.repeat()
        return True

    def _makes_changes_dearer(self) -> bool:
        """Has plans made for which each change takes time, if that is why all were late; returns False otherwise.

        On most nodes a change takes no time, and a plan for which it does has few of them.
        """
        selection, corrections = self._selection, self._selection.corrections
        costs = selection.model.problem.switch_costs
        if corrections.change_s or costs.stands_still_s or costs.acts_late_s:
            return False
        before, kept = replace(corrections), selection.kept
        corrections.change_s = self._trials.change_s()
        if not corrections.change_s:
            return False
        corrections.time_margin, selection.kept = 0.0, None
        self._rebuild_model()
        self.aim()
        if self._tried(selection.planned_for(0)):
            selection.corrections, selection.kept = before, kept
            self._rebuild_model()
            return False
        corrections.count = min(corrections.count, MOST_CORRECTIONS - _CORRECTIONS_OF_DEAR_CHANGES)
        return True

    def _tries_one_clock(self, saved: float) -> bool:
        """Puts the plan with one clock per stage in force if it may save more; returns False if it may not."""
        selection, corrections = self._selection, self._selection.corrections
        if math.isinf(corrections.change_price):
            return False
        before, kept = replace(corrections), selection.kept
        corrections.change_price, corrections.time_margin, selection.kept = math.inf, 0.0, None
        self.aim()
        plan = selection.planned_for(0)
        if self._tried(plan) or 1 - plan.energy_j / selection.model.full_speed.energy_j <= saved + _LEAST_GAIN:
            corrections.change_price, corrections.time_margin = before.change_price, before.time_margin
            selection.kept = kept
            return False
        corrections.count = min(corrections.count, MOST_CORRECTIONS - _CORRECTIONS_OF_ONE_CLOCK)
        return True
