"""The model that plans are made with and judged by: the job's DAG, its curves, and its recent iterations as scenarios.

A plan and max clocks are compared over the same iterations: how long each would have taken follows from the measured
times of its instructions. So the difference is free of what the data of an iteration does to its time.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.curves import EVERYTHING, EXPECTED, Curves, View
from pfo_fs.autotune.goals import OUTSIDE_THE_JOB, PlanGoal
from pfo_fs.autotune.job_layout import ClockPlan, stretches_of
from pfo_fs.autotune.judgements import Judgement, PlanJudge, highest_scatter
from pfo_fs.models import FrequencySchedule
from pfo_fs.planner import Problem, SwitchCosts
from pfo_fs.planner.scenario_relaxation import ScenarioAnswer
from pfo_fs.planner.scenarios import ScenarioPlanner, Scenarios
from pfo_fs.turns import ALL, swapped

_PLANNED_FOR, _JUDGED_BY = 16, 48
"""Plans are made for at most 16 of the measured iterations, and judged by at most 48 others."""
_RECOMBINED, _MOST_VALUES = 192, 2_000_000
"""Plans are also judged by 192 further iterations, or by as many as hold 2 million durations. These recombine the
micro-batches of iterations in another way than those that the planner adds. With many pipelines, a plan can be late by
4 % in one iteration of 25, which a few dozen iterations may not hold."""
_OWN_GROUP = 0.05
"""A pipeline runs clocks of its own if one kind's durations differ from the median pipeline's by more than this."""
_MOST_GROUPS = 8
"""At most 8 pipelines run clocks of their own; the others share one plan."""
_USUAL_LATENCY_S, _LATENCIES = 0.01, 4.0
"""A clock that is tried stays for four times its latency, or for one instruction: so it acts for most of that time."""
_LEAST_DEADLINE = 0.01
"""If a deadline leaves less time, this share of the time at max clocks counts, as times are divided by it."""
_MOST_SLOWDOWN = 3.0
"""Plans for a cap on power take at most three times as long as max clocks: even the lowest clocks take less."""
_BISECTIONS = 12
"""After this many bisections, the slowdown that keeps to a cap on power is known to 0.0005."""


class JobModel:
    """The job as it is believed to be; it is made anew with each window.

    Args:
        goal: What plans are made for.
        blocking_power_w: Power of a waiting GPU, in W.
        answers: `answers` of the model before.
        keep: Pipelines that run clocks of their own now, and keep them.

    Attributes:
        problem: The job in the planner's form, with expected times.
        everything: The same with all clocks, however little is known of them.
        group_of: The group of each pipeline that runs clocks of its own.
        full_s: Mean time of an iteration at max clocks until its last instruction has ended, in s.
        tail_s: Mean time from the end of that instruction to the end of the iteration, in s.
        tail_j: Energy in that time, at the power of waiting, in J.
        iterations: Number of iterations by which plans are judged.
        trial_iterations: A trial takes as much longer as this many iterations in which all ranks follow its plan.
        judged: The iterations by which plans are judged, and some that recombine their micro-batches.
        full_times_s: Time of each iteration of `judged` at max clocks, in s.
        full_j: Mean energy of an iteration of `judged` at max clocks, in J.
    """

    def __init__(
        self,
        beliefs: Beliefs,
        goal: PlanGoal,
        blocking_power_w: float,
        answers: Mapping[View, ScenarioAnswer] | None = None,
        keep: Collection[int] = (),
    ) -> None:
        self._goal, self._beliefs = goal, beliefs
        self.curves: Curves = beliefs.curves()
        self._source = f"profile of {beliefs.layout.job_info.job_id or 'the job'}"
        self.calibration = beliefs.calibration()
        problem = Problem(
            beliefs.pipeline,
            self.curves.profile(self._source),
            blocking_power_w,
            gpus_per_rank=beliefs.layout.job_info.tp_degree,
            switch_costs=beliefs.switching or SwitchCosts(),
        )
        self.problem = problem if self.calibration is None else self.calibration.problem(problem)
        self.everything = replace(self.problem, profile=self.curves.profile(self._source, EVERYTHING))
        # The pipelines of the scenarios: the measured ones, then slow ones that the latest window does not have.
        measured, slow = beliefs.windows[-1].pipelines, sorted(each for each in goal.slowdowns if each >= 0)
        self._members = [*measured, *(pipeline for pipeline in slow if pipeline not in measured)]
        self.group_of = self._groups(measured, slow, keep)
        self._columns = [self.group_of.get(pipeline, 0) for pipeline in self._members]
        self._planned_for, judged = self._iterations(measured)
        self.iterations, self.trial_iterations = len(judged), beliefs.trial_steps() // 2
        self.judged = Scenarios(self.everything, judged, self._columns)
        further = min(_RECOMBINED, _MOST_VALUES // (judged.shape[1] * judged.shape[2]))
        if further:
            self.judged = self.judged.recombined(further, seed=1)
        self.full_times_s: Array = self.judged.iteration_times_s(None)
        self.full_s = float(self.full_times_s.mean())
        self.tail_s = float(np.mean([window.tail_s for window in beliefs.windows]))
        self.tail_j = self.tail_s * self.problem.waiting_power_w * len(self._columns)
        self.full_j = self.judged.energy_j(None) + self.tail_j
        self._judge = PlanJudge(self, beliefs)
        self._answers = answers or {}
        self._planners: dict[View, tuple[ScenarioPlanner, float]] = {}

    def _groups(self, measured: Collection[int], slow: Sequence[int], keep: Collection[int]) -> dict[int, int]:
        assert self._beliefs.loads is not None
        bases = self._beliefs.loads.bases
        middle = np.median(np.array(list(bases.values())), axis=0)
        off = {pipeline: float(np.abs(base - middle).max()) for pipeline, base in bases.items()}
        odd = [each for each in sorted(off, key=lambda each: -off[each]) if off[each] > _OWN_GROUP]
        own = [pipeline for pipeline in [*keep, *odd] if pipeline in measured]
        chosen = list(dict.fromkeys([*slow, *own]))[:_MOST_GROUPS]
        if set(chosen) >= set(self._members):  # all of them differ: the first is as ordinary as any
            chosen = chosen[1:]
        return {pipeline: number + 1 for number, pipeline in enumerate(sorted(chosen))}

    def _iterations(self, measured: Sequence[int]) -> tuple[Array, Array]:
        """Measured iterations at max clocks, of shape (iterations, nodes, pipelines).

        First those that plans are made for, then those that plans are judged by. These differ, as a plan fits best the
        iterations that it was made for. Both are spread over all windows, so that no window counts alone.
        """
        parts: list[Array] = []
        for window, full_s in zip(self._beliefs.windows, self._beliefs.at_max_clocks_s(), strict=True):
            if set(measured) <= set(window.pipelines):
                parts.append(full_s[:, :, [window.pipelines.index(each) for each in measured]])
        found = np.concatenate(parts)
        columns = [number % found.shape[2] for number in range(len(self._members))]
        slowdowns = np.array([self._goal.slowdowns.get(pipeline, 1.0) for pipeline in self._members])
        found = found[:, :, columns] * slowdowns
        if len(found) == 1:
            return found, found
        planned_for = _spread(len(found), min(_PLANNED_FOR, len(found) // 2))
        others = np.setdiff1d(np.arange(len(found)), planned_for)
        return found[planned_for], found[others[_spread(len(others), min(_JUDGED_BY, len(others)))]]

    @cached_property
    def top_powers_w(self) -> Array:
        """Power of one GPU while it runs each node at the highest clock, in W."""
        rows = self.everything.profile.measurements
        highest = {kind: max(of_kind, key=lambda m: m.frequency_mhz) for kind, of_kind in rows.items()}
        tops = [highest[node.stage, node.name] for node in self.problem.pipeline.instructions]
        return np.array([top.energy_j / top.time_s for top in tops])

    # ---- plans

    def _plan(self, clocks_mhz: Sequence[Sequence[int]]) -> ClockPlan:
        """A plan for the groups of this model."""
        return ClockPlan(tuple(map(tuple, clocks_mhz)), tuple(sorted(self.group_of.items())))

    @cached_property
    def max_clocks(self) -> ClockPlan:
        """The plan with all instructions at the highest clock."""
        return self._plan([[max(offered) for offered in self._offered_mhz]] * (1 + len(self.group_of)))

    @cached_property
    def target_s(self) -> float:
        """The longest mean time of an iteration until its last instruction has ended, in s."""
        target = self._goal.target
        if target.deadline is not None:
            return max(_LEAST_DEADLINE * self.full_s, target.deadline - self.tail_s)
        if target.power is not None:
            return self._within_power(target.power)
        return max(target.slowdown or 1.0, self._goal.slowdowns.get(OUTSIDE_THE_JOB, 1.0)) * self.full_s

    def _within_power(self, power_w: float) -> float:
        """The shortest mean time of an iteration at which all GPUs together draw at most this power, in s."""
        low, high = 1.0, _MOST_SLOWDOWN
        if self._power_at(low) <= power_w:
            return self.full_s
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._power_at(middle) <= power_w else (middle, high)
        return high * self.full_s

    def _power_at(self, slowdown: float | None) -> float:
        """The mean power of all GPUs of the job under the plan for a slowdown, None: at their lowest clocks, in W."""
        lowest = [list(map(min, self._offered_mhz))] * (1 + len(self.group_of))
        clocks = lowest if slowdown is None else self._planned(slowdown).clocks_mhz
        length_s = float(self.judged.iteration_times_s(clocks).mean()) + self.tail_s
        pipelines = self._beliefs.layout.job_info.dp_degree / len(self._columns)
        return pipelines * (self.judged.energy_j(clocks) + self.tail_j) / length_s

    @property
    def lowest_power_w(self) -> float:
        """The power of all GPUs of the job together at their lowest clocks, in W: no plan draws less."""
        return self._power_at(None)

    @cached_property
    def least_power_w(self) -> float:
        """The power of all GPUs of the job together under the slowest plan for a cap on power, in W."""
        return self._power_at(_MOST_SLOWDOWN)

    def _scenarios(self, view: View) -> Scenarios:
        everything = view._replace(time_error=math.inf, power_error=math.inf)
        profile, wider = self.curves.profile(self._source, view), self.curves.profile(self._source, everything)
        return Scenarios(replace(self.problem, profile=profile, wider=wider), self._planned_for, self._columns)

    def plan(
        self, times: float = 1.0, view: View = EXPECTED, near: ClockPlan | None = None, steady: bool = False
    ) -> ClockPlan:
        """Returns the plan that takes least energy within a mean time of iterations.

        Args:
            times: The longest mean time, as a multiple of the target.
            view: How to look at what is uncertain.
            near: A plan that may be good already.
            steady: Whether all instructions of a rank have one clock; always, where clocks do not follow the device.
        """
        return self._planned(times * self.target_s / self.full_s, view, near, steady)

    def _planned(
        self, slowdown: float, view: View = EXPECTED, near: ClockPlan | None = None, steady: bool = False
    ) -> ClockPlan:
        """A plan with which iterations take `slowdown` times as long as at max clocks.

        This holds for the iterations that plans are made for; those that plans are judged by may take another time.
        """
        if view not in self._planners:
            scenarios = self._scenarios(view)
            planner = ScenarioPlanner(scenarios, self._answers.get(view))
            self._planners[view] = planner, float(scenarios.iteration_times_s(None).mean())
        planner, full_s = self._planners[view]
        if steady or self.only_steady:
            return self._plan(planner.one_clock_per_rank(slowdown * full_s))
        return self._plan(planner.at(slowdown * full_s, None if near is None else self.for_groups(near)))

    @property
    def answers(self) -> dict[View, ScenarioAnswer]:
        """The answers of the planners so far; the planners of the next model begin with them."""
        found = {view: planner.answer for view, (planner, _) in self._planners.items()}
        return {**self._answers, **{view: answer for view, answer in found.items() if answer is not None}}

    @cached_property
    def stretches(self) -> list[int]:
        """For each node, the number of its stretch of the iteration (`stretches_of`)."""
        costs, first_nodes = self._beliefs.switching, self.problem.pipeline.first_nodes
        if costs is None:
            return [rank for rank, (first, end) in enumerate(pairwise(first_nodes)) for _ in range(first, end)]
        long_enough_s = _LATENCIES * max(_USUAL_LATENCY_S, costs.latency_s + costs.driver_time_s)
        times_s = self.judged.full_s.mean(axis=(0, 2)).tolist()
        return stretches_of(first_nodes, times_s, long_enough_s, self._beliefs.clock_unknown_s)

    @property
    def only_steady(self) -> bool:
        """Whether all plans have one clock per rank, since clocks do not follow the device."""
        return self._beliefs.switching is None

    @property
    def one_stretch(self) -> bool:
        """Whether an iteration holds only one stretch of each rank."""
        return all(self.stretches[end - 1] == rank for rank, end in enumerate(self.problem.pipeline.first_nodes[1:]))

    def mixed(self, plan: ClockPlan, other: ClockPlan, every: int, first: int = 0) -> ClockPlan:
        """Returns a plan in which some stretches of each rank have the clocks of another plan.

        These are stretch `first` and each one that is a multiple of `every` away; one earlier in each further group.
        """
        return self._plan(
            [
                [
                    theirs if (stretch + group - first) % every == 0 else mhz
                    for stretch, mhz, theirs in zip(self.stretches, own, there, strict=True)
                ]
                for group, (own, there) in enumerate(zip(self.for_groups(plan), other.clocks_mhz, strict=True))
            ]
        )

    def nearer(self, plan: ClockPlan, other: ClockPlan, share: float) -> ClockPlan:
        """Returns a plan whose clocks lie at this share of the way from the clocks of `plan` to those of `other`.

        Where the two differ, the new clock is at least one offered clock away from that of `plan`.
        """

        def between(offered: Sequence[int], mhz: int, there: int) -> int:
            clocks = [each for each in offered if each != mhz and min(mhz, there) <= each <= max(mhz, there)]
            return min(clocks, key=lambda each: abs(each - (mhz + share * (there - mhz))), default=mhz)

        both = zip(self.for_groups(plan), other.clocks_mhz, strict=True)
        return self._plan([list(map(between, self._offered_mhz, own, theirs)) for own, theirs in both])

    @cached_property
    def _offered_mhz(self) -> list[list[int]]:
        """For each node, the clocks that can be set."""
        profile = self.everything.profile.measurements
        offered = {kind: [row.frequency_mhz for row in rows] for kind, rows in profile.items()}
        return [offered[node.stage, node.name] for node in self.problem.pipeline.instructions]

    def known(self, clocks_mhz: Sequence[int]) -> tuple[int, ...]:
        """Returns the clock of each node (MHz), or the nearest clock that is known here.

        Curves change with each window, so that a plan of an earlier model may hold a clock that this model lacks.
        """
        return tuple(
            mhz if mhz in offered else min(offered, key=lambda known: abs(known - mhz))
            for mhz, offered in zip(clocks_mhz, self._offered_mhz, strict=True)
        )

    def knows(self, plan: ClockPlan) -> bool:
        """Returns whether a plan of an earlier model can be judged by this one."""
        is_whole = all(len(each) == len(self.problem.pipeline.instructions) for each in plan.clocks_mhz)
        return is_whole and (len(set(plan.clocks_mhz)) == 1 or dict(plan.group_of).keys() <= self.group_of.keys())

    # ---- what is believed of plans

    def judge(self, plan: ClockPlan) -> Judgement:
        """Returns what is believed of a plan."""
        return self._judge.judgement(plan)

    def plan_of(self, schedules: Sequence[FrequencySchedule]) -> ClockPlan:
        """Returns the plan that schedules run."""
        return self._beliefs.layout.plan_of(schedules, self.max_clocks)

    def saved_if(self, plan: ClockPlan, view: View) -> float:
        """Returns what a plan saves if a view of what is uncertain is right, relative."""
        clocks = self.for_groups(plan)
        scenarios = self._scenarios(view)
        return 1 - (scenarios.energy_j(clocks) + self.tail_j) / (scenarios.energy_j(None) + self.tail_j)

    def spans_under(self, plan: ClockPlan) -> tuple[dict[tuple[int, int], float], float]:
        """Returns for each (turn, pipeline) the mean time in s until the last instruction of its first rank ends.

        The second result is the largest relative scatter that the pipelines have.
        """
        latest = self._beliefs.windows[-1]
        share = float((latest.first_rank_s / latest.spans_s.mean(axis=0)).mean())
        tops = self.max_clocks.clocks_mhz[0]
        odd = [rank % 2 for rank, order in enumerate(self.problem.pipeline.orders) for _ in order]
        found: dict[int, Array] = {}
        for ranks in range(ALL + 1):  # which of its ranks follow the plan: bit 0 those at even places, bit 1 the others
            clocks = [
                tuple(mhz if ranks >> place & 1 else top for mhz, top, place in zip(of_group, tops, odd, strict=True))
                for of_group in self.for_groups(plan)
            ]
            found[ranks] = self.judged.spans_s(clocks) + self.problem.overhead_s
        scatter = highest_scatter(float((found[ALL].std(axis=0) / found[ALL].mean(axis=0)).max()), self.iterations)
        expected_s = {
            (turn, pipeline): share * float(found[swapped(turn) if pipeline % 2 else turn][:, number].mean())
            for turn in range(ALL + 1)
            for number, pipeline in enumerate(self._members)
        }
        return expected_s, scatter

    def for_groups(self, plan: ClockPlan) -> list[tuple[int, ...]]:
        """Returns the plan's clocks for the groups of this model, each a clock that is known here."""
        first_of = {self.group_of.get(pipeline, 0): pipeline for pipeline in reversed(self._members)}
        return [self.known(plan.of(first_of.get(group, -1))) for group in range(1 + len(self.group_of))]

    def schedules(self, plan: ClockPlan) -> list[FrequencySchedule]:
        """Returns the schedule of each rank."""
        return self._beliefs.layout.schedules_of(plan)


def _spread(count: int, chosen: int) -> Array:
    """Numbers below `count`, evenly spread, the last one included."""
    return np.round(np.linspace(count - 1, 0, chosen)).astype(int)[::-1]
