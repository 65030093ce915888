"""The job in the form that the planner uses: the DAG of its instructions, its profile, and calibrated delays."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pfo_fs.autotune.curve_profile import careful, hopeful
from pfo_fs.autotune.expected_time import ExpectedTime
from pfo_fs.autotune.instruction_runs import RunInstruction, iterations_of
from pfo_fs.autotune.measured_switching import ClockOffer, without_slow_clocks
from pfo_fs.autotune.punctual_plan import PunctualPlans
from pfo_fs.errors import Impossible, PlanError
from pfo_fs.models import ProfilingResult
from pfo_fs.planner import (
    Calibration,
    MeasuredIteration,
    Measurement,
    Pipeline,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    calibrate,
    one_per_stage,
    pipeline_from_orders,
)
from pfo_fs.planner.switch_costs import MOST_BUSY

_MOST_CACHED_PLANS = 32
_COUNTED_AS = {
    "backward": ("gradient",),
    "backward_input": ("gradient",),
    "forward_backward": ("gradient", "recomputation"),
}
"""Instructions of a stage that are counted together, since a micro-batch has one of them."""
_MOST_INSTRUCTIONS = 6000
"""About this many measured instructions of a window are enough to calibrate with."""
_FULL_MARGIN = 0.01
"""Relative: instructions that take this much longer than at their fastest clock get all of the time margin."""
_HOPE = (1.0, 0.5, 0.25)
"""Clocks that are tried may be better than estimated by this many standard errors; the first one that is not too late
counts."""
_MOST_MARGIN_IN_TRIALS = 0.002
"""Relative: such a plan need not be on time."""
_MOST_LATE_IF_NOT = 0.015
"""Relative: how late such a plan may be if they are worse than estimated by a standard error."""
_ENOUGH_SAVED = 0.95
"""With slow clocks no plan is made if one without them saves this share of what the relaxation allows with them."""
_DRIVER_SHARE = 0.5
"""The planner counts this share of the time that a driver needs for a change and of that until it acts. With all of
them, a rank keeps each clock until all its GPUs have it; but clock processes make what fits of a shorter run: a GPU's
newest request wins, and a change down is left out where the next one is due. There are never more calls than fit."""
_MOST_SLOWDOWN_BY_CHANGES = 0.0005
"""Relative: clock changes may make the fastest plan slower than full speed by at most this."""


def pipeline_of(orders: Sequence[Sequence[tuple[str, int]]]) -> Pipeline:
    """Returns the DAG of what the ranks run: the n-th forward of a stage is that of micro-batch n.

    So is the n-th gradient, whether it is a `backward`, a `backward_input`, or a `forward_backward`, which computes its
    forward again. The n-th `backward_weight` belongs to the n-th `backward_input`.

    Args:
        orders: For each rank of a pipeline, its (instruction, stage) in order.

    Raises:
        PlanError: The instructions cannot run in these orders.
    """
    numbered = []
    for order in orders:
        seen: Counter[tuple[str, int]] = Counter()
        split: dict[int, list[int]] = defaultdict(list)
        row = []
        for name, stage in order:
            counted = _COUNTED_AS.get(name, (name,))
            microbatch = seen[counted[0], stage]
            if name == "backward_input":
                split[stage].append(microbatch)
            elif name == "backward_weight" and microbatch < len(split[stage]):
                microbatch = split[stage][microbatch]
            row.append((stage, name, microbatch))
            seen.update((each, stage) for each in counted)
        numbered.append(row)
    return pipeline_from_orders(numbered, name="as it runs")


def measured_iterations(
    pipeline: Pipeline, results: Sequence[ProfilingResult], ran_by_stage: Sequence[Sequence[RunInstruction]]
) -> list[MeasuredIteration]:
    """Returns single iterations of a window of one pipeline; none if a rank has no complete one.

    Their mean would not do: where durations scatter, the mean of the longest path is more than the longest path of
    the means, and a calibration would take the difference for a delay between stages.

    Args:
        pipeline: The DAG.
        results: The result of each of its ranks.
        ran_by_stage: The instructions that each of them ran.
    """
    rows = [list(iterations_of(result, ran)) for result, ran in zip(results, ran_by_stage, strict=True)]
    complete = min(len(of_rank) for of_rank in rows)
    if any(len(of_rank) != len(result.iter_time) for of_rank, result in zip(rows, results, strict=True)):
        complete = min(complete, 1)  # which iterations of the ranks belong together is not known
    found = []
    for number in range(min(complete, max(1, _MOST_INSTRUCTIONS // len(pipeline.instructions)))):
        times = {
            instruction: of_rank[number][position].time_s
            for order, of_rank in zip(pipeline.orders, rows, strict=True)
            for position, instruction in enumerate(order)
        }
        spans = [(result.iter_span or result.iter_time)[number] for result in results]
        found.append(MeasuredIteration(times, max(spans), {}))
    return found


class JobModel:
    """Makes plans for one pipeline of a job, and keeps the latest.

    Args:
        pipeline: The DAG.
        profile: Time and energy of its instructions.
        blocking_power_w: Power of a waiting GPU, in W.
        gpus_per_rank: Tensor-parallel degree.
        iterations: Measured iterations, of different schedules, to calibrate with; with fewer than two, delays are 0.
        switch_costs: What a clock change costs.
        offers: The clocks that plans may use; of the plans with each of them, the one that takes least energy counts.
        scatter: Standard deviation of the duration of one instruction, relative.
        wide_profile: `profile` with more clocks, which are hardly known; None: there are none.
        changes_act_late: Whether the instruction after a change is longer by the time for which ranks stand still.

    Attributes:
        calibration: The delays that were added to the DAG; None if there are none.
        full_speed: The plan with all instructions at the highest clock.
        full_speed_s: The mean time of an iteration under it, in s.
        stands_still: Whether GPUs stand still at clock changes.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        profile: Profile,
        blocking_power_w: float,
        gpus_per_rank: int,
        iterations: Sequence[MeasuredIteration],
        switch_costs: SwitchCosts,
        offers: Sequence[ClockOffer] = (ClockOffer(),),
        scatter: float = 0.0,
        wide_profile: Profile | None = None,
        changes_act_late: bool = False,
    ) -> None:
        self.calibration: Calibration | None = None
        problem = Problem(pipeline, profile, blocking_power_w, gpus_per_rank=gpus_per_rank, switch_costs=switch_costs)
        if len(iterations) >= 2:
            self.calibration = calibrate(pipeline, iterations)
            problem = self.calibration.problem(problem)
        self.problem = problem
        self._wide = problem if wide_profile is None else replace(problem, profile=wide_profile)
        self._offers = offers
        self.stands_still = switch_costs.stands_still_s > 0 and not changes_act_late
        self._expected = ExpectedTime(problem, scatter, changes_act_late)
        self.full_speed = all_maximum(problem)
        self.full_speed_s = self.expected_s(self.full_speed)
        self._planners: dict[tuple[float, float, ClockOffer], Planner] = {}
        self._plans: dict[tuple[str, float, float, float], Plan] = {}
        self._in_time: dict[tuple[str, float, float, float, float], Plan] = {}
        self._punctual_plans: dict[ClockOffer, PunctualPlans] = {}
        self._best_offers: dict[tuple[str, float, float, float], ClockOffer] = {}  # for each of these plans

    def expected_s(self, plan: Plan, change_s: float | None = None) -> float:
        """Returns the mean time of an iteration under a plan, in s.

        Args:
            plan: The plan.
            change_s: The time in s for which a rank stands still at a clock change; None: as far as it is known.
        """
        return self._expected.of(plan, change_s)

    @property
    def has_slow_clocks(self) -> bool:
        """Whether some clocks act so late that plans change clocks less often with them."""
        return len(self._offers) > 1

    def _planner(self, time_margin: float, change_price: float, offer: ClockOffer) -> Planner:
        """The planner of a problem in which slowed instructions take longer by a share, and changes cost a multiple."""
        key = max(0.0, time_margin), change_price, offer
        if key not in self._planners:
            if any(other[:2] != key[:2] for other in self._planners):
                self._planners.clear()
            problem = replace(
                self.problem,
                profile=_with_time_margin(
                    careful(without_slow_clocks(self.problem.profile, offer.left_out_mhz)), max(0.0, time_margin)
                ),
                switch_costs=_counted(self.problem.switch_costs, offer, change_price),
            )
            # Under a board's power limit, high clocks take the same time, the best one differs by instruction, and
            # every plan changes clocks: these changes must not make it slower than full speed.
            for switch_costs in _falling(problem.switch_costs):
                planner = Planner(replace(problem, switch_costs=switch_costs), search="quick")
                if planner.fastest_s <= self.full_speed.iteration_time_s * (1 + _MOST_SLOWDOWN_BY_CHANGES):
                    break
            self._planners[key] = planner
        return self._planners[key]

    def within(
        self,
        deadline_s: float,
        time_margin: float = 0.0,
        change_price: float = 1.0,
        straggler: bool = False,
        mean_s: float | None = None,
    ) -> Plan:
        """Returns the plan for a deadline, or for a straggler's time; the fastest plan if none is fast enough.

        Args:
            deadline_s: The longest iteration time, in s.
            time_margin: By how much iterations take longer than planned, relative. Where all run at the highest clocks,
                most instructions have slack, which absorbs jitter and late clock changes; a plan uses the slack up.
                A margin above zero gives some of it back: the planner assumes that slowed instructions take longer
                than measured by this share. One below zero makes the deadline longer by this share.
            change_price: What a clock change costs for the planner, as a multiple of what it is known to cost. With an
                infinite one, each stage runs at one clock.
            straggler: The pipeline waits until the deadline in any case.
            mean_s: The longest mean time of an iteration, in s: durations scatter, so that it is more than the time of
                the plan. None: any. A plan with one clock per stage is not changed to keep to it.
        """
        deadline_s *= 1 + max(0.0, -time_margin)
        key = self._key(deadline_s, time_margin, change_price, straggler)
        if key not in self._plans:
            if math.isinf(change_price):
                plan = self._one_per_stage(deadline_s, time_margin, straggler) or self.full_speed
            else:
                plan, self._best_offers[key] = self._with_changes(deadline_s, time_margin, change_price, straggler)
            self._keep(key, plan)
        plan = self._plans[key]
        if mean_s is None or math.isinf(change_price):
            return plan
        in_time = *key, round(mean_s / self.full_speed_s, 5)
        if in_time not in self._in_time:
            if len(self._in_time) >= _MOST_CACHED_PLANS:
                self._in_time.clear()
            self._in_time[in_time] = self._punctual(self._best_offers[key]).in_time(plan, mean_s)
        return self._in_time[in_time]

    def searched(self, deadline_s: float, time_margin: float, change_price: float, mean_s: float) -> Plan:
        """Returns the plan of a search that takes seconds, where GPUs stand still at clock changes.

        There it saves more than that of `within`, which is made quickly. The arguments are the same.
        """
        self.within(deadline_s, time_margin, change_price)
        deadline_s *= 1 + max(0.0, -time_margin)
        offer = self._best_offers[self._key(deadline_s, time_margin, change_price)]
        planner = Planner(self._planner(time_margin, change_price, offer).problem, search="short")
        plan = planner.at(deadline=max(deadline_s, planner.fastest_s)).replace(problem=self.problem)
        return self._punctual(offer).in_time(plan, mean_s)

    def _punctual(self, offer: ClockOffer) -> PunctualPlans:
        """What makes plans with these clocks faster."""
        if offer not in self._punctual_plans:
            problem = replace(self.problem, switch_costs=replace(self.problem.switch_costs, latency_s=offer.latency_s))
            self._punctual_plans[offer] = PunctualPlans(problem, self._expected, offer.left_out_mhz)
        return self._punctual_plans[offer]

    def _key(
        self, deadline_s: float, time_margin: float, change_price: float = 1.0, straggler: bool = False
    ) -> tuple[str, float, float, float]:
        share = round(deadline_s / self.full_speed.iteration_time_s, 4)
        return "straggler" if straggler else "deadline", share, max(0.0, time_margin), change_price

    def _with_changes(
        self, deadline_s: float, time_margin: float, change_price: float, straggler: bool
    ) -> tuple[Plan, ClockOffer]:
        """Returns the plan that takes least energy with any of the offers, and the offer that is best for changes."""
        planners = {offer: self._planner(time_margin, change_price, offer) for offer in self._offers}
        wanted_s = max(deadline_s, min(planner.fastest_s for planner in planners.values()))
        full_j = all_maximum(planners[self._offers[0]].problem, wanted_s if straggler else None).energy_j
        found: tuple[Plan, ClockOffer] | None = None
        for offer, planner in planners.items():
            if planner.fastest_s > wanted_s:
                continue
            if found is not None:
                saved_j, most_j = full_j - found[0].energy_j, full_j - planner.least_j(wanted_s, straggler=straggler)
                if saved_j >= _ENOUGH_SAVED * most_j:
                    continue
            plan = planner.at(straggler=wanted_s) if straggler else planner.at(deadline=wanted_s)
            if found is None or plan.energy_j < found[0].energy_j:
                found = plan, offer
        assert found is not None
        plan, best = found
        # The planner does not know all clocks.
        simple = self._one_per_stage(wanted_s, time_margin, straggler) if self.has_slow_clocks else None
        return (plan if simple is None or plan.energy_j <= simple.energy_j else simple), best

    def to_try(self, deadline_s: float, time_margin: float) -> tuple[Plan, float]:
        """Returns a plan that uses clocks which may be better than those that are known well, and what it would take.

        Args:
            deadline_s: The longest iteration time if these clocks are as good as they may be, in s.
            time_margin: As for `within`.

        Returns:
            The plan, evaluated by the estimates, and its energy in J if the clocks are as good as they may be.
        """
        self.within(deadline_s, time_margin)
        deadline_s *= 1 + max(0.0, -time_margin)
        offer = self._best_offers[self._key(deadline_s, time_margin)]
        offered = without_slow_clocks(self._wide.profile, offer.left_out_mhz)
        costs = _counted(self._wide.switch_costs, offer)
        feared = replace(self._wide, profile=careful(offered))
        for errors in _HOPE:
            profile = _with_time_margin(hopeful(offered, errors), min(max(0.0, time_margin), _MOST_MARGIN_IN_TRIALS))
            planner = Planner(replace(self._wide, profile=profile, switch_costs=costs), search="quick")
            plan = planner.at(deadline=max(deadline_s, planner.fastest_s))
            if plan.replace(problem=feared).iteration_time_s <= deadline_s * (1 + _MOST_LATE_IF_NOT):
                break
        return plan.replace(problem=self._wide), plan.energy_j

    def _one_per_stage(self, deadline_s: float, time_margin: float, straggler: bool) -> Plan | None:
        """Returns the plan with one clock per stage, slow clocks among them; None if none is fast enough."""
        profile = _with_time_margin(careful(self.problem.profile), max(0.0, time_margin))
        try:
            return one_per_stage(replace(self.problem, profile=profile), deadline_s, deadline_s if straggler else None)
        except Impossible:
            return None

    def as_it_is(self, plan: Plan) -> Plan | None:
        """Returns a plan of an earlier model of the same job, evaluated by this one; None if a clock is not known."""
        found = plan.replace(problem=self._wide)
        try:
            found.measurements  # noqa: B018  raises if a clock is unknown
        except PlanError:
            return None
        return found

    def at_power(self, power_w: float) -> Plan:
        """Returns the fastest plan that draws at most `power_w` over all GPUs, or else the plan that draws least."""
        key = "power", round(power_w, 1), 0.0, 1.0
        if key not in self._plans:
            planner = self._planner(0.0, 1.0, self._offers[0])
            try:
                plan = planner.at(power=power_w)
            except Impossible as error:
                plan = planner.at(power=error.best * (1 + 1e-9))
            self._keep(key, plan)
        return self._plans[key]

    def _keep(self, key: tuple[str, float, float, float], plan: Plan) -> None:
        """Keeps a plan, evaluated as the job is known to be."""
        if len(self._plans) >= _MOST_CACHED_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = plan.replace(problem=self.problem)


def _falling(costs: SwitchCosts) -> list[SwitchCosts]:
    """The costs, then the same with a tenth of the time for which a GPU stands still, and with none of it."""
    shares = (1.0, 0.1, 0.0) if costs.stands_still_s else (1.0,)
    return [replace(costs, stands_still_s=share * costs.stands_still_s) for share in shares]


def _counted(costs: SwitchCosts, offer: ClockOffer, price: float = 1.0) -> SwitchCosts:
    """The costs that the planner counts with these clocks, as if a change cost this multiple of what it is known to."""
    share = _DRIVER_SHARE * price
    busy = MOST_BUSY * costs.calls / costs.driver_time_s if costs.driver_time_s else math.inf
    return replace(
        costs,
        stands_still_s=costs.stands_still_s * price,
        driver_time_s=costs.driver_time_s * share,
        latency_s=offer.latency_s * share,
        late_s=costs.late_s * share,
        acts_late_s=costs.acts_late_s * price,
        max_calls_per_s=min(costs.max_calls_per_s, busy),
    )


def _with_time_margin(profile: Profile, time_margin: float) -> Profile:
    """Returns a profile in which slowed instructions take longer by the margin, at the same power.

    Clocks that are nearly as fast as the fastest one, as all above a board's power limit are, get a part of it.
    """
    table: dict[tuple[int, str], list[Measurement]] = {}
    for kind, rows in profile.measurements.items():
        fastest_s = min(row.time_s for row in rows)
        table[kind] = []
        for row in rows:
            times = 1 + time_margin * min(1.0, (row.time_s / fastest_s - 1) / _FULL_MARGIN)
            table[kind].append(Measurement(row.frequency_mhz, row.time_s * times, row.energy_j * times))
    return Profile(table, profile.source)
