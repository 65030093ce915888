"""What is believed of plans that were in force: how late they are, and what they save, by measurement and model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pfo_fs.autotune.plan_selection import PlanSelection
from pfo_fs.autotune.trials import Trial, believed_savings, expected_difference
from pfo_fs.models import UsualTime
from pfo_fs.planner import Plan

LEAST_ERROR = 0.001
"""Relative: a smaller difference from the target counts as noise."""
_MOST_WINDOWS, _WORTH_A_WINDOW = 4, 0.01
"""A plan is measured so often at most to find out whether it was late by chance, and only if it saves so much more than
the best one that was in time, relative."""
_MOST_MEASURED_AGAIN, _MORE_AGAIN, _WORTH_MORE_WINDOWS = 2, 4, 0.08
"""At most so many windows answer whether plans were late by chance; up to the second number if the plan saves more than
the best one by the third, relative."""
_REFERENCE_ERROR = 0.0006
"""The time at the highest clocks is not known well if its relative standard error is larger than this: every plan is
compared with it."""
_MOST_REFERENCES = 2
"""The highest clocks are measured again at most so often while plans are tried, and twice as often when one is late."""
_LATE_ERRORS, _MOST_LATE = 1.0, 2
"""A plan turns out to be late if its iterations are too long by so many standard errors; at most so often."""
_ALIKE = 0.002
"""Relative: a plan stays in force if another one saves more by less: what is believed changes a little each time."""
_CHANGES_S = (0.0, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01)
"""Times in s that a clock change may cost on the longest path."""
_USUAL_CHANGE_S, _MODEL_ERROR = 0.001, 0.0008
"""The usual one, if changes cost any, and the usual error of the model, relative."""


class BelievedTrials:
    """The trials for one target.

    Args:
        selection: The plans; its model predicts times and energies.

    Attributes:
        all: The trials, the latest plan last.
        noise: Relative standard deviation of an iteration's time.
        window_iterations: Number of iterations of a window, those of all pipelines together.
        measured_again: Plans that were measured again because noise may have made them late.
        latest: The trial of the plan that was measured last.
        references_left: How often the highest clocks may still be measured again before a plan is judged.
    """

    def __init__(self, selection: PlanSelection) -> None:
        self.all: list[Trial] = []
        self.noise = 0.0
        self.window_iterations = 1
        self.measured_again = 0
        self.latest: Trial | None = None
        self.references_left = _MOST_REFERENCES
        self._found_late = 0  # plans that have turned out to be late
        self._selection = selection

    def forget(self) -> None:
        """Drops all of them."""
        self.all.clear()
        self.latest = None
        self.references_left = _MOST_REFERENCES
        self.measured_again = self._found_late = 0

    def of(self, plan: Plan) -> Trial | None:
        """Returns the trial of a plan."""
        return next((trial for trial in self.all if trial.plan.frequencies_mhz == plan.frequencies_mhz), None)

    def is_late(self, plan: Plan, usual: UsualTime) -> bool:
        """Returns whether a plan turns out to miss its target, by the iterations since it was measured.

        Args:
            plan: The plan in force, which stays.
            usual: What these iterations take.
        """
        selection, trial = self._selection, self.of(plan)
        if trial is None or selection.goal.target.power is not None or selection.runs_at_full_speed:
            return False
        if self._found_late >= _MOST_LATE:
            return False
        whole_error = self.noise / math.sqrt(self.window_iterations * trial.windows) if trial.whole != 1.0 else 0.0
        beyond = self._late(trial, usual) - _LATE_ERRORS * math.hypot(usual.error, self._reference_error(), whole_error)
        # A plan may stay though it is a little late; it turns out to be late if it is later than was believed then.
        return beyond > LEAST_ERROR and beyond > self.off(trial)

    def found_late(self, plan: Plan, usual: UsualTime) -> None:
        """Takes these iterations into account; the arguments are those of `is_late`."""
        trial = self.of(plan)
        if trial is not None:
            trial.off = self._late(trial, usual)
            trial.windows = max(trial.windows, usual.iterations // self.window_iterations)
            self._found_late += 1
            self.measured_again, self.references_left = 0, 2 * _MOST_REFERENCES

    def _late(self, trial: Trial, usual: UsualTime) -> float:
        """Returns how far they are from the target.

        In zero-bubble schedules the first stage may not end last; by how much sooner it ends depends on the plan.
        """
        return usual.time_s * trial.whole / self._selection.target_s() - 1

    def _reference_error(self) -> float:
        """Returns the relative standard error of the time at the highest clocks."""
        return self.noise / math.sqrt(self.window_iterations * self._selection.full_speed.windows)

    def unexplained(self, simple: bool, without: Trial | None = None) -> float:
        """Returns by how much measured iterations were longer than the model makes of the measured instructions.

        Args:
            simple: Of plans with one clock per stage: clock changes that act at other moments than planned make only
                plans late in which there are any.
            without: A trial that does not count.
        """
        trials = [trial for trial in self.all if trial.simple == simple and not trial.early and trial is not without]
        trials = [trial for trial in trials if not trial.exploring] or trials
        total, windows = 0.0, 0
        for trial in trials:
            plan = self._selection.model.as_it_is(trial.plan)
            if plan is not None:
                total += trial.windows * (trial.off - self._selection.predicted_off(plan))
                windows += trial.windows
        return self._real(total / windows, windows) if windows else 0.0

    def _real(self, difference: float, windows: int) -> float:
        """Returns the expected part of a difference in time that is real."""
        return expected_difference(difference, self._error(windows) ** 2)

    def _error(self, windows: int) -> float:
        """Returns the standard error of a relative difference in time: iterations scatter, as did the reference."""
        all_windows = 1 / max(1, windows) + 1 / self._selection.full_speed.windows
        return self.noise * math.sqrt(all_windows / self.window_iterations)

    def needs_reference(self, trial: Trial) -> bool:
        """Returns whether to measure the highest clocks again before a plan is judged: their time is not known well.

        Plans that only try clocks are not judged by it, nor plans for a deadline.
        """
        selection = self._selection
        if not self.references_left or trial.exploring or selection.runs_at_full_speed:
            return False
        if selection.goal.target.deadline is not None:
            return False
        return self._reference_error() > _REFERENCE_ERROR

    def off(self, trial: Trial) -> float:
        """Returns how far a plan is from the target, by what was measured under it and others, and by the model."""
        selection = self._selection
        plan = selection.model.as_it_is(trial.plan)
        if plan is None or selection.goal.target.power is not None:
            return trial.off
        predicted = selection.predicted_off(plan) + max(0.0, self.unexplained(trial.simple, trial))
        return predicted + self._real(trial.off - predicted, trial.windows)

    def saved(self, trials: Sequence[Trial]) -> dict[int, float]:
        """Returns what plans are believed to save, by the id of each trial."""
        model = self._selection.model
        plans = [model.as_it_is(trial.plan) for trial in trials]
        promised = [
            trial.saved if plan is None else 1 - plan.energy_j / model.full_speed.energy_j
            for trial, plan in zip(trials, plans, strict=True)
        ]
        return {id(trial): saved for trial, saved in zip(trials, believed_savings(promised, trials), strict=True)}

    def best_of(self, trials: Sequence[Trial], saved_of: Mapping[int, float]) -> Trial | None:
        """Returns the trial that saves most, or the latest one if that saves about as much; None if there are none.

        Args:
            trials: The trials.
            saved_of: What each is believed to save, by its id.
        """
        stays = {id(trial): _ALIKE * (trial is self.latest) for trial in trials}
        return max(trials, key=lambda trial: saved_of[id(trial)] + stays[id(trial)], default=None)

    def perhaps_in_time(
        self, trials: Sequence[Trial], least_saved: float, saved_of: Mapping[int, float], off_of: Mapping[int, float]
    ) -> Trial | None:
        """Returns a plan that was late, but perhaps by chance; None if there is none that is worth another window.

        Args:
            trials: The plans.
            least_saved: What the best plan saves that was in time, relative.
            saved_of, off_of: What is believed of each plan, by the id of its trial.
        """
        if self.measured_again >= _MORE_AGAIN:
            return None
        worth = _WORTH_A_WINDOW if self.measured_again < _MOST_MEASURED_AGAIN else _WORTH_MORE_WINDOWS
        found = [
            trial
            for trial in trials
            if saved_of[id(trial)] > least_saved + worth
            and trial.windows < _MOST_WINDOWS
            and 0 < off_of[id(trial)] - LEAST_ERROR <= self._error(trial.windows)
        ]
        return max(found, key=lambda trial: saved_of[id(trial)], default=None)

    def change_s(self) -> float:
        """Returns the time in s that a clock change seems to cost, by how late plans with different ones were."""
        selection = self._selection
        trials = [trial for trial in self.all if not trial.exploring and not trial.early and not trial.simple]
        plans = [(trial, plan) for trial in trials if (plan := selection.model.as_it_is(trial.plan)) is not None]

        def unlikely(change_s: float) -> float:
            total = (change_s / _USUAL_CHANGE_S) ** 2
            for trial, plan in plans:
                variance = _MODEL_ERROR**2 + self.noise**2 / (trial.windows * self.window_iterations)
                total += (trial.off - selection.predicted_off(plan, change_s)) ** 2 / variance
            return total

        return min(_CHANGES_S, key=unlikely)
