"""The default policy: profile while training, plan, check the plan by measuring, follow stragglers and targets.

`ParetoScheduler` puts the parts together; each has a module of its own:

    informed_sweep      windows in which instructions are measured     job_measurements  what was measured
    window_choice       which clocks a window measures                 clock_curves      what follows for all clocks
    earlier_profile     what an earlier job had measured               model_building    the job in the planner's form
    plan_selection      the plan of each pipeline                      verification      does the plan meet its target?
    iteration_watch     stragglers, and plans that are out of date     status_text       text for the status
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median_low
from typing import Any, ClassVar

from pfo_fs.autotune.corrections import Corrections
from pfo_fs.autotune.curve_profile import careful, change_of_times, usage_of
from pfo_fs.autotune.drift import LEAST_DRIFT, add_shifted, has_drifted, restore_missing, shifts_at_highest_clocks
from pfo_fs.autotune.earlier_profile import EarlierProfile
from pfo_fs.autotune.informed_sweep import InformedSweep
from pfo_fs.autotune.instruction_profiler import check_sweep_args
from pfo_fs.autotune.iteration_watch import IterationWatch
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_measurements import JobMeasurements
from pfo_fs.autotune.job_model import measured_iteration
from pfo_fs.autotune.measured_switching import UNKNOWN_COSTS
from pfo_fs.autotune.model_building import ModelSettings, build_model
from pfo_fs.autotune.noise import IterationNoise
from pfo_fs.autotune.plan_goal import PlanGoal, goal_of, target_of
from pfo_fs.autotune.plan_selection import PlanSelection
from pfo_fs.autotune.profile_exchange import profile_csv
from pfo_fs.autotune.profile_sweep import Windows
from pfo_fs.autotune.status_text import goal_text
from pfo_fs.autotune.verification import PlanVerification, Verdict
from pfo_fs.autotune.window_results import full_speed_of, iteration_spans, measured_results, relative_noise
from pfo_fs.errors import PlanError
from pfo_fs.models import JobInfo, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.planner import Plan, SwitchCosts
from pfo_fs.scheduler.base import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest
from pfo_fs.settings import PFOSettings

_DRIFTS_PER_EPOCH = 2
"""Drift alone may cause at most this many re-measurements per epoch (until the plan inputs ask for a new measurement),
so that noise cannot cause them for ever."""
_MOST_REFINEMENTS = 3
"""After the first plan, at most this many are made because its own windows have shown its clocks better."""
_MUCH_TOO_LATE = 0.005
"""Relative: a plan that makes iterations longer than this is corrected before anything else is done with it."""
_LEAST_CHANGE = 0.001
"""Relative: a smaller change of the times of a plan's instructions does not justify another plan."""


class ParetoScheduler(FrequencyScheduler):
    """Profiles during the training, then runs the plan that takes least energy within the target.

    It starts with what earlier jobs of the same kind have measured, if the first iterations agree with it. A plan is
    measured as soon as it is in force; while iterations take longer than planned by more than the noise, the policy
    makes the plan faster. Pipelines that wait for a straggler (a slower pipeline) get the plan for the straggler's pace
    (T' in Perseus, SOSP'24, section 4) until the straggler is gone. When iterations differ from what was measured, the
    policy measures again and makes a new plan.

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
    """

    planning_takes_seconds: ClassVar[bool] = True
    watches_iteration_times: ClassVar[bool] = True

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
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self._default_target = target_of(slowdown, deadline, power)
        self._measures_switching = switch_time is None
        costs = UNKNOWN_COSTS if switch_time is None else SwitchCosts(stands_still_s=switch_time)
        self._model_settings = ModelSettings(costs, blocking_power)
        self._layout = JobLayout(job_info, self.rank_infos, lambda: self.orders)
        self._measurements = JobMeasurements(self._layout)
        self._earlier_profile = EarlierProfile()
        self._sweep = InformedSweep(self._measurements, tolerance, max_windows, self._accept_full_speed)
        self._selection = PlanSelection(self._layout, self._goal())
        self._verification = PlanVerification(self._layout, self._selection, self._rebuild_model)
        self._noise = IterationNoise()
        self._watch = IterationWatch(job_info.dp_degree, self._noise)
        self._drifts = 0
        self._refinements = 0
        self._verdict = Verdict()

    @classmethod
    def check_args(cls, **args: Any) -> None:
        """Raises PlanError for invalid arguments."""
        check_sweep_args(**args)
        target_of(args.get("slowdown"), args.get("deadline"), args.get("power"))
        blocking = args.get("blocking_power")
        if blocking is not None and (not isinstance(blocking, (int, float)) or blocking <= 0):
            raise PlanError(f"blocking_power is {blocking!r}; give the power of a waiting GPU, in W")

    # ---- the loop

    def _run(self) -> ScheduleGenerator:
        problem = yield from self._sweep.run()
        if problem:
            yield ScheduleRequest([], "run", problem)
            return
        self._rebuild_model()
        while True:
            results = measured_results((yield self._plan_request()))
            noise = relative_noise(iteration_spans(results, self._layout))
            if self._noise.judge(noise):
                note = f"iterations scattered by {noise:.0%}, so they are measured again"
                self._verdict = Verdict(note=note)  # `assess` then asks for another window
            elif self._has_drifted(results):
                yield from self._measure_anew()
            else:
                windows = self._sweep.windows
                self._measurements.take(results, self._selection.schedules())
                yield from self._sweep.further(usage_of(self._one_plan()))
                if self._sweep.windows > windows:
                    self._rebuild_model()
                    self._verdict = Verdict()
                elif self._is_late(results) or not self._refined():
                    self._verify(results)

    def _measure_anew(self) -> Windows:
        """Asks for windows at the highest clocks again, and at lower ones if the highest do not explain the drift.

        The time without slowdown is always measured at the highest clocks, never computed from other measurements.
        """
        self._drifts += 1
        samples = self._measurements.samples
        before = {kind: samples.curve(kind) for kind in self._layout.kinds}
        self._measurements.forget()
        results = yield from self._sweep.full_speed(
            "instructions take another time than before; measuring at the highest clocks"
        )
        shifts = shifts_at_highest_clocks(before, samples)
        if self._drifts == 1 and any(abs(times - 1) > LEAST_DRIFT for times, _ in shifts.values()):
            add_shifted(before, shifts, samples)  # the next window checks this
        else:
            self._sweep.windows = 0
            yield from self._sweep.lower_clocks(results)
            restore_missing(before, samples)
        self._selection.corrections = Corrections()
        self._verdict = Verdict()
        self._rebuild_model()

    def _plan_request(self) -> ScheduleRequest:
        """Returns the plan for the present plan inputs."""
        goal, verdict = self._selection.goal, self._verdict
        about = goal_text(goal, self._selection.impossibility(), self._watch.reasons)
        message = "; ".join(filter(None, [about, verdict.measured, verdict.note, self._selection.switching()]))
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
            selection.corrections = Corrections()
        if plan_inputs.remeasure_epoch != self.plan_inputs.remeasure_epoch:
            self._drifts = 0
            selection.corrections.count_anew()
            if selection.corrections.full_speed_only and selection.has_model:
                # The reason why no plan kept to the target may be gone.
                selection.corrections, selection.model.time_margin = Corrections(), 0.0
        super().react(plan_inputs)
        selection.goal = self._goal()
        self._measurements.slow_pipelines = selection.goal.slow_pipelines
        self._watch.forget()
        self._verdict = Verdict()

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Finds stragglers, and drift that all pipelines share."""
        if not self._plan_is_in_force(self._yielded):
            return self.plan_inputs
        selection = self._selection
        return self._watch.assess(
            iteration_times,
            self.plan_inputs,
            selection.goal,
            promised_s=selection.target_s(),
            measured_s=self._verification.measured_s(),
            straggler_s=selection.goal.slowest * selection.full_speed.span_s,
        )

    def load_profile(self, csv: str, source: str) -> None:
        """Reads the profile of an earlier job, to compare it with the first measurements of this one."""
        self._earlier_profile.load(csv, source)

    def export_profile(self) -> str:
        """Returns everything measured, as a profile CSV: the columns of Zeus's, then the errors."""
        return profile_csv(self._measurements.samples)

    def model(self) -> dict[str, float]:
        """Returns the figures of the model that plans are made with."""
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
            "time_margin": model.time_margin,
            "gpus_per_rank": model.problem.gpus_per_rank,
        }

    # ---- what is done with results

    def _goal(self) -> PlanGoal:
        return goal_of(self.plan_inputs, self._default_target)

    def _accept_full_speed(self, results: Sequence[ProfilingResult]) -> bool:
        """Compares all later measurements with this window at the highest clocks; returns whether that is possible."""
        full_speed = full_speed_of(results, self._layout)
        if full_speed is None:
            return False
        self._selection.full_speed = full_speed
        self._noise.add(relative_noise(iteration_spans(results, self._layout)))
        self._measurements.power_drift_factor = 1.0
        self._sweep.is_known = self._earlier_profile.merge_into(self._measurements)
        return True

    def _rebuild_model(self) -> None:
        """Makes the model of the job from everything measured so far."""
        switching = self._measurements.switching
        if self._measures_switching and switching is not None:
            self._model_settings = replace(
                self._model_settings, switch_costs=switching.costs, slow_mhz=switching.slow_mhz
            )
        waiting_w = self._earlier_profile.waiting_power_w
        self._selection.use_model(build_model(self._measurements, self._model_settings, waiting_w))

    def _has_drifted(self, results: Sequence[ProfilingResult]) -> bool:
        """Returns whether instructions of a pipeline that is not slow take another time than in the profile."""
        if self._drifts >= _DRIFTS_PER_EPOCH:
            return False
        by_rank = {result.rank: result for result in results}
        ranks = self._measurements.healthy_pipeline(by_rank)
        if not ranks:
            return False
        schedules = {schedule.rank: schedule for schedule in self._selection.schedules()}
        run = [self._layout.run_by(rank, schedules.get(rank)) for rank in ranks]
        pipeline = self._selection.model.problem.pipeline
        measured = measured_iteration(pipeline, [by_rank[rank] for rank in ranks], run)
        plan = self._selection.plan_of(self._layout.place[ranks[0]].dp_rank)
        return measured is not None and has_drifted(plan, measured, self._measurements.time_error)

    def _verify(self, results: Sequence[ProfilingResult]) -> None:
        """Compares the plan with what was measured under it."""
        drift = self._measurements.power_drift_factor
        verdict = self._verification.verify(results, self._noise.usual, drift)
        self._verdict = verdict or replace(self._verdict, converged=True)

    def _one_plan(self) -> Plan:
        """Returns the plan of a pipeline that is not slow, or else of the first one."""
        ranks = self._measurements.healthy_pipeline(self._layout.place)
        return self._selection.plan_of(self._layout.place[ranks[0]].dp_rank if ranks else 0)

    def _is_late(self, results: Sequence[ProfilingResult]) -> bool:
        """Returns whether iterations take so much longer than they may that the plan is corrected at once."""
        goal, spans = self._selection.goal, iteration_spans(results, self._layout)
        if goal.target.power is not None or goal.slowdowns or not spans:
            return False
        measured_s = median_low(fmean(values) for values in spans.values())
        return measured_s > self._selection.target_s() * (1 + _MUCH_TOO_LATE)

    def _refined(self) -> bool:
        """Makes a new model, and so a new plan, if the plan's window has shown that its clocks take other times.

        The first plans are careful where clocks were not measured, so the next ones save more.
        """
        if self._refinements >= _MOST_REFINEMENTS:
            return False
        plan = self._one_plan()
        now = careful(self._measurements.profile())
        if change_of_times(plan.problem.profile, now, plan) < _LEAST_CHANGE:
            return False
        self._refinements += 1
        before = self._selection.schedules()
        self._rebuild_model()
        self._verdict = Verdict(note="the plan's clocks are known better now, so another plan is made")
        return self._selection.schedules() is not before


def _figures_of(costs: SwitchCosts) -> dict[str, float]:
    """What a clock change costs, as it is in the record of the model; 0 calls per second stand for no limit."""
    return {
        "switch_time_s": costs.stands_still_s,
        "driver_time_s": costs.driver_time_s,
        "switch_latency_s": costs.latency_s,
        "switch_late_s": costs.late_s,
        "switch_calls": costs.calls,
        "max_calls_per_s": costs.max_calls_per_s if costs.max_calls_per_s < float("inf") else 0.0,
        "ranks_per_host": max((len(host) for host in costs.hosts), default=1),
    }
