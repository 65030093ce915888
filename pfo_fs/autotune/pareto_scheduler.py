"""The closed loop: profile while training, plan, deploy, check that it delivers, follow stragglers and targets."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Mapping, Sequence
from statistics import fmean, median, median_low, stdev
from typing import Any

from pydantic import ValidationError

from pfo_fs.autotune.corrections import MOST_CORRECTIONS, MOST_TIME_MARGIN, Corrections
from pfo_fs.autotune.drift import WORTH_MEASURING, has_drifted
from pfo_fs.autotune.instruction_profiler import InstructionProfiler, Windows
from pfo_fs.autotune.job_model import JobModel, measured_iteration, pipeline_of, span_of
from pfo_fs.autotune.profile_exchange import disagreement, merge_profile, profile_csv, waiting_power_of
from pfo_fs.autotune.samples import Entry, Kind
from pfo_fs.autotune.stragglers import RemeasureBackoff, StragglerDetector
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, PlanInputs, ProfilingResult, RankInfo, Target
from pfo_fs.planner import Plan, Profile
from pfo_fs.planner.profile import profile_of
from pfo_fs.planner.profile_csv import parse_table
from pfo_fs.scheduler.base import IterationTime, ScheduleGenerator
from pfo_fs.settings import PFOSettings

log = logging.getLogger(__name__)

_SURE = 2.0
"""Standard errors."""
_LEAST_NOISE = 0.002
"""Relative: less than this beyond the target is taken for noise."""
_WORTH = 0.002
"""Relative: a plan that is faster than it need be by less than this stays."""
_DRIFTS_PER_LOOK = 2
_WINDOWS_FOR_NOISE = 5
_DISTURBED, _TIMES_THE_NOISE = 0.05, 4.0
"""Scatter of a window that tells nothing: relative standard deviation, and how many times the usual one it must be."""
_FINE_WINDOWS_AGAIN = 2
_LEAST_GOAL = 0.01
"""Of full speed: a deadline may leave nothing for the pipeline, and nothing is divided by that."""
_BLOCKING_SHARE = 0.2
"""Blocking power as a part of the highest power, where no GPU was seen waiting: 84 of 475 W (A100), 70 of 299 (A40)."""
_CALIBRATED_WITH = 3
"""Windows: the first, and the latest ones."""


class ParetoScheduler(InstructionProfiler):
    """Profiles during the training, then runs the plan that takes least energy within the target.

    It starts with what earlier jobs of the same kind have measured, if the first iterations agree with it. A plan is
    measured as soon as it is in force; while iterations take longer than promised by more than the noise, it is made
    faster. Pipelines that wait for a straggler get the plan for the straggler's pace (T' in Perseus, SOSP'24, section
    4), and lose it as soon as the straggler is gone. When iterations drift away from what was measured, the plan is
    measured and made anew.

    Args:
        job_info: The job.
        rank_infos: All its ranks, in any order.
        pfo_settings: Settings of the scheduling side.
        slowdown: Longest iteration time, as a multiple of that at the highest clocks; 1.0: no slowdown.
        deadline: Instead: longest iteration time, in s.
        power: Instead: highest average power of all GPUs of the job together, in W.
        blocking_power: What a waiting GPU draws, in W; None: as measured in the training itself.
        switch_time: What a clock change is taken to cost, in s: plans with few changes.
        tolerance: Relative error of time and power that is good enough for the profile.
        max_windows: Never more profiling windows than this.
    """

    plans = True
    watches_iteration_times = True

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        slowdown: float | None = None,
        deadline: float | None = None,
        power: float | None = None,
        blocking_power: float | None = None,
        switch_time: float = 0.001,
        tolerance: float = 0.003,
        max_windows: int = 64,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings, tolerance, max_windows)
        self._default_target = _target(slowdown, deadline, power)
        self._blocking_power = blocking_power
        self._switch_time_s = switch_time
        self._known: Profile | None = None
        self._known_waiting_w = 0.0
        self._model: JobModel | None = None
        self._model_number = 0
        self._iterations: list[tuple[list[ProfilingResult], list[list[Entry]]]] = []
        self._full_s = 0.0  # what an iteration takes at the highest clocks
        self._full_j = 0.0
        self._after_s = 0.0  # from the end of the last instruction to the end of the step
        self._scale = 1.0  # the model's full speed, against the measured one
        self._corrections = Corrections()
        self._drifts = 0
        self._expected_s = 0.0
        self._expected_for: Target | None = None
        self._cached: tuple[Any, list[FrequencySchedule]] | None = None
        self._watch = StragglerDetector()
        self._noises: deque[float] = deque(maxlen=_WINDOWS_FOR_NOISE)
        self._noisy_window = False
        self._patience = RemeasureBackoff()

    @classmethod
    def check_args(cls, **args: Any) -> None:
        """Raises PlanError for arguments that cannot be right."""
        super().check_args(**{name: args[name] for name in ("tolerance", "max_windows") if name in args})
        _target(args.get("slowdown"), args.get("deadline"), args.get("power"))
        blocking = args.get("blocking_power")
        if blocking is not None and (not isinstance(blocking, (int, float)) or blocking <= 0):
            raise PlanError(f"blocking_power is {blocking!r}; give what a waiting GPU draws, in W")

    @property
    def target(self) -> Target:
        """What is planned for now."""
        return self.plan_inputs.target or self._default_target

    # ---- the loop

    def _run(self) -> ScheduleGenerator:
        known = yield from self._profile()
        self.measuring = False
        if not known:
            yield []
            return
        self._plan_anew()
        schedules: list[FrequencySchedule] = []
        while True:
            results = yield schedules  # a placeholder: `next_schedule` knows better
            if self._is_disturbed(results):
                continue  # and `assess` asks for another look
            if self._has_drifted(results):
                yield from self._measure_anew()
            else:
                self._verify(results)

    def _measure_anew(self) -> Windows:
        """Instructions do not take what they took: measures the highest clocks again, and the rest if that is not all.

        What "no slowdown" means is measured, never inferred: at the highest clocks, as it was in the beginning.
        """
        self.measuring, self._drifts = True, self._drifts + 1
        self.status_text = "instructions do not take what they took; measuring at the highest clocks"
        before = {kind: self.samples.curve(kind) for kind in self.kinds}
        tops = {kind: max(curve) for kind, curve in before.items()}
        self.samples.points = {}
        self._iterations.clear()
        results = yield from self._full_speed()
        shifted = {}
        for kind, curve in before.items():
            fresh = self.samples.curve(kind).get(tops[kind], curve[tops[kind]])
            shifted[kind] = (fresh.time_s / curve[tops[kind]].time_s, fresh.power_w / curve[tops[kind]].power_w)
        if self._drifts == 1 and any(abs(times - 1) > WORTH_MEASURING for times, _ in shifted.values()):
            for kind, curve in before.items():  # slower by as much at all clocks, until the next look says otherwise
                for mhz, point in curve.items():
                    point.scale(*shifted[kind])
                    self.samples.points.setdefault(kind, {}).setdefault(mhz, point)
        else:
            self._fine_windows, self.windows = _FINE_WINDOWS_AGAIN, 0
            yield from self._sweep(results)
        self.measuring = False
        self._corrections = Corrections()
        self._plan_anew()

    def next_schedule(self) -> list[FrequencySchedule]:
        """Returns the plan for the plan inputs as it is now, once there is one."""
        schedules = super().next_schedule()
        return schedules if self._model is None or self.measuring else self._planned()

    def react(self, plan_inputs: PlanInputs) -> None:
        """Takes note of another plan inputs; another target is a new start for the corrections."""
        if plan_inputs.target != self.plan_inputs.target:
            self._corrections = Corrections()
        if plan_inputs.remeasure_epoch != self.plan_inputs.remeasure_epoch:
            self._corrections.count_anew()
            self._drifts = 0
            if self._corrections.given_up and self._model is not None:
                self._corrections, self._model.time_margin = Corrections(), 0.0  # what it was given up for may be over
        super().react(plan_inputs)
        self.converged = False
        self._watch.forget()
        if self._model is not None:
            self._say()

    def _take(self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule]) -> None:
        results = [result for result in results if result.iter_time]
        super()._take(results, schedules)
        planned = {schedule.rank: schedule for schedule in schedules}
        by_rank = {result.rank: result for result in results}
        ranks = self._healthy_pipeline(by_rank)
        if schedules and ranks:
            window = [by_rank[rank] for rank in ranks]
            self._iterations.append((window, [self._entries(rank, planned.get(rank)) for rank in ranks]))
            del self._iterations[1 : max(1, len(self._iterations) - _CALIBRATED_WITH + 1)]

    def _note_full_speed(self, results: Sequence[ProfilingResult]) -> bool:
        """Everything at the highest clocks: what all else is measured by."""
        spans = self._spans(results)
        if not spans:
            return False
        self._full_s = median_low(fmean(values) for values in spans.values())  # of two pipelines the healthy one
        self._note_noise(spans)
        self._full_j = self._energy_j(results)
        self._after_s = max(0.0, median(fmean(r.iter_time) - span_of(r) for r in self._firsts(results).values()))
        self.power_drift_factor = 1.0
        self._use_known()
        return True

    def _energy_j(self, results: Sequence[ProfilingResult]) -> float:
        """Of an iteration on all GPUs of the job, those without a result taken for average ones."""
        energies = [fmean(result.iter_energy) for result in results if result.iter_energy]
        return fmean(energies) * self.world_size if energies else 0.0

    def _plan_anew(self) -> None:
        """Makes the model of the job from everything measured so far."""
        pipeline = pipeline_of([self._order(rank) for rank in self._one_pipeline()])
        iterations = [
            iteration
            for results, entries in self._iterations
            if (iteration := measured_iteration(pipeline, results, entries)) is not None
        ]
        time_margin = self._model.time_margin if self._model is not None else 0.0
        self._model = JobModel(
            pipeline,
            self.profile(),
            self._blocking_power_w(),
            self.job_info.tp_degree,
            iterations,
            self._switch_time_s,
        )
        self._model.time_margin = time_margin
        self._scale = self._bias()
        self._model_number += 1
        self._say()

    def _bias(self) -> float:
        """What the model says of full speed, against what was measured."""
        if self._model is None or not self._full_s:
            return 1.0
        return self._model.full_speed.iteration_time_s / self._full_s

    def _blocking_power_w(self) -> float:
        if self._blocking_power is not None:
            return self._blocking_power
        waiting = self.samples.waiting
        if waiting.power_error < 0.2:
            return waiting.power_w
        if self._known_waiting_w:
            return self._known_waiting_w
        highest = max(point.power_w for points in self.samples.points.values() for point in points.values())
        log.warning("no GPU was seen waiting for long; its power then is taken to be %.0f W", _BLOCKING_SHARE * highest)
        return _BLOCKING_SHARE * highest

    # ---- plans

    def _planned(self) -> list[FrequencySchedule]:
        """The schedules for the plan inputs; the same list while nothing changes."""
        assert self._model is not None
        slow = tuple(sorted(self.plan_inputs.slow_pipelines.items()))
        tuned = self._model_number, self._model.time_margin, self._corrections.power_scale, self._corrections.given_up
        key = str(self.target), str(self.plan_inputs.straggler), slow, tuned
        if self._cached is None or self._cached[0] != key:
            schedules = self._schedules_now()
            if self._cached is not None and schedules == self._cached[1]:
                schedules = self._cached[1]  # the same list: nothing new to publish, and to measure
            self._cached = key, schedules
        return self._cached[1]

    def _schedules_now(self) -> list[FrequencySchedule]:
        plans = {pipeline: self._plan_for(pipeline) for pipeline in range(self.job_info.dp_degree)}
        made = {id(plan): plan.schedules() for plan in plans.values()}
        schedules = []
        for info in self.rank_infos:
            schedule = made[id(plans[info.dp_rank])][info.pp_rank]
            several = any(stage is not None for _, stage in self.orders.get(info.rank) or ())
            schedules.append(
                schedule.model_copy(update={"rank": info.rank, "stages": schedule.stages if several else None})
            )
        return schedules

    def _plan_for(self, pipeline: int) -> Plan:
        """The plan of one pipeline: for the target, or for the pace of the slowest one if that is slower."""
        assert self._model is not None
        if self._corrections.given_up:
            return self._model.full_speed
        slowdowns = self._slowdowns()
        pace_s = max(slowdowns.values(), default=1.0) * self._full_s
        budget_s = max(self._goal_s(), pace_s) / slowdowns.get(pipeline, 1.0)  # at healthy speed
        if pipeline in slowdowns and self.target.power is None:
            return self._model.within(self._scale * budget_s)
        if budget_s > self._goal_s() * (1 + _WORTH):
            return self._model.within(self._scale * budget_s * (1 - _WORTH / 2), straggler=True)
        if self.target.power is not None:
            return self._capped()
        return self._model.within(self._scale * self._goal_s())

    def _capped(self) -> Plan:
        """The plan of one pipeline under a cap on the power of all."""
        assert self._model is not None
        assert self.target.power is not None
        return self._model.at_power(self._corrections.power_scale * self.target.power / self.job_info.dp_degree)

    def _slowdowns(self) -> dict[int, float]:
        """How much slower than healthy each pipeline is; -1 stands for somebody outside of the job."""
        found = dict(self.plan_inputs.slow_pipelines)
        announced = self.plan_inputs.straggler
        if announced is not None:
            at = -1 if announced.pipeline is None else announced.pipeline
            found[at] = max(found.get(at, 1.0), announced.slowdown)
        return found

    def _goal_s(self) -> float:
        """What an iteration may take by the target, in s until the last instruction has ended."""
        if self.target.deadline is not None:
            return max(_LEAST_GOAL * self._full_s, self.target.deadline - self._after_s)
        if self.target.power is not None:
            return self._capped().iteration_time_s / self._scale
        return (self.target.slowdown or 1.0) * self._full_s

    # ---- does it deliver?

    def _verify(self, results: Sequence[ProfilingResult]) -> None:
        """Holds the measured plan against what it promised, and corrects what the planner is asked for."""
        self._take(results, self._planned())
        self.converged = True
        spans = self._spans(results)
        if self._slowdowns() or not spans:
            return
        means = [fmean(values) for values in spans.values()]
        measured_s = median_low(means)
        error = max(_LEAST_NOISE, _SURE * self._watch.noise / (len(means) * len(next(iter(spans.values())))) ** 0.5)
        measured_j = self._energy_j(results)
        self._expected_s, self._expected_for = measured_s, self.target
        if self._corrections.given_up:
            return
        if self.target.power is not None:
            power_w = measured_j / fmean(t for r in self._firsts(results).values() for t in r.iter_time)
            off = power_w / self.target.power - 1
        else:
            off = measured_s / self._goal_s() - 1
        too_much, too_little = off > error, off < -max(error, _WORTH)
        self._say(measured_s, measured_j)
        if not (too_much or too_little) or self._corrections.count >= MOST_CORRECTIONS:
            if too_much:
                self.status_text += f"; the plan does not deliver: {off:+.2%} beyond the target"
            return
        self._corrections.count += 1
        before = self._planned()
        if self.target.power is not None:
            self._corrections.power_scale /= 1 + off
            self.converged = self._planned() is before
            return
        if self._corrections.count == 1:
            # A plan without room anywhere shows what full speed does not: how long a result is on its way to the next.
            self._plan_anew()
            self._say(measured_s, measured_j)
        if self._corrections.count > 1 or self._planned() is before:
            self._tighten(off, before)
        self.converged = self._planned() is before
        if not self.converged:
            self.status_text += f"; {off:+.2%} off the target, so another plan is made"

    def _tighten(self, off: float, before: list[FrequencySchedule]) -> None:
        """Moves the time margin until the plan is another one; full speed if that does not help any more."""
        assert self._model is not None
        time_margin = self._corrections.next_time_margin(self._model.time_margin, off)
        for _ in range(MOST_CORRECTIONS):
            self._model.time_margin = time_margin
            if self._planned() is not before or off < 0:
                return
            time_margin = round(time_margin + off, 5)
            if time_margin > MOST_TIME_MARGIN:
                break
        self.status_text += f"; the plan does not deliver: {off:+.2%} beyond the target, and none is faster"
        self._corrections.given_up = True  # slower than the highest clocks is nobody's doing here

    def _is_disturbed(self, results: Sequence[ProfilingResult]) -> bool:
        """Whether iterations scatter as they never did: something else ran on the hosts, and they tell nothing."""
        noise = self._note_noise(self._spans(results))
        self._noisy_window = noise > max(_DISTURBED, _TIMES_THE_NOISE * self._watch.noise)
        if self._noisy_window:
            self.converged = False
            self._say()
            self.status_text += f"; iterations scattered by {noise:.0%}, so they are measured again"
        return self._noisy_window

    def _note_noise(self, spans: Mapping[int, Sequence[float]]) -> float:
        """Returns the noise of a window; one that is disturbed does not change what noise is expected."""
        noise = max((_noise_of(values) for values in spans.values()), default=0.0)
        if noise:
            self._noises.append(noise)
            self._watch.noise = median_low(self._noises)
        return noise

    def _has_drifted(self, results: Sequence[ProfilingResult]) -> bool:
        """Whether instructions of a healthy pipeline take another time than the profile says; not endlessly."""
        assert self._model is not None
        if self._drifts >= _DRIFTS_PER_LOOK:
            return False
        schedules = {schedule.rank: schedule for schedule in self._planned()}
        by_rank = {result.rank: result for result in results if result.iter_time}
        ranks = self._healthy_pipeline(by_rank)
        if not ranks:
            return False
        entries = [self._entries(rank, schedules.get(rank)) for rank in ranks]
        measured = measured_iteration(self._model.problem.pipeline, [by_rank[rank] for rank in ranks], entries)
        plan = self._plan_for(self._place[ranks[0]].dp_rank)
        return measured is not None and has_drifted(plan, measured, self._error_of)

    def _error_of(self, kind: Kind) -> float:
        """How well the times of a kind are known, relative."""
        return float(median(min(1.0, point.time_error) for point in self.samples.curve(kind).values()))

    def _spans(self, results: Sequence[ProfilingResult]) -> dict[int, list[float]]:
        """For each pipeline, how long each of its iterations took until its last instruction had ended."""
        return {p: list(result.iter_span or result.iter_time) for p, result in self._firsts(results).items()}

    def _firsts(self, results: Sequence[ProfilingResult]) -> dict[int, ProfilingResult]:
        """For each pipeline, the result of a rank of its first stage, which sees all of an iteration."""
        found: dict[int, ProfilingResult] = {}
        for result in results:
            place = self._place[result.rank]
            if place.pp_rank == 0 and result.iter_time:
                found.setdefault(place.dp_rank, result)
        return found

    def _healthy_pipeline(self, measured: Container[int]) -> list[int]:
        """The ranks, by stage, of a pipeline that was measured whole and does what it is asked to."""
        pipelines: dict[int, dict[int, int]] = {}
        for info in self.rank_infos:
            if info.rank in measured and self._counts(info.rank):
                pipelines.setdefault(info.dp_rank, {}).setdefault(info.pp_rank, info.rank)
        whole = [ranks for _, ranks in sorted(pipelines.items()) if len(ranks) == self.job_info.pp_degree]
        return [whole[0][stage] for stage in range(self.job_info.pp_degree)] if whole else []

    def _counts(self, rank: int) -> bool:
        pipeline = self._place[rank].dp_rank
        return super()._counts(rank) and self._slowdowns().get(pipeline, 1.0) == 1.0

    # ---- the pace between windows

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Finds stragglers, and drift that all pipelines share."""
        if self._model is None or self.measuring:
            return self.plan_inputs
        if self._noisy_window:
            self._patience.pass_by(iteration_times)
            if not self._patience.is_over():
                return self.plan_inputs
            self._noisy_window = False
            return self.plan_inputs.model_copy(update={"remeasure_epoch": self.plan_inputs.remeasure_epoch + 1})
        measured = self._expected_s if self._expected_for == self.target else 0.0
        healthy_s = measured or self._goal_s()
        slowdowns, pipelines = self._slowdowns(), self.job_info.dp_degree
        pace_s = max(healthy_s, max(slowdowns.values(), default=1.0) * self._full_s)
        expected = dict.fromkeys(range(pipelines), pace_s if slowdowns else healthy_s)
        self._patience.pass_by(iteration_times)
        known = self.plan_inputs.slow_pipelines
        found = self._watch.slowdowns(iteration_times, expected, known if pipelines > 1 else {})
        if pipelines > 1 and found != known and len(found) <= pipelines / 2:
            return self.plan_inputs.model_copy(update={"slow_pipelines": found})
        everybody = pipelines > 1 and len(found) > pipelines / 2
        if (everybody or (not slowdowns and measured and self._watch.drifted())) and self._patience.is_over():
            # What slows most of them is no straggler: the plan's own figures are in question.
            return self.plan_inputs.model_copy(
                update={"slow_pipelines": {}, "remeasure_epoch": self.plan_inputs.remeasure_epoch + 1}
            )
        return self.plan_inputs

    # ---- what others have measured, and what is said

    def load_profile(self, csv: str, source: str) -> None:
        """Takes the profile of an earlier job, to be held against the first measurements of this one."""
        try:
            table = parse_table(csv, f"profile of job {source}")
            self._known = profile_of(table, f"profile of job {source}")
            self._known_waiting_w = waiting_power_of(table)
        except PlanError as error:
            log.warning("the profile of job %s cannot be used: %s", source, error)

    def _use_known(self) -> None:
        """Takes the recalled profile for measured, if it agrees with this job at the highest clock."""
        known, self._known = self._known, None
        if known is None:
            return
        odd = disagreement(known, self.samples, self.kinds)
        if odd:
            log.warning("%s does not agree with this job's %s; profiling anew", known.source, odd)
            return
        merge_profile(self.samples, known, self.kinds, self.clocks_mhz)
        self._fine_windows = 0  # what it lacks of the coarse clocks is measured; the rest is good enough to begin with

    def findings(self) -> str:
        """Everything measured, as a profile CSV with the errors behind the columns of Zeus's."""
        return profile_csv(self.samples)

    def model(self) -> dict[str, float]:
        """The figures that it plans with."""
        if self._model is None:
            return {}
        problem, calibration = self._model.problem, self._model.calibration
        return {
            "blocking_power_w": problem.blocking_power_w,
            "delay_s": calibration.delay_s if calibration else 0.0,
            "overhead_s": problem.overhead_s,
            "switch_time_s": problem.switch_time_s,
            "full_time_s": self._full_s,
            "full_energy_j": self._full_j,
            "power_drift_factor": self.power_drift_factor,
            "time_margin": self._model.time_margin,
            "gpus_per_rank": problem.gpus_per_rank,
        }

    def _impossible(self) -> str:
        """Says so if no plan keeps to the target."""
        cap_w, deadline_s = self.target.power, self.target.deadline
        if self._model is None:
            return ""
        if cap_w is not None:
            least_w = self._model.at_power(cap_w / self.job_info.dp_degree).average_power_w * self.job_info.dp_degree
            return f", which is impossible: {least_w:,.0f} W is the least" if least_w > cap_w * (1 + _WORTH) else ""
        if deadline_s is not None and deadline_s < (self._full_s + self._after_s) * (1 - _WORTH):
            return f", which is impossible: the highest clocks take {self._full_s + self._after_s:.4g} s"
        return ""

    def _say(self, measured_s: float = 0.0, measured_j: float = 0.0) -> None:
        slowdowns = self._slowdowns()
        self.status_text = f"target: {self.target}{self._impossible()}"
        if slowdowns:
            names = ", ".join(
                f"pipeline {p} ({self._watch.why.get(p, 'announced')})" if p >= 0 else "announced"
                for p in sorted(slowdowns)
            )
            self.status_text += f"; pace of a straggler, {max(slowdowns.values()):.2f} times as slow: {names}"
        if measured_s and self._full_s and self._full_j:
            saved, slower = 1 - measured_j / self._full_j / self.power_drift_factor, measured_s / self._full_s - 1
            less = f"{saved:.1%} less" if saved >= 0 else f"{-saved:.1%} more"
            self.status_text += f"; measured: {less} energy at {slower:+.2%} time than at the highest clocks"
            if self.target.power is not None:
                self.status_text += f", {measured_j / (measured_s + self._after_s):,.0f} W"


def _target(slowdown: float | None, deadline: float | None, power: float | None) -> Target:
    given = {"slowdown": slowdown, "deadline": deadline, "power": power}
    asked = {name: value for name, value in given.items() if value is not None} or {"slowdown": 1.0}
    try:
        return Target.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        what = first["loc"][0] if first["loc"] else "target"
        got = "" if what == "target" else f", not {first.get('input')}"
        raise PlanError(f"{what}: {first['msg'].removeprefix('Value error, ')}{got}") from None


def _noise_of(values: Sequence[float]) -> float:
    return stdev(values) / fmean(values) if len(values) > 1 else 0.002
