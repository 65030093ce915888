"""Concludes from the times of iterations under a plan: stragglers to follow, or a plan to measure again."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.autotune.noise import IterationNoise
from pfo_fs.autotune.plan_goal import PlanGoal
from pfo_fs.autotune.stragglers import RemeasureBackoff, StragglerDetector
from pfo_fs.models import PlanInputs
from pfo_fs.scheduler.base import IterationTime

_LONGEST_S = 1e6


class IterationWatch:
    """Checks iteration times between measuring windows, and changes the plan inputs where they require it.

    Args:
        pipelines: Data-parallel degree of the job.
        noise: The scatter of iteration times.
    """

    def __init__(self, pipelines: int, noise: IterationNoise) -> None:
        self._pipelines = pipelines
        self._noise = noise
        self._detector = StragglerDetector()
        self._backoff = RemeasureBackoff()

    @property
    def reasons(self) -> dict[int, str]:
        """For each pipeline that was found to straggle, how that was noticed."""
        return self._detector.reasons

    def forget(self) -> None:
        """Drops the iterations seen so far: another plan is in force."""
        self._detector.forget()

    def assess(
        self,
        iteration_times: Sequence[IterationTime],
        plan_inputs: PlanInputs,
        goal: PlanGoal,
        promised_s: float,
        measured_s: float,
        straggler_s: float,
    ) -> PlanInputs:
        """Returns the plan inputs that follow from iterations that have ended.

        Args:
            iteration_times: New iterations under the plan in force.
            plan_inputs: The present plan inputs.
            goal: The goal that follows from them.
            promised_s: Time that an iteration may take by the target, in s.
            measured_s: Time of an iteration when the plan was measured, in s; 0.0 before that.
            straggler_s: Time of an iteration at the pace of the slowest straggler, in s.
        """
        usable = [one for one in iteration_times if 0 <= one.pipeline < self._pipelines and 0 < one.span_s < _LONGEST_S]
        self._backoff.note(usable)
        if self._noise.noisy_window:
            if not self._backoff.is_over():
                return plan_inputs
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
        drifted = not goal.slowdowns and measured_s and self._detector.drifted()
        if (most_straggle or drifted) and self._backoff.is_over():
            # If most pipelines are slower, none is a straggler: the figures that the plan was made with may be wrong.
            return _measured_again(plan_inputs.model_copy(update={"slow_pipelines": {}}))
        return plan_inputs


def _measured_again(plan_inputs: PlanInputs) -> PlanInputs:
    return plan_inputs.model_copy(update={"remeasure_epoch": plan_inputs.remeasure_epoch + 1})
