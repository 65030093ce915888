"""The default policy: profile while training, plan, check the plan by measuring, follow stragglers and targets.

`ParetoScheduler` puts the parts together; each has a module of its own:

    informed_sweep      windows in which instructions are measured     job_measurements  what was measured
    window_choice       which clocks a window measures                 clock_curves      what follows for all clocks
    earlier_profile     what an earlier job had measured               model_building    the job in the planner's form
    plan_selection      the plan of each pipeline                      verification      what a plan in force does
    iteration_watch     stragglers, and changes of the job             reprofiling       measures what has changed
    profiling_budget    how much of the time profiling may take        status_text       text for the status
    plan_choice         which plan follows, and which stays            trials            plans that were measured
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pfo_fs.autotune.corrections import MOST_CORRECTIONS
from pfo_fs.autotune.curve_profile import usage_of
from pfo_fs.autotune.earlier_profile import EarlierProfile
from pfo_fs.autotune.informed_sweep import InformedSweep
from pfo_fs.autotune.instruction_profiler import check_sweep_args
from pfo_fs.autotune.iteration_watch import IterationWatch
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.measured_switching import UNKNOWN_COSTS
from pfo_fs.autotune.model_building import ModelSettings, build_model
from pfo_fs.autotune.noise import IterationNoise
from pfo_fs.autotune.plan_goal import PlanGoal, goal_of, target_of
from pfo_fs.autotune.plan_selection import PlanSelection
from pfo_fs.autotune.profile_exchange import profile_csv
from pfo_fs.autotune.profile_sweep import Windows
from pfo_fs.autotune.profiling_budget import ProfilingBudget
from pfo_fs.autotune.reprofiling import Reprofiling
from pfo_fs.autotune.status_text import goal_text, measured_text
from pfo_fs.autotune.verification import PlanVerification, Verdict
from pfo_fs.autotune.window_results import full_speed_of, iteration_spans, measured_results, pooled, relative_noise
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.planner import Plan, SwitchCosts
from pfo_fs.scheduler.base import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest
from pfo_fs.scheduler.plausible import plausible_results
from pfo_fs.settings import PFOSettings

log = logging.getLogger(__name__)

_STANDARD_ERRORS = 4.0
"""The first window at default clocks is pooled with that at the highest ones if they differ by less than this."""
_FAR_OFF, _CORRECTIONS_IF_FAR_OFF, _OFF = 0.05, 2, 0.01
"""The time at the highest clocks is measured again if plans miss their target by more than the first number, relative,
after so many corrections, or by more than the last one after all corrections."""


class ParetoScheduler(FrequencyScheduler):
    """Profiles during the training, then runs the plan that takes least energy within the target.

    It starts with what earlier jobs of the same kind have measured, if the first iterations agree with it. A plan is
    measured as soon as it is in force; other plans are tried where the measurements suggest it, and of those that keep
    to the target the one that saves most stays. Pipelines that wait for a straggler (a slower pipeline) get the plan
    for the straggler's pace (T' in Perseus, SOSP'24, section 4) until the straggler is gone. When iterations surely
    take another time than when their plan began, the policy measures what has changed and makes a new plan.

    Args:
        job_info: The job.
        rank_infos: All its ranks, in any order.
        pfo_settings: Settings of the scheduling side.
        slowdown: Longest iteration time, as a multiple of that at the highest clocks; 1.0: no slowdown.
        deadline: Instead of `slowdown`: longest iteration time, in s.
        power: Instead of `slowdown`: highest average power of all GPUs of the job together, in W.
        blocking_power: Power of a waiting GPU, in W; None: as measured in the training itself.
        switch_time: Time in s for which a GPU stands still at a clock change; the longer, the fewer changes a plan has.
            None: what a change costs is measured in the training.
        tolerance: Relative error of time and power that is good enough for the profile.
        max_windows: The largest number of profiling windows.
        max_profiling_share: Profiling may take this share of the time since the job's start from training. The first
            profile is made whatever it takes, but counts.
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
        switch_time: float | None = None,
        tolerance: float = 0.003,
        max_windows: int = 64,
        max_profiling_share: float = 0.01,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self._default_target = target_of(slowdown, deadline, power)
        self._measures_switching = switch_time is None
        costs = UNKNOWN_COSTS if switch_time is None else SwitchCosts(stands_still_s=switch_time)
        self._model_settings = ModelSettings(costs, blocking_power, changes_act_late=self._measures_switching)
        self._layout = JobLayout(job_info, self.rank_infos, lambda: self.orders)
        self._measurements = JobMeasurements(self._layout)
        self._earlier_profile = EarlierProfile()
        self._sweep = InformedSweep(self._measurements, tolerance, max_windows, self._accept_full_speed)
        self._selection = PlanSelection(self._layout, self._goal())
        self._verification = PlanVerification(self._layout, self._selection, self._rebuild_model)
        self._noise = IterationNoise()
        self._watch = IterationWatch(job_info.dp_degree, self._noise)
        self._reprofiling = Reprofiling(self._measurements, self._sweep, self._watch)
        self._budget = ProfilingBudget(max_profiling_share)
        self._asked = False  # whether the next window answers the question if something has changed
        self._reference_is_sure = False  # whether the time at the highest clocks was checked for this target
        self._runs_other = False  # whether what is in force is no plan of this policy: another release has made it
        self._verdict = Verdict()

    @classmethod
    def check_args(cls, **args: Any) -> None:
        """Raises PlanError for invalid arguments."""
        check_sweep_args(**args)
        target_of(args.get("slowdown"), args.get("deadline"), args.get("power"))
        blocking = args.get("blocking_power")
        if blocking is not None and (not isinstance(blocking, (int, float)) or blocking <= 0):
            raise PlanError(f"blocking_power is {blocking!r}; give the power of a waiting GPU, in W")
        share = args.get("max_profiling_share", 0.01)
        if not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise PlanError(f"max_profiling_share is {share!r}; give a share of the time, such as 0.01 for 1 %")

    # ---- the loop

    def _run(self) -> ScheduleGenerator:
        problem = yield from self._sweep.run()
        if problem:
            yield ScheduleRequest([], "run", problem)
            return
        self._plan_anew()
        while True:
            results = measured_results((yield self._plan_request()))
            asked, self._asked = self._asked, False
            noise = relative_noise(iteration_spans(results, self._layout))
            if self._noise.judge(noise):
                note = f"iterations scattered by {noise:.0%}, so they are measured again"
                self._verdict = Verdict(note=note)  # `assess` then asks for another window
                continue
            yield from self._use_window(results, asked)

    def _use_window(self, results: Sequence[ProfilingResult], asked: bool) -> Windows:
        """Uses what was measured under a plan: to follow a change, or to check the plan.

        Args:
            results: The results of a window.
            asked: Whether the window was asked for because something may have changed.
        """
        schedules, reprofiling = self._selection.schedules(), self._reprofiling
        change = reprofiling.change(results, schedules, self._noise.usual)
        if self._earlier_profile.is_refuted_by(self._measurements, results, schedules):
            yield from reprofiling.profile_lower_clocks(self._layout.kinds, results, schedules)
        elif asked and change is not None:
            yield from reprofiling.follow(change, results, schedules)
        elif asked and reprofiling.odd_kinds:
            yield from reprofiling.profile_lower_clocks(reprofiling.odd_kinds, results, schedules)
        else:
            self._watch.asks = self._watch.asks or change is not None
            windows = self._sweep.windows
            self._measurements.take(results, schedules)
            yield from self._sweep.further(usage_of(self._one_plan()))
            if self._runs_other:
                self._plan_anew()
                return
            if self._sweep.windows > windows:
                self._verification.count_early(results, self._noise.usual, self._measurements.power_drift_factor)
                self._verdict = Verdict()
                self._rebuild_model()
                self._verification.aim()
                return
            self._verify(results)
            while self._verification.wants_reference:
                yield from self._refine_reference()
            if not self._doubts_reference():
                return
            self._reference_is_sure = True
            if not (yield from reprofiling.check_reference()):
                return
        self._plan_anew()

    def _refine_reference(self) -> Windows:
        """Measures the highest clocks once more, since plans are compared with what they take."""
        results = yield from self._sweep.highest_clocks(self._verdict.note)
        schedules = self._yielded.schedules if self._yielded is not None else []
        change = self._reprofiling.change(results, schedules, self._noise.usual)
        self._watch.asks = self._watch.asks or change is not None
        self._verdict = replace(self._verification.use_reference(results), compared=self._verdict.compared)

    def _plan_anew(self) -> None:
        """Makes another model and forgets what was learned about plans of the last one."""
        self._runs_other = False
        self._reprofiling.keep_profile()
        self._verification.forget()
        self._verdict = Verdict()
        self._rebuild_model()
        self._verification.aim()

    def _doubts_reference(self) -> bool:
        """Returns whether plans miss their target, though corrected, so that it may be the target that is wrong.

        Something may have changed after the time at the highest clocks was measured, and before the plan began.
        """
        if self._reference_is_sure or self._selection.goal.slowdowns or self._selection.goal.target.power is not None:
            return False
        off = self._verification.measured_s() / self._selection.target_s() - 1
        corrections = self._selection.corrections
        if corrections.full_speed_only or corrections.count >= MOST_CORRECTIONS:
            return off > _OFF
        return off > _FAR_OFF and corrections.count >= _CORRECTIONS_IF_FAR_OFF

    def _plan_request(self) -> ScheduleRequest:
        """Returns the plan for the present plan inputs."""
        goal, verdict = self._selection.goal, self._verdict
        about = goal_text(goal, self._selection.impossibility(), self._watch.reasons)
        cost = self._budget.text()
        measured = measured_text(verdict.compared, verdict.power_w)
        message = "; ".join(filter(None, [about, measured, verdict.note, cost, self._selection.switching()]))
        return ScheduleRequest(self._selection.schedules(), "run", message, verdict.converged)

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        """Returns the plan for the present plan inputs, once there is one."""
        return self._plan_request() if self._plan_is_in_force(yielded) else yielded

    def _plan_is_in_force(self, yielded: ScheduleRequest | None) -> bool:
        return self._selection.has_model and yielded is not None and yielded.purpose == "run"

    # ---- what happens to it

    def react(self, plan_inputs: PlanInputs) -> None:
        """Uses other plan inputs from now on; another target resets the corrections."""
        selection = self._selection
        if plan_inputs.target != self.plan_inputs.target:
            self._verification.forget()
            self._reference_is_sure = False
        if plan_inputs.remeasure_epoch != self.plan_inputs.remeasure_epoch:
            self._asked, self._reference_is_sure = True, False
            selection.corrections.count_anew()
            if selection.corrections.full_speed_only:
                self._verification.forget()  # the reason why no plan kept to the target may be gone
        if plan_inputs.late_time is not None and plan_inputs.late_time != self.plan_inputs.late_time:
            self._verification.found_late(plan_inputs.late_time)
        super().react(plan_inputs)
        selection.goal = self._goal()
        self._measurements.slow_pipelines = selection.goal.slow_pipelines
        self._watch.forget()
        self._verdict = Verdict()

    def was_published(self, schedules: list[FrequencySchedule], stays: bool = False) -> None:
        """Takes what an earlier scheduler has published as the plan in force, so that results are booked under it."""
        super().was_published(schedules, stays)
        if self._plan_is_in_force(self._yielded):
            self._runs_other = not self._selection.adopt(schedules)

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Finds stragglers, and changes that most pipelines share."""
        if not self._plan_is_in_force(self._yielded):
            return self.plan_inputs
        selection = self._selection
        elapsed_s = (self._watch.backoff.step + 1) * selection.full_speed.step_s
        if self._reprofiling.odd_kinds and self._budget.allows(elapsed_s):
            self._watch.asks = True
        usual = self._watch.usual_time(selection.schedules())
        is_late = usual is not None and self._verdict.converged and self._verification.is_late(usual)
        self._watch.asks = self._watch.asks or is_late
        plan_inputs = self._watch.assess(
            iteration_times,
            self.plan_inputs,
            selection.goal,
            selection.schedules(),
            promised_s=selection.target_s(),
            measured_s=self._verification.measured_s(),
            straggler_s=selection.goal.slowest * selection.full_speed.span_s,
        )
        if is_late and plan_inputs.remeasure_epoch != self.plan_inputs.remeasure_epoch:
            return plan_inputs.model_copy(update={"late_time": usual})
        return plan_inputs

    def observe(self, profiling_results: Sequence[ProfilingResult]) -> None:
        """Uses what was measured under the request in force, and counts the time that profiling takes."""
        profiling = self._yielded is not None and self._yielded.purpose == "measure"
        super().observe(profiling_results)
        if profiling:
            results = plausible_results(profiling_results, self._layout.place)
            self._budget.add_window(measured_results(results))

    @classmethod
    def check_profile(cls, csv: str, source: str) -> None:
        """Raises PlanError if the profile of an earlier job cannot be used."""
        EarlierProfile().load(csv, source)

    def load_profile(self, csv: str, source: str) -> None:
        """Reads the profile of an earlier job, to compare it with the first measurements of this one."""
        try:
            self._earlier_profile.load(csv, source)
        except PlanError as error:
            log.warning("%s; this job profiles for itself", error)

    def export_profile(self) -> str:
        """Returns everything measured, as a profile CSV: the columns of Zeus's, then the errors."""
        return profile_csv(self._measurements.samples)

    def model(self) -> dict[str, float]:
        """Returns the figures of the model that plans are made with, and what the last plan saved and cost."""
        if not self._selection.has_model:
            return {}
        model, full_speed = self._selection.model, self._selection.full_speed
        return {
            "blocking_power_w": model.problem.blocking_power_w,
            "delay_s": model.calibration.delay_s if model.calibration else 0.0,
            "overhead_s": model.problem.overhead_s,
            **_figures_of(model.problem.switch_costs),
            "full_time_s": full_speed.span_s,
            "full_energy_j": full_speed.energy_j,
            "power_drift_factor": self._measurements.power_drift_factor,
            "time_margin": self._selection.corrections.time_margin,
            "gpus_per_rank": model.problem.gpus_per_rank,
            **(asdict(self._verdict.compared) if self._verdict.compared is not None else {}),
        }

    # ---- what is done with results

    def _goal(self) -> PlanGoal:
        return goal_of(self.plan_inputs, self._default_target)

    def _accept_full_speed(self, results: Sequence[ProfilingResult]) -> bool:
        """Compares all later measurements with this window at the highest clocks; returns whether that is possible."""
        full_speed = full_speed_of(results, self._layout)
        if full_speed is None:
            return False
        schedules = self._yielded.schedules if self._yielded is not None else []
        if not self._reprofiling.is_new_reference(results, schedules, self._noise.usual):
            return True
        noise = relative_noise(iteration_spans(results, self._layout))
        warm_up = full_speed_of(self._sweep.warm_up, self._layout)
        if warm_up is not None and not self._selection.has_model:  # default clocks are the highest
            error = _STANDARD_ERRORS * noise * (2 / len(results[0].iter_time)) ** 0.5
            full_speed = pooled(full_speed, warm_up.span_s, error)
        self._selection.full_speed = full_speed
        self._budget.use_reference(results)
        self._noise.add(noise)
        self._measurements.power_drift_factor = 1.0
        self._sweep.is_known = self._earlier_profile.merge_into(self._measurements)
        return True

    def _rebuild_model(self) -> None:
        """Makes the model of the job from everything measured so far."""
        if self._measures_switching:
            switching = self._measurements.switching()
            costs = switching.costs
            if not costs.stands_still_s and not costs.acts_late_s:
                costs = replace(costs, stands_still_s=self._selection.corrections.change_s)
            self._model_settings = replace(self._model_settings, switch_costs=costs, offers=switching.offers)
        waiting_w = self._earlier_profile.waiting_power_w
        self._selection.use_model(build_model(self._measurements, self._model_settings, waiting_w))

    def _verify(self, results: Sequence[ProfilingResult]) -> None:
        """Compares the plan with what was measured under it."""
        drift = self._measurements.power_drift_factor
        verdict = self._verification.verify(results, self._noise.usual, drift)
        self._verdict = verdict or replace(self._verdict, converged=True)
        self._watch.asks = self._watch.asks or self._verdict.again

    def _one_plan(self) -> Plan:
        """Returns the plan of a pipeline that is not slow, or else of the first one."""
        ranks = self._measurements.healthy_pipeline(self._layout.place)
        return self._selection.plan_of(self._layout.place[ranks[0]].dp_rank if ranks else 0)


def _figures_of(costs: SwitchCosts) -> dict[str, float]:
    """What a clock change costs, as it is in the record of the model; 0 calls per second stand for no limit."""
    return {
        "switch_time_s": costs.stands_still_s,
        "driver_time_s": costs.driver_time_s,
        "switch_latency_s": costs.latency_s,
        "switch_late_s": costs.late_s,
        "switch_calls": costs.calls,
        "max_calls_per_s": costs.max_calls_per_s if costs.max_calls_per_s < float("inf") else 0.0,
        "switch_acts_late_s": costs.acts_late_s,
        "ranks_per_host": max((len(host) for host in costs.hosts), default=1),
    }
