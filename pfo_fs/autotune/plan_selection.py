"""Which plan each pipeline of a job runs, for a target, with stragglers, and under a cap on the power."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.autotune.corrections import Corrections
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_model import JobModel
from pfo_fs.autotune.plan_goal import PlanGoal
from pfo_fs.autotune.window_results import FullSpeed
from pfo_fs.models import FrequencySchedule
from pfo_fs.planner import Plan

LEAST_TIME_GAIN = 0.002
"""Relative: a plan that is faster than necessary by less than this is not replaced."""
_LEAST_DEADLINE = 0.01
"""Relative to full speed: the least time of a pipeline if a deadline leaves none, as times are divided by it."""


class PlanSelection:
    """Returns plans for the present goal.

    Args:
        layout: The job.
        goal: The first goal.

    Attributes:
        goal: The present goal; it may be set at any time.
        corrections: Changes of what the planner is asked for, after plans were measured.
        kept: A plan that is to be tried, or a measured one that stays for the target; None: a new one is made with each
            model.
        full_speed: Time and energy of an iteration at the highest clocks.
    """

    def __init__(self, layout: JobLayout, goal: PlanGoal) -> None:
        self.goal = goal
        self.corrections = Corrections()
        self.kept: Plan | None = None
        self.full_speed = FullSpeed(0.0, 0.0, 0.0)
        self._layout = layout
        self._model: JobModel | None = None
        self._model_version = 0
        self._cached: tuple[object, list[FrequencySchedule]] | None = None

    @property
    def model(self) -> JobModel:
        """The model that plans are made with; only after `use_model`."""
        assert self._model is not None
        return self._model

    @property
    def has_model(self) -> bool:
        """Whether plans can be made."""
        return self._model is not None

    def use_model(self, model: JobModel) -> None:
        """Makes plans with another model from now on."""
        self._model, self._model_version = model, self._model_version + 1
        if self.kept is not None:
            self.kept = model.as_it_is(self.kept)

    @property
    def _model_bias(self) -> float:
        """An iteration at full speed by the model, as a multiple of the measured one."""
        return self.model.full_speed.iteration_time_s / self.full_speed.span_s if self.full_speed.span_s else 1.0

    @property
    def _mean_bias(self) -> float:
        """The same for the mean, as durations scatter."""
        return self.model.full_speed_s / self.full_speed.span_s if self.full_speed.span_s else 1.0

    def schedules(self) -> list[FrequencySchedule]:
        """Returns the schedules of all ranks; the same list while they do not change."""
        kept = None if self.kept is None else self.kept.frequencies_mhz
        key = self.goal.key, self.full_speed, self._model_version, self.corrections.key, kept
        if self._cached is None or self._cached[0] != key:
            schedules = self._schedules_of_plans()
            if self._cached is not None and schedules == self._cached[1]:
                schedules = self._cached[1]
            self._cached = key, schedules
        return self._cached[1]

    def adopt(self, schedules: Sequence[FrequencySchedule]) -> bool:
        """Takes schedules that were published as the plan in force; returns False if they are no plan of this model.

        Args:
            schedules: The schedules of all ranks.
        """
        before, full_speed_only = self.kept, self.corrections.full_speed_only
        by_stage = {
            info.pp_rank: schedule
            for schedule in schedules
            if (info := self._layout.place.get(schedule.rank)) is not None and info.dp_rank == 0
        }
        clocks_mhz = [mhz for _, schedule in sorted(by_stage.items()) for _, mhz in schedule.frequencies]
        full_speed = self.model.full_speed
        if len(clocks_mhz) == len(full_speed.frequencies_mhz):
            ran = full_speed.replace(frequencies_mhz=tuple(clocks_mhz), solver="published", lower_bound_j=None)
            self.kept, self.corrections.full_speed_only = self.model.as_it_is(ran), False
            if self.kept is not None and self._schedules_of_plans() == sorted(schedules, key=lambda each: each.rank):
                return True
        self.kept, self.corrections.full_speed_only = before, full_speed_only
        return False

    def _schedules_of_plans(self) -> list[FrequencySchedule]:
        layout = self._layout
        plans = {pipeline: self.plan_of(pipeline) for pipeline in range(layout.job_info.dp_degree)}
        by_plan = {id(plan): plan.schedules() for plan in plans.values()}
        schedules = []
        for info in layout.rank_infos:
            schedule = by_plan[id(plans[info.dp_rank])][info.pp_rank]
            stages = schedule.stages if layout.names_stages(info.rank) else None
            schedules.append(schedule.model_copy(update={"rank": info.rank, "stages": stages}))
        return schedules

    def plan_of(self, pipeline: int) -> Plan:
        """Returns the plan of one pipeline: for the target, or for the slowest straggler's time if that is longer."""
        if self.corrections.full_speed_only:
            return self.model.full_speed
        if self.kept is not None and not self.goal.slowdowns:
            return self.kept
        return self.planned_for(pipeline)

    @property
    def runs_at_full_speed(self) -> bool:
        """Whether the plan of pipeline 0 is that with all instructions at the highest clock."""
        return self.plan_of(0).frequencies_mhz == self.model.full_speed.frequencies_mhz

    def planned_for(self, pipeline: int) -> Plan:
        """Returns the plan that the planner makes for one pipeline."""
        slowdowns, target_s = self.goal.slowdowns, self.target_s()
        time_margin, change_price = self.corrections.time_margin, self.corrections.change_price
        straggler_s = self.goal.slowest * self.full_speed.span_s
        # The time of a healthy pipeline with this plan: a straggler takes longer by its slowdown.
        budget_s = max(target_s, straggler_s) / slowdowns.get(pipeline, 1.0)
        if pipeline in slowdowns and self.goal.target.power is None:
            return self.model.within(self._model_bias * budget_s, time_margin, change_price)
        if budget_s > target_s * (1 + LEAST_TIME_GAIN):
            # The plan ends a little before the straggler (half of the least gain), so that the straggler never waits.
            deadline_s = self._model_bias * budget_s * (1 - LEAST_TIME_GAIN / 2)
            return self.model.within(deadline_s, max(0.0, time_margin), change_price, straggler=True)
        if self.goal.target.power is not None:
            return self._within_power(self.goal.target.power)
        return self.model.within(self._model_bias * target_s, time_margin, change_price, mean_s=self._mean_s(target_s))

    def _mean_s(self, target_s: float) -> float:
        """Returns the longest mean time of an iteration by the model, in s."""
        return self._mean_bias * target_s * (1 + self.corrections.late_by)

    def searched(self, late: float) -> Plan:
        """Returns the plan of a search that takes seconds, where GPUs stand still at clock changes.

        Args:
            late: By how much the last one was late, relative.
        """
        corrections, target_s = self.corrections, self.target_s()
        deadline_s, mean_s = self._model_bias * target_s, self._mean_s(target_s) * (1 - late)
        return self.model.searched(deadline_s, corrections.time_margin, corrections.change_price, mean_s)

    def to_try(self) -> tuple[Plan, float]:
        """Returns a plan with clocks that are hardly known, and the energy in J that it takes if they are good."""
        return self.model.to_try(self._model_bias * self.target_s(), self.corrections.time_margin)

    def _within_power(self, power_w: float) -> Plan:
        """Returns the plan of one pipeline under a cap on the power of all."""
        return self.model.at_power(self.corrections.power_scale * power_w / self._layout.job_info.dp_degree)

    def target_s(self) -> float:
        """Returns the time in s that the target allows from an iteration's begin to the end of its last instruction."""
        target, full_speed = self.goal.target, self.full_speed
        if target.deadline is not None:
            return max(_LEAST_DEADLINE * full_speed.span_s, target.deadline - full_speed.tail_s)
        if target.power is not None:
            return self._within_power(target.power).iteration_time_s / self._model_bias
        return (target.slowdown or 1.0) * full_speed.span_s

    def predicted_off(self, plan: Plan, change_s: float | None = None) -> float:
        """Returns how far iterations under a plan will be from the time of the target on average, relative.

        Args:
            plan: The plan.
            change_s: The time in s for which a rank stands still at a clock change; None: as far as it is known.
        """
        return self.model.expected_s(plan, change_s) / (self._mean_bias * self.target_s()) - 1

    def switching(self) -> str:
        """Returns why the plan changes clocks as often as it does, for the status; empty before there is a model."""
        return self.plan_of(0).switching if self._model is not None else ""

    def impossibility(self) -> str:
        """Returns why no plan keeps to the target, for the status; empty if one does, or before there is a model."""
        cap_w, deadline_s = self.goal.target.power, self.goal.target.deadline
        if self._model is None:
            return ""
        if cap_w is not None:
            pipelines = self._layout.job_info.dp_degree
            least_w = self._model.at_power(cap_w / pipelines).average_power_w * pipelines
            return f"{least_w:,.0f} W is the least" if least_w > cap_w * (1 + LEAST_TIME_GAIN) else ""
        if deadline_s is not None and deadline_s < self.full_speed.step_s * (1 - LEAST_TIME_GAIN):
            return f"the highest clocks take {self.full_speed.step_s:.4g} s"
        return ""
