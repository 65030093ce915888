"""The default policy: measure while training, plan for what varies, and keep only what is surely worth it.

`ParetoScheduler` goes through named phases; each part has a module of its own:

    windows     what one measuring window holds                    loads      what varies, and what clocks do to times
    clock_curves, curves   time and power at every clock           beliefs    everything that was measured
    model       the job's DAG with its recent iterations           decision   the rule by which plans are chosen
    probe       the first low clocks, where there is slack         monitor    what has changed
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.decision import MOST_LATE_TRIAL, TOLERANCE, TRIAL_ITERATIONS, Choice, choose, trial_time
from pfo_fs.autotune.job_layout import MOST_WINDOWS_WITHOUT_ORDER, JobLayout
from pfo_fs.autotune.judgements import ClockPlan
from pfo_fs.autotune.model import JobModel
from pfo_fs.autotune.monitor import Monitor, RemeasureBackoff
from pfo_fs.autotune.plan_schedules import PlanGoal, changes_of, goal_of, target_of
from pfo_fs.autotune.probe import probe_plan
from pfo_fs.autotune.status_text import believed_text, figures_of, goal_text
from pfo_fs.autotune.trials import trial_of
from pfo_fs.autotune.windows import Window, measured_results
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.scheduler.base import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest, Windows
from pfo_fs.settings import PFOSettings

log = logging.getLogger(__name__)

_LATE_IN_A_ROW = 2
"""A trial ends when two iterations in a row were later than a trial may be: one may be late by chance. The plan before
runs again after one more."""
_AGAIN, _FIRST_AGAIN = 1.5, 40
"""The plan in force is measured again when the job has run for 1.5 times as many iterations as at the last measurement,
and for 40 more at least: what its data is like changes with time, and a measurement costs nothing."""


class ParetoScheduler(FrequencyScheduler):
    """Measures during the training, then runs the plan that takes least energy within the target.

    Args:
        job_info: The job.
        rank_infos: All its ranks, in any order.
        pfo_settings: Settings of the scheduling side.
        slowdown: Longest iteration time, as a multiple of that at max clocks; 1.0: no slowdown.
        deadline: Instead of `slowdown`: longest iteration time, in s.
        power: Instead of `slowdown`: highest average power of all GPUs of the job together, in W.
        blocking_power: Power of a waiting GPU, in W; None: as measured in the training itself.
    """

    planning_takes_seconds: bool = True
    watches_iteration_times: bool = True

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        slowdown: float | None = None,
        deadline: float | None = None,
        power: float | None = None,
        blocking_power: float | None = None,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self._default_target = target_of(slowdown, deadline, power)
        self._blocking_power_w = blocking_power
        self._layout = JobLayout(job_info, self.rank_infos, lambda: self.orders)
        self._beliefs = Beliefs(self._layout)
        self._goal = self._present_goal()
        self._model: JobModel | None = None
        self._choice: Choice | None = None
        self._tried: dict[object, ClockPlan] = {}  # plans that were measured
        self._schedules: list[FrequencySchedule] = []
        self._refuted: set[object] = set()  # keys of plans that were late as soon as they were in force
        self._iterations = 0  # until the end of the latest window: what a replay knows, too
        self._seen = 0
        self._taken: set[int] = set()  # pipelines that were measured since they were faster than measured
        self._lost = 0.0  # time that trials have taken, as a number of iterations
        self._measured_at = 0  # the iteration of the latest measurement
        self._epoch = 0  # that of the latest decision
        self._monitor = Monitor(job_info.dp_degree)
        self._backoff = RemeasureBackoff()

    # ---- the phases

    # The coordinator calls, at each poll: `assess` with new times of iterations (is there a straggler? is it time to
    # measure?), `react` if that or a person has changed what plans are for, and `request`, which it publishes if it
    # differs from what runs. Once all ranks have measured under that, `observe`: then this generator goes on.

    def _run(self) -> ScheduleGenerator:
        """Warms up, probes low clocks, then for ever: decides, runs the plan, learns from its results."""
        problem = yield from self._warm_up()
        if problem:
            yield ScheduleRequest([], "run", problem)
            return
        yield from self._probe()
        while True:
            self._decide()
            results = measured_results((yield self._plan_request()))
            self._use(results)
            if self._is_contradicted():
                yield from self._refer_again()

    def _warm_up(self) -> Windows[str]:
        """Measures at default clocks, which count as the highest ones, until the orders of instructions are known.

        Returns:
            Why nothing can be planned, for the status; empty if plans can be made.
        """
        layout = self._layout
        for _ in range(MOST_WINDOWS_WITHOUT_ORDER):
            yield from self._window([], "measuring at default clocks")
            if layout.one_pipeline() and (self._beliefs.windows or not all(layout.clocks_of_stage)):
                break
        if problem := layout.problem() or self._beliefs.problem():
            return problem
        self._beliefs.refer_to_latest()
        return ""

    def _is_contradicted(self) -> bool:
        """Whether the plan in force took another time than the model says, and max clocks may tell why."""
        assert self._choice is not None
        assert self._beliefs.reference is not None
        is_old = self._iterations >= _AGAIN * self._beliefs.reference.steps[-1]
        return is_old and self._new_model().contradicts(self._choice.plan)

    def _refer_again(self) -> Windows[None]:
        """Measures max clocks again, and compares the plan in force with the new reference.

        Either the job has changed since they were measured, or the model is wrong. Other plans were compared with the
        old reference, so what was measured of them is forgotten.
        """
        assert self._choice is not None
        plan, window = self._choice.plan, self._beliefs.windows[-1]
        yield from self._window(self._at_max_clocks(), "measuring max clocks again")
        latest = self._beliefs.windows[-1]
        if latest is not window:
            self._beliefs.refer_to_latest()
            self._beliefs.trials.clear()
            self._beliefs.add_trial(plan.key, trial_of(self._new_model(), self._beliefs, plan, window))

    def _probe(self) -> Windows[None]:
        """Measures low clocks where there is slack, so that iterations do not become longer.

        If instructions take another time at max clocks than they did at the default ones, default clocks are
        lower: then both are measured again, since plans are compared with max clocks.
        """
        if self._new_model().one_stretch:
            yield from self._window(self._at_max_clocks(), "measuring max clocks")
            self._beliefs.refer_to_latest()
        for _ in range(2):
            model = self._new_model()
            schedules = model.schedules(probe_plan(model, self._beliefs))
            yield from self._window(schedules, "measuring lower clocks where ranks wait")
            if not self._beliefs.default_clocks_differ():
                return
            log.info("default clocks are lower than max clocks: measuring max clocks")
            self._beliefs.forget()
            while self._beliefs.problem():
                yield from self._window(self._at_max_clocks(), "measuring at max clocks")
            self._beliefs.refer_to_latest()

    def _at_max_clocks(self) -> list[FrequencySchedule]:
        """The schedules with all instructions at max clocks."""
        layout = self._layout
        return [
            layout.schedule(info.rank, len(layout.order(info.rank)) * layout.clocks_of_stage[info.pp_rank][:1])
            for info in layout.rank_infos
            if info.available_frequencies
        ]

    def _window(self, schedules: list[FrequencySchedule], message: str) -> Windows[list[ProfilingResult]]:
        results = measured_results((yield ScheduleRequest(schedules, "measure", message)))
        self._take(results, schedules)
        return results

    def _take(self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]) -> Window | None:
        window = self._beliefs.take(results, schedules)
        if window is not None:
            self._iterations = max(self._iterations, window.steps[-1])
            self._seen = self._measured_at = max(self._seen, self._iterations)
            self._taken.update(window.pipelines)
            self._goal = self._present_goal()
        return window

    def _use(self, results: Sequence[ProfilingResult]) -> None:
        """Uses what was measured under the plan in force."""
        assert self._choice is not None
        plan = self._choice.plan
        self._tried.pop(plan.key, None)
        self._tried[plan.key] = plan
        window = self._take(results, self._schedules)
        if window is not None and not self._goal.slowdowns:
            self._beliefs.add_trial(plan.key, trial_of(self._new_model(), self._beliefs, plan, window))
            self._beliefs.refuted //= 2
            if self._choice.trial:  # what it has taken is known better now than before
                took = TRIAL_ITERATIONS * self._new_model().judge(plan).late
                self._lost += max(0.0, took) - trial_time(self._choice.judgement)

    def _decide(self) -> None:
        """Applies the rule to what is believed now."""
        model = self._model = self._new_model()
        before = self._choice
        epoch = self.plan_inputs.remeasure_epoch
        is_regular, self._epoch = epoch != self._epoch and before is not None and before.converged, epoch
        choice = choose(model, before, self._iterations, self._tried, self._refuted, self._lost, is_regular)
        if choice.trial:
            self._lost += trial_time(choice.judgement)
        if before is None or choice.plan is not before.plan:
            self._schedules = model.schedules(choice.plan)
        self._choice = choice
        self._monitor.expect(*model.spans_under(choice.plan))

    def _new_model(self) -> JobModel:
        answers = self._model.answers if self._model is not None else None
        waiting_w = self._blocking_power_w or self._beliefs.blocking_power_w()
        return JobModel(self._beliefs, self._goal, waiting_w, answers)

    def _plan_request(self) -> ScheduleRequest:
        assert self._choice is not None
        assert self._model is not None
        about = goal_text(self._goal, self._impossibility(), self._monitor.reasons)
        believed = believed_text(self._choice.judgement, self._model.iterations)
        changes = changes_of(self._choice.plan, self._model.problem.pipeline.first_nodes)
        how_often = f"{changes:,} clock changes per iteration and pipeline" if changes else ""
        message = "; ".join(filter(None, [about, believed, how_often, self._choice.note]))
        return ScheduleRequest(self._schedules, "run", message, self._choice.converged)

    def _impossibility(self) -> str:
        """Why no plan keeps to the target, for the status; empty if one does."""
        assert self._choice is not None
        assert self._model is not None
        target, full_s = self._goal.target, self._model.full_s + self._model.tail_s
        if target.deadline is not None and target.deadline < full_s * (1 - TOLERANCE):
            return f"max clocks take {full_s:.4g} s"
        if target.power is not None and self._model.least_power_w > target.power:
            return f"{self._model.least_power_w:,.0f} W is the least"
        return ""

    def _present_goal(self) -> PlanGoal:
        goal = goal_of(self.plan_inputs, self._default_target)
        known = {each for each, slowdown in goal.slowdowns.items() if slowdown < 1 and each in self._taken}
        return replace(goal, slowdowns={each: value for each, value in goal.slowdowns.items() if each not in known})

    # ---- what happens to it

    def was_published(self, schedules: list[FrequencySchedule], stays: bool = False) -> None:
        """In a replay: goes on with the plan that ran in place of the one that was planned anew."""
        super().was_published(schedules, stays)
        is_plan = self._yielded is not None and self._yielded.purpose == "run"
        if is_plan and self._choice is not None and self._model is not None:
            plan = self._model.plan_of(schedules)
            stays_plan = plan if self._choice.stays is self._choice.plan else self._choice.stays
            self._choice = replace(self._choice, plan=plan, stays=stays_plan, judgement=self._model.judge(plan))

    def react(self, plan_inputs: PlanInputs) -> None:
        """Uses other plan inputs from now on."""
        late = plan_inputs.late_trial is not None and plan_inputs.late_trial != self.plan_inputs.late_trial
        before = self.plan_inputs.slow_pipelines
        self._taken -= {each for each, slowdown in plan_inputs.slow_pipelines.items() if before.get(each) != slowdown}
        super().react(plan_inputs)
        goal = self._present_goal()
        changed = goal != self._goal
        self._goal = goal
        self._beliefs.slow_pipelines = goal.slow_pipelines
        if self._choice is None:
            return
        if changed:  # what was tried for another pace tells nothing of this one
            self._choice = replace(self._choice, in_vain=0)
        if late:
            self._refuted.add(self._choice.plan.key)
            self._beliefs.refuted += 1
            if self._choice.trial and plan_inputs.late_trial is not None:
                took = plan_inputs.late_trial * (_LATE_IN_A_ROW + 1)
                self._lost += took - trial_time(self._choice.judgement)
        if changed or late:
            self._decide()

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        return self._plan_request() if yielded.purpose == "run" and self._choice is not None else yielded

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Finds stragglers and other changes, and says when the plan in force is to be measured again."""
        self._backoff.note(iteration_times)
        choice = self._choice
        if choice is None or not iteration_times or self._yielded is None or self._yielded.purpose != "run":
            return self.plan_inputs
        self._seen = max(self._seen, iteration_times[-1].step)
        told = self.plan_inputs.straggler
        announced = {told.pipeline} if told is not None and told.pipeline is not None else set()
        known = {each: value for each, value in self.plan_inputs.slow_pipelines.items() if each in self._goal.slowdowns}
        alarm = self._monitor.add(iteration_times, known, MOST_LATE_TRIAL, announced)
        is_trial = (
            choice.plan.key not in self._tried and self._model is not None and choice.plan != self._model.max_clocks
        )
        if is_trial and self._monitor.late_in_a_row >= _LATE_IN_A_ROW and self._may_be_late(self._monitor.late):
            return self.plan_inputs.model_copy(update={"late_trial": self._monitor.late})
        if alarm is not None and alarm.slow_pipelines != self.plan_inputs.slow_pipelines:
            return self.plan_inputs.model_copy(update={"slow_pipelines": dict(alarm.slow_pipelines)})
        since = self._seen - self._measured_at
        is_due = choice.converged and since >= max(_FIRST_AGAIN, (_AGAIN - 1) * self._measured_at)
        goes_on = choice.windows > 0 and self.plan_inputs.remeasure_epoch == self._epoch
        if is_due or goes_on or (alarm is not None and self._backoff.take_turn()):
            self._measured_at = self._seen
            epoch = self.plan_inputs.remeasure_epoch + 1
            return self.plan_inputs.model_copy(update={"remeasure_epoch": epoch})
        return self.plan_inputs

    def _may_be_late(self, late: float) -> bool:
        """Whether the plan in force can make iterations so late, relative.

        It can if all instructions follow their clocks fully, and changes of clocks take as long again. Later iterations
        have another cause, such as a checkpoint: then the trial goes on.
        """
        assert self._choice is not None
        assert self._model is not None
        return late <= 2 * self._model.latest(self._choice.plan) + MOST_LATE_TRIAL

    @classmethod
    def check_args(cls, **args: Any) -> None:
        """Raises PlanError for invalid arguments."""
        target_of(args.get("slowdown"), args.get("deadline"), args.get("power"))
        blocking = args.get("blocking_power")
        if blocking is not None and (not isinstance(blocking, (int, float)) or blocking <= 0):
            raise PlanError(f"blocking_power is {blocking!r}; give the power of a waiting GPU, in W")

    def export_profile(self) -> str:
        """Returns everything measured, as a profile CSV: the columns of Zeus's, then the errors."""
        return self._beliefs.samples.csv()

    def model(self) -> dict[str, float]:
        """Returns the figures of the model that plans are made with, and what the last plan saves and costs."""
        if self._model is None or self._choice is None:
            return {}
        drift = self._beliefs.power_drift_factor
        return figures_of(self._model, self._choice.judgement) | {"power_drift_factor": drift}
