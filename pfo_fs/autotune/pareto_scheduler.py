"""The default policy: measure while training, plan for what varies, and keep only what is surely worth it."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pfo_fs.autotune.beliefs import LEAST_ROUNDS, Beliefs
from pfo_fs.autotune.decision import TOLERANCE, Choice, choose, probe_plan, trial_time
from pfo_fs.autotune.goals import PlanGoal, figures_of, goal_of, goal_text, measured_text, target_of
from pfo_fs.autotune.job_layout import MOST_WINDOWS_WITHOUT_ORDER, ClockPlan, JobLayout
from pfo_fs.autotune.judgements import Judgement, Trial
from pfo_fs.autotune.model import JobModel
from pfo_fs.autotune.monitor import Monitor
from pfo_fs.autotune.trials import trial_of
from pfo_fs.autotune.windows import Window
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, PlanInputs, ProfilingResult, RankInfo
from pfo_fs.scheduler.base import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest, Windows
from pfo_fs.settings import PFOSettings
from pfo_fs.turns import ALL, ROUND

log = logging.getLogger(__name__)

_MOST_ROUNDS = 12
"""The plan that runs is measured in two rounds of turns, later in up to twelve: its errors fall with the time."""
_DEFAULT_SHARE = 0.01
"""A measurement runs default clocks for this share of the steps so far, in two rounds at least, in twelve at most."""
_ALL_FOLLOW = (ALL,)
"""Turns of a plan that is not compared with default clocks."""
_AGAIN, _FIRST_AGAIN = 1.5, 40
"""The plan in force is measured again when the job has run for 1.5 times as many iterations as at the last measurement,
and for 40 more at least: what its data is like changes with time, and a measurement costs nothing."""
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 4096
"""Iterations between two measurements that the monitor's alarms ask for, at first and at most; each time it doubles."""


class ParetoScheduler(FrequencyScheduler):
    """Measures during the training, then runs the plan that takes least energy within the target.

    Args:
        slowdown: Longest iteration time, as a multiple of that at max clocks; 1.0: no slowdown.
        deadline: Instead of `slowdown`: longest iteration time, in s.
        power: Instead of `slowdown`: highest average power of all GPUs of the job together, in W.
        blocking_power: Power of a waiting GPU, in W; None: as measured in the training itself.
    """

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
        self._learned: JobModel | None = None  # made with the latest window, for the next decision
        self._choice: Choice | None = None
        self._tried: list[ClockPlan] = []  # plans that were measured, the latest last
        self._schedules: list[FrequencySchedule] = []
        self._iterations = 0  # until the end of the latest window: what a replay knows, too
        self._seen = 0
        self._taken: set[int] = set()  # pipelines that were measured since their slowdown last changed
        self._lost = self._expected_loss = 0.0  # time of all trials, and of the latest, in iterations
        self._takes_turns = True
        self._energy_asked: set[ClockPlan] = set()  # plans whose energy was to be measured
        self._measured = -1  # the revision of the latest request under which ranks have measured
        self._running: ClockPlan | None = None  # the plan that runs, or ran before the trial
        self._measured_at = 0  # the iteration of the latest measurement
        self._epoch = 0  # `remeasure_epoch` at the latest decision
        self._monitor = Monitor(job_info.dp_degree)
        self._not_before, self._pause = -1, _FIRST_PAUSE  # of measurements that alarms ask for

    # ---- the phases

    # The coordinator calls, at each poll: `assess` with new times of iterations (is there a straggler? is it time to
    # measure?), `react` if that or a person has changed what plans are for, and `request`, which it publishes if it
    # differs from what runs. Once all ranks have measured under that, `observe`: then this generator goes on.

    def _run(self) -> ScheduleGenerator:
        """Warms up, probes low clocks, then for ever: decides, runs or tries a plan, learns from its results."""
        problem = yield from self._warm_up()
        if problem:
            yield ScheduleRequest([], "run", problem)
            return
        yield from self._probe()
        while True:
            self._decide()
            self._use((yield self._plan_request()))

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
        return layout.problem() or self._beliefs.problem()

    def _probe(self) -> Windows[None]:
        """Measures low clocks where there is slack, so that iterations do not become longer.

        If instructions take another time at max clocks than they do at the default ones, default clocks are lower. Then
        max clocks and lower ones are measured again, without turns, since plans are compared with max clocks.
        """
        for _ in range(2):
            model = self._new_model()
            schedules = model.schedules(probe_plan(model, self._beliefs))
            yield from self._window(schedules, "measuring lower clocks where ranks wait", self._turns(for_energy=False))
            if not self._takes_turns or not self._beliefs.default_clocks_differ():
                return
            log.info("default clocks are lower than max clocks: measuring max clocks")
            self._takes_turns = False
            self._beliefs.forget()
            while self._beliefs.problem():
                yield from self._window(self._at_max_clocks(), "measuring at max clocks")

    def _turns(self, *, for_energy: bool) -> tuple[int, ...]:
        """Which ranks follow a plan that is measured, by step.

        Empty if default clocks are lower than max clocks, or might draw more power than the target allows.
        """
        if not self._takes_turns or self._goal.target.power is not None:
            return ()
        return tuple(turn for turn in ROUND for _ in range(self._beliefs.block(for_energy=for_energy)))

    def _at_max_clocks(self) -> list[FrequencySchedule]:
        """The schedules with all instructions at max clocks."""
        layout = self._layout
        return [
            layout.schedule(info.rank, len(layout.order(info.rank)) * layout.clocks_of_stage[info.pp_rank][:1])
            for info in layout.rank_infos
            if info.available_frequencies
        ]

    def _window(self, schedules: list[FrequencySchedule], message: str, turns: tuple[int, ...] = ()) -> Windows[None]:
        steps = self._beliefs.trial_steps() if turns else 0
        results = yield ScheduleRequest(schedules, "measure", message, turns=turns, steps=steps)
        self._take(results, schedules, turns)

    def _take(
        self, results: Sequence[ProfilingResult], schedules: Sequence[FrequencySchedule], turns: Sequence[int]
    ) -> Window | None:
        window = self._beliefs.take(results, schedules, turns, after_alarm=self._is_alarmed)
        if window is not None:
            self._iterations = max(self._iterations, window.steps[-1])
            self._seen = self._measured_at = max(self._seen, self._iterations)
            self._taken.update(window.pipelines)
            self._goal = self._present_goal()
        return window

    def _use(self, results: Sequence[ProfilingResult]) -> None:
        """Uses what was measured under the plan that runs or is tried."""
        assert self._answer is not None
        _, choice = self._decided
        plan, turns, self._measured = choice.plan, self._answer.turns, self._answer.revision
        self._tried = [*(tried for tried in self._tried if tried != plan), plan]
        window = self._take(results, self._schedules, turns)
        if window is None:
            return
        model = self._learned = self._new_model()
        if turns != _ALL_FOLLOW and not self._goal.slowdowns and plan != model.max_clocks:
            self._beliefs.add_trial(trial_of(model, self._beliefs, plan, window, len(turns) // len(ROUND)))
            if choice.trial:  # what it has taken is known better now than before
                took = (window.iterations // 2) * model.judge(plan).late
                self._lost += max(0.0, took) - self._expected_loss

    def _decide(self) -> None:
        """Applies the rule to what is believed now."""
        model = self._model = self._learned or self._new_model()
        self._learned, before = None, self._choice
        epoch = self.plan_inputs.remeasure_epoch
        is_regular, self._epoch = epoch != self._epoch and before is not None and before.converged, epoch
        choice = choose(model, before, self._iterations, self._tried, self._lost, is_regular)
        stays = choice.stays
        if choice.trial and stays is not None and stays != (self._running or model.max_clocks):
            choice = replace(choice, plan=stays, judgement=model.judge(stays), trial=False, windows=0)
        if choice.trial:
            self._expected_loss = trial_time(choice.judgement, model.trial_iterations << choice.windows)
            self._lost += self._expected_loss
        else:
            self._running = choice.plan  # what ranks go back to after a trial
        if before is None or choice.plan is not before.plan:
            self._schedules = model.schedules(choice.plan)
        self._choice = choice
        self._monitor.expect(*model.spans_under(choice.plan))

    @property
    def _decided(self) -> tuple[JobModel, Choice]:
        """The model and the choice of the latest decision."""
        assert self._model is not None
        assert self._choice is not None
        return self._model, self._choice

    def _new_model(self) -> JobModel:
        answers = self._model.answers if self._model is not None else None
        waiting_w = self._blocking_power_w or self._beliefs.blocking_power_w()
        plans = () if self._choice is None else (self._choice.plan, self._choice.stays)
        keep = {pipeline: None for plan in plans if plan is not None for pipeline, _ in plan.group_of}
        return JobModel(self._beliefs, self._goal, waiting_w, answers, list(keep))

    def _plan_request(self) -> ScheduleRequest:
        model, choice = self._decided
        about = goal_text(self._goal, self._impossibility(), self._monitor.reasons)
        changes = choice.plan.changes(model.problem.pipeline.first_nodes)
        how_often = f"{changes:,} clock changes per iteration and pipeline" if changes else ""
        if not changes and choice.plan != model.max_clocks:
            why = ": clocks cannot follow instructions here" if self._beliefs.switching is None else ""
            how_often = f"one clock for each rank{why}"
        message = "; ".join(filter(None, [about, measured_text(*self._told), how_often, choice.note]))
        steps, trial = self._beliefs.trial_steps() << choice.windows, self._beliefs.trials.get(choice.plan)
        # Plans for the pace of a straggler are not measured, and followed at once.
        nothing_to_tell = bool(self._goal.slowdowns) or choice.plan == model.max_clocks
        turns: tuple[int, ...] = _ALL_FOLLOW
        # After an alarm the time alone is measured, since the plan may be late.
        settled = choice.converged and not self._is_alarmed
        if not nothing_to_tell and (choice.trial or choice.converged or trial is None):
            turns = self._turns(for_energy=settled)
        if settled and len(turns) > 1:
            rounds = round(_DEFAULT_SHARE * self._iterations / (len(turns) // 2))
            steps = min(max(rounds, LEAST_ROUNDS), _MOST_ROUNDS) * len(turns)
        steps = -(-steps // len(turns)) * len(turns) if turns else 0
        purpose: Literal["run", "measure"] = "measure" if choice.trial and len(turns) > 1 else "run"
        asked = choice.plan in self._energy_asked and not self._is_measuring
        stays = nothing_to_tell or asked or (trial is not None and trial.saved.is_known)
        return ScheduleRequest(self._schedules, purpose, message, choice.converged and stays, turns, steps)

    @property
    def _told(self) -> tuple[Judgement, Trial | None]:
        """What is believed and was measured of the plan that runs, also while another one is tried."""
        model, choice = self._decided
        plan = choice.stays if choice.trial and choice.stays is not None else choice.plan
        return model.judge(plan), self._beliefs.trials.get(plan)

    @property
    def _is_measuring(self) -> bool:
        """Whether ranks still measure what was asked for last."""
        return self._answer is not None and self._answer.revision != self._measured

    @property
    def _is_alarmed(self) -> bool:
        """Whether an alarm has asked for what is measured now."""
        return self._epoch < self.plan_inputs.remeasure_epoch == self.plan_inputs.alarm_epoch

    def _impossibility(self) -> str:
        """Why no plan keeps to the target, for the status; empty if one does."""
        model, target = self._decided[0], self._goal.target
        full_s = model.full_s + model.tail_s
        if target.deadline is not None and target.deadline < full_s * (1 - TOLERANCE):
            return f"max clocks take {full_s:.4g} s"
        if target.power is not None and model.least_power_w > target.power:
            return f"{model.least_power_w:,.0f} W is the least"
        return ""

    def _present_goal(self) -> PlanGoal:
        goal = goal_of(self.plan_inputs, self._default_target)
        known = {each for each, slowdown in goal.slowdowns.items() if slowdown < 1 and each in self._taken}
        return replace(goal, slowdowns={each: value for each, value in goal.slowdowns.items() if each not in known})

    # ---- what happens to it

    def was_published(self, schedules: list[FrequencySchedule], stays: bool = False) -> None:
        """In a replay: goes on with the plan that ran in place of the one that was planned anew."""
        super().was_published(schedules, stays)
        if self._choice is not None and self._model is not None:
            plan = self._model.plan_of(schedules)
            stays_plan = plan if self._choice.stays is self._choice.plan else self._choice.stays
            self._choice = replace(self._choice, plan=plan, stays=stays_plan, judgement=self._model.judge(plan))

    def react(self, plan_inputs: PlanInputs) -> None:
        """Uses other plan inputs from now on."""
        before, goal_before = self.plan_inputs.slow_pipelines, self._goal
        self._taken -= {each for each, slowdown in plan_inputs.slow_pipelines.items() if before.get(each) != slowdown}
        super().react(plan_inputs)
        self._goal = self._present_goal()
        self._beliefs.slow_pipelines = self._goal.slow_pipelines
        if self._choice is not None and self._goal != goal_before:
            # What was tried for another pace tells nothing of this pace.
            self._choice, self._learned = replace(self._choice, in_vain=0), None
            self._decide()

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        return self._plan_request() if self._choice is not None else yielded

    def assess(self, iteration_times: Sequence[IterationTime]) -> PlanInputs:
        """Finds stragglers and other changes, and says when the plan in force is to be measured again."""
        choice = self._choice
        if choice is None or not iteration_times:
            return self.plan_inputs
        self._seen = max(self._seen, iteration_times[-1].step)
        told = self.plan_inputs.straggler
        announced = {told.pipeline} if told is not None and told.pipeline is not None else set()
        known = {each: value for each, value in self.plan_inputs.slow_pipelines.items() if each in self._goal.slowdowns}
        stragglers = self._monitor.add(iteration_times, known, announced)
        if stragglers is not None and stragglers != self.plan_inputs.slow_pipelines:
            return self.plan_inputs.model_copy(update={"slow_pipelines": dict(stragglers)})
        is_alarmed = stragglers is not None and iteration_times[-1].step >= self._not_before
        if self._is_measuring and not (is_alarmed and choice.converged):  # the window of a new plan comes first
            return self.plan_inputs
        trial = self._beliefs.trials.get(choice.plan)
        no_energy = trial is not None and not trial.saved.is_known and choice.plan not in self._energy_asked
        pause = max(_FIRST_AGAIN, (_AGAIN - 1) * self._measured_at)
        is_due = choice.converged and (no_energy or self._seen - self._measured_at >= pause)
        if is_due:
            self._energy_asked.add(choice.plan)  # where there is no energy counter, it is asked for once
        changed = {"remeasure_epoch": self.plan_inputs.remeasure_epoch + 1}
        if is_alarmed:
            changed["alarm_epoch"] = changed["remeasure_epoch"]
            self._not_before = iteration_times[-1].step + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if is_due or is_alarmed:
            self._measured_at = self._seen
            return self.plan_inputs.model_copy(update=changed)
        return self.plan_inputs

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
        return figures_of(self._model, *self._told)
