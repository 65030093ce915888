"""Concludes from the times of iterations under a plan: stragglers to follow, or a plan to measure again."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from pfo_fs.autotune.change_test import ChangeTest
from pfo_fs.autotune.noise import IterationNoise
from pfo_fs.autotune.plan_goal import PlanGoal
from pfo_fs.autotune.question_backoff import QuestionBackoff
from pfo_fs.autotune.stragglers import StragglerDetector
from pfo_fs.models import FrequencySchedule, PlanInputs, UsualTime
from pfo_fs.scheduler.base import IterationTime

_LONGEST_S = 1e6
_MOST_PLANS = 4
_STEPS_KEPT = 8


class IterationWatch:
    """Checks iteration times between measuring windows, and changes the plan inputs where they require it.

    Args:
        pipelines: Data-parallel degree of the job.
        noise: The scatter of iteration times.

    Attributes:
        backoff: When the plan in force may be measured again.
        asks: Whether to measure the plan in force again although its iteration times give no reason for it.
    """

    def __init__(self, pipelines: int, noise: IterationNoise) -> None:
        self.backoff = QuestionBackoff()
        self.asks = False
        self._pipelines = pipelines
        self._noise = noise
        self._detector = StragglerDetector()
        self._changes = PlanChanges()

    @property
    def reasons(self) -> dict[int, str]:
        """For each pipeline that was found to straggle, how that was noticed."""
        return self._detector.reasons

    def usual_time(self, plan: Sequence[FrequencySchedule]) -> UsualTime | None:
        """Returns how long iterations under a plan take, if it was the last one and ran for long enough."""
        return self._changes.usual_time(plan)

    def forget(self) -> None:
        """Drops the latest iterations: the plan inputs are others."""
        self._detector.forget()

    def world_changed(self) -> None:
        """Drops all that was learned of plans: they are measured anew."""
        self.backoff.confirm()
        self.asks = False
        self._changes.forget()

    def compare_anew(self, plan: Sequence[FrequencySchedule]) -> None:
        """Compares the iterations of a plan with the next ones from now on, and no longer with its first ones."""
        self._changes.forget_plan(plan)

    def assess(
        self,
        iteration_times: Sequence[IterationTime],
        plan_inputs: PlanInputs,
        goal: PlanGoal,
        plan: Sequence[FrequencySchedule],
        promised_s: float,
        measured_s: float,
        straggler_s: float,
    ) -> PlanInputs:
        """Returns the plan inputs that follow from iterations that have ended.

        Args:
            iteration_times: New iterations under the plan in force.
            plan_inputs: The present plan inputs.
            goal: The goal that follows from them.
            plan: The schedules of the plan in force.
            promised_s: Time that an iteration may take by the target, in s.
            measured_s: Time of an iteration when the plan was measured, in s; 0.0 before that.
            straggler_s: Time of an iteration at the pace of the slowest straggler, in s.
        """
        usable = [one for one in iteration_times if 0 <= one.pipeline < self._pipelines and 0 < one.span_s < _LONGEST_S]
        self.backoff.note(usable)
        if self._noise.noisy_window and self.backoff.is_over():
            self._noise.noisy_window = False
            return _measured_again(plan_inputs)
        healthy_s = measured_s or promised_s
        expected_s = max(healthy_s, straggler_s) if goal.slowdowns else healthy_s
        known = plan_inputs.slow_pipelines
        self._detector.noise = self._noise.usual
        found = self._detector.slowdowns(
            usable, dict.fromkeys(range(self._pipelines), expected_s), known if self._pipelines > 1 else {}
        )
        most_straggle = self._pipelines > 1 and len(found) > self._pipelines / 2
        if self._pipelines > 1 and found != known and not most_straggle:
            return plan_inputs.model_copy(update={"slow_pipelines": found})
        changed = not goal.slowdowns and self._changes.add(usable, plan, self._pipelines)
        self.asks = self.asks or bool(changed)
        if (most_straggle or self.asks) and self.backoff.is_over():
            # If most pipelines are slower, none is a straggler: what the plan was made with may have changed.
            self.asks = False
            return _measured_again(plan_inputs.model_copy(update={"slow_pipelines": {}}))
        return plan_inputs


class PlanChanges:
    """Tests the iterations of each plan for a change that most pipelines share.

    A plan that comes back, after that for a straggler for example, is compared with its own first iterations.
    """

    def __init__(self) -> None:
        self._tests: list[tuple[Sequence[FrequencySchedule], ChangeTest]] = []
        self._spans_s: dict[int, list[float]] = {}
        self._calm_peak = 0.0

    def forget(self) -> None:
        """Drops what is known of all plans."""
        self._tests.clear()

    def forget_plan(self, plan: Sequence[FrequencySchedule]) -> None:
        """Drops what is known of one plan."""
        self._tests = [(schedules, test) for schedules, test in self._tests if schedules != plan]

    def add(self, iteration_times: Sequence[IterationTime], plan: Sequence[FrequencySchedule], pipelines: int) -> bool:
        """Adds iterations, and returns whether they surely differ from the first ones of the plan.

        Args:
            iteration_times: Iterations of all pipelines.
            plan: The schedules of the plan that was selected last.
            pipelines: Number of pipelines of the job.
        """
        if not self._tests or self._tests[-1][0] is not plan:
            self._begin(plan)
            return False  # these iterations may still be under the schedules before
        test = self._tests[-1][1]
        changed = False
        for one in iteration_times:
            spans_s = self._spans_s.setdefault(one.step, [])
            spans_s.append(one.span_s)
            # More than half of the pipelines have reported the step; of two, the faster one counts.
            if len(spans_s) == pipelines // 2 + 1 and test.add(median_low(spans_s)):
                test.forget_suspicion()
                changed = True
        for step in sorted(self._spans_s)[:-_STEPS_KEPT]:
            del self._spans_s[step]
        self._calm_peak = max(self._calm_peak, test.calm_peak)
        return changed

    def usual_time(self, plan: Sequence[FrequencySchedule]) -> UsualTime | None:
        """Returns how long iterations take under the plan that was selected last; None if that is another one."""
        return self._tests[-1][1].usual if self._tests and self._tests[-1][0] is plan else None

    def _begin(self, plan: Sequence[FrequencySchedule]) -> None:
        """Takes up the test of a plan, a new one if it was not in force before."""
        known = next((test for schedules, test in self._tests if schedules == plan), None)
        others = [(schedules, test) for schedules, test in self._tests if test is not known]
        test = known or ChangeTest(self._calm_peak)
        test.settle()
        self._tests = [*others[1 - _MOST_PLANS :], (plan, test)]


def _measured_again(plan_inputs: PlanInputs) -> PlanInputs:
    return plan_inputs.model_copy(update={"remeasure_epoch": plan_inputs.remeasure_epoch + 1})
