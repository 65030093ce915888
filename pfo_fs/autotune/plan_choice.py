"""Which plan follows after one was measured: another one that promises more, or the best of those measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pfo_fs.autotune.believed_trials import LEAST_ERROR, BelievedTrials
from pfo_fs.autotune.corrections import MOST_CORRECTIONS, MOST_TIME_MARGIN
from pfo_fs.autotune.plan_aim import aim
from pfo_fs.autotune.plan_selection import PlanSelection
from pfo_fs.autotune.trials import Trial
from pfo_fs.planner import Plan

_MOST_OFF = 0.002
"""Relative: of plans that all miss the target, one that misses it by less than this may stay."""
_MAY_MISS = ((0.02, 0.0015), (0.08, 0.0019))
"""A plan that saves more than those which keep to the target by a first number stays nevertheless if it misses it by
less than the second one; one that was later by far gets another window for that if its clocks were new; relative."""
_LEAST_GAIN = 0.003
"""Relative: another plan is tried if it takes less energy than the plan in force by more than this, and if the plan in
force was such an improvement too."""
_MOST_EXPLORING, _LEAST_HOPE = 4, 0.005
"""At most this many plans are in force only to measure clocks, and only while such a plan may take less energy than the
best one that is known by more than this, relative."""
_VERY_LATE = 0.015
"""Relative: a plan that was late by more than this counts as one more of those, so that few of them cost time."""
_DISAPPOINTS, _FEW_CHANGES = 0.25, 3.0
"""If a plan saves less than it promised by more than this share, one is tried beside it for which clock changes cost so
many times as much."""
_CORRECTIONS_OF_ONE_CLOCK, _CORRECTIONS_OF_DEAR_CHANGES = 2, 3
"""So many plans with one clock per stage may be tried at the end, and so many once changes are known to take time."""
_MOST_SEARCHED = 2
"""At most so many plans are tried that were searched for some seconds."""
_MOST_REPEATED = 2
"""At most so many plans that were late are put in force once more before all run at the highest clocks."""


class PlanChoice:
    """Chooses the plan that follows, for one target.

    Args:
        selection: The plans.
        trials: Those that were measured.
        rebuild_model: Makes the selection use a model from everything measured so far.

    Attributes:
        wants_reference: Whether the highest clocks are to be measured again, and then the choice made anew.
    """

    def __init__(self, selection: PlanSelection, trials: BelievedTrials, rebuild_model: Callable[[], None]) -> None:
        self.wants_reference = False
        self._selection = selection
        self._trials = trials
        self._rebuild_model = rebuild_model
        self._exploring: Plan | None = None  # the last plan that was in force only to measure clocks
        self._explored = 0  # plans so far that were only in force to measure clocks
        self._searched: list[Plan] = []  # the plans that longer searches have found
        self._in_force: Trial | None = None  # that of the plan in force, which gets no other window by staying

    def forget(self) -> None:
        """Drops what was tried."""
        self._explored, self.wants_reference = 0, False
        self._searched.clear()

    @property
    def explores(self) -> bool:
        """Whether the plan in force is there only to measure clocks."""
        return self._exploring is not None and self._exploring is self._selection.kept

    def next_after(self, trial: Trial, *, in_force: bool) -> str:
        """Chooses the plan that follows one that was measured; returns a note for the status.

        Args:
            trial: The plan.
            in_force: Whether it is in force; otherwise the highest clocks were measured since.
        """
        selection, corrections = self._selection, self._selection.corrections
        self.wants_reference = False
        self._in_force = trial if in_force else None
        if corrections.count >= MOST_CORRECTIONS or self._trials.measured_again:
            return self._keep_best()
        if self._trials.needs_reference(trial):
            self._trials.references_left -= 1
            self.wants_reference = True
            return "the highest clocks are measured again, as what they take is not known well"
        corrections.count += 1
        promised = 1 - trial.plan.energy_j / selection.model.full_speed.energy_j
        selection.kept = None
        self._rebuild_model()
        if self._explores(trial):
            return "trying clocks that may take less energy"
        self.aim()
        off = self._trials.off(trial)
        if off > LEAST_ERROR:
            return self._make_faster(off)
        saved = self._trials.saved(self._trials.all)
        others = [saved[id(o)] for o in self._trials.all if o is not trial and self._trials.off(o) <= LEAST_ERROR]
        improves = saved[id(trial)] > max(others, default=-1.0) + _LEAST_GAIN
        if improves and self._gain(trial.plan) > _LEAST_GAIN:
            return "another plan takes less energy by what was measured under this one"
        if saved[id(trial)] < (1 - _DISAPPOINTS) * promised and corrections.change_price == 1.0:
            corrections.change_price = _FEW_CHANGES
            if not self._tried(selection.planned_for(0)):
                return f"it saves less than the {promised:.1%} that were planned, so one with fewer changes is tried"
        return self._keep_best()

    def _explores(self, trial: Trial) -> bool:
        """Puts a plan in force that tries clocks which are hardly known; returns False if none promises enough.

        Args:
            trial: The plan that was measured last.
        """
        selection = self._selection
        if trial.off > _VERY_LATE:
            self._explored += 1
        if self._explored >= _MOST_EXPLORING:
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

    def _gain(self, plan: Plan) -> float:
        """Returns by how much less energy the plan that the planner makes now takes, relative."""
        selection = self._selection
        same = selection.model.as_it_is(plan)
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
        if not any(not trial.simple and not trial.early for trial in on_time) and self._makes_changes_dearer():
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
            if perhaps_in_time.windows >= selection.full_speed.windows or perhaps_in_time is self._in_force:
                self.wants_reference = True
                return "plans may seem late by chance, so the highest clocks are measured again"
            selection.kept = selection.model.as_it_is(perhaps_in_time.plan)
            return "a plan that saves more may have been late by chance, so it is measured again"
        may_miss = {id(trial): _may_miss(saved[id(trial)] - saved[id(best)]) for trial in usable}
        stay = [trial for trial in usable if off_of[id(trial)] <= may_miss[id(trial)]]
        best = self._trials.best_of([best, *stay], saved) or best
        if self._repeats([trial for trial in usable if 0 < may_miss[id(trial)] < off_of[id(trial)]]):
            return "a plan that saves more was late while its clocks were new, so it is measured again"
        selection.kept = selection.model.as_it_is(best.plan)
        if self._searches_longer(saved[id(best)]):
            return "a longer search has found a plan that takes less energy"
        return ""

    def _searches_longer(self, saved: float) -> bool:
        """Searches some seconds for a better plan, and puts it in force; returns False if there is none.

        Meanwhile the best one runs. Only where GPUs stand still at clock changes: there, plans that are made quickly
        save less than is possible. If the plan that was found turns out to be late, a faster one follows.
        """
        selection, corrections = self._selection, self._selection.corrections
        if len(self._searched) >= _MOST_SEARCHED or math.isinf(corrections.change_price):
            return False
        if not selection.model.stands_still:
            return False
        last = self._trials.of(self._searched[-1]) if self._searched else None
        late = 0.0 if last is None else self._trials.off(last)
        if self._searched and late <= LEAST_ERROR:
            return False
        before, kept = replace(corrections), selection.kept
        selection.kept = None
        self.aim()
        plan = selection.searched(late)
        self._searched.append(plan)
        if self._tried(plan) or 1 - plan.energy_j / selection.model.full_speed.energy_j <= saved + _LEAST_GAIN:
            selection.corrections, selection.kept = before, kept
            return False
        selection.kept = plan
        corrections.count = MOST_CORRECTIONS  # of those that were measured, the best one stays then
        return True

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
        _, trial, plan = min(late, key=lambda each: each[0])
        if trial is self._in_force:
            self.wants_reference = True  # then the plan comes back, and is measured
        else:
            selection.kept = plan
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


def _may_miss(more: float) -> float:
    """Returns by how much a plan may miss the target that saves so much more than all that keep to it, relative."""
    return max((off for least, off in _MAY_MISS if more > least), default=0.0)
